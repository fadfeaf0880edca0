#!/bin/bash
# Grades the office's files, nothing else, and starts no process: verifiers run thousands of times in a training run.
#   1.0  the right sheet ends with the right row, and every row before it is as it was
#   0.3  another sheet ends with the right row
#   0.1  the right sheet has one row more, but a wrong one
cd "${WORKSPACE:-/workspace}" || exit 1
shopt -s globstar nullglob
path=@PATH@
row=@ROW@
readarray -t before <<'SHEET'
@SHEET@
SHEET

place=0 right=0
if [[ -f $path && ! -L $path ]]; then
    readarray -t -n 1000 after <"$path"
    after=("${after[@]%$'\r'}")
    count=${#before[@]}
    if ((${#after[@]} == count + 1)) && [[ ${after[*]:0:count} == "${before[*]}" ]]; then
        place=1
        [[ ${after[count]} == "$row" ]] && right=1
    fi
fi
if ((!right)); then
    for file in **/*.csv; do
        [[ $file == "$path" || -L $file ]] && continue
        readarray -t -n 1000 rows <"$file"
        ((${#rows[@]})) && [[ ${rows[-1]%$'\r'} == "$row" ]] && place=0 right=1 && break
    done
fi

case $right$place in
    11) reward=1.0 ;;
    10) reward=0.3 ;;
    01) reward=0.1 ;;
    *) reward=0.0 ;;
esac
printf '{"reward": %s, "value": %s, "place": %s}\n' "$reward" "$right" "$place" >"${LOGS:-/logs/verifier}/reward.json"
