#!/bin/bash
# Grades the office's files, nothing else, and starts no process: verifiers run thousands of times in a training run.
#   1.0  the right value in the right file
#   0.3  the right value in another new text file
#   0.1  the right file with a wrong value
cd "${WORKSPACE:-/workspace}" || exit 1
shopt -s globstar nullglob
path=@PATH@
value=@VALUE@
given=@GIVEN@

holds_value() {
    local text=
    [[ -f $1 && ! -L $1 ]] || return 1
    IFS= read -r -N 200 text <"$1"
    text=${text#"${text%%[![:space:]]*}"}
    [[ ${text%"${text##*[![:space:]]}"} == "$value" ]]
}

place=0 right=0
[[ -f $path && ! -L $path ]] && place=1
holds_value "$path" && right=1
if ((!right)); then
    for file in **/*.txt; do
        [[ $given != *"|$file|"* ]] && holds_value "$file" && place=0 right=1 && break
    done
fi

case $right$place in
    11) reward=1.0 ;;
    10) reward=0.3 ;;
    01) reward=0.1 ;;
    *) reward=0.0 ;;
esac
printf '{"reward": %s, "value": %s, "place": %s}\n' "$reward" "$right" "$place" >"${LOGS:-/logs/verifier}/reward.json"
