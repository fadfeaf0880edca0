#!/bin/bash
# Grades the office's files, nothing else, and starts no process: verifiers run thousands of times in a training run.
#   1.0  the right cell holds the right value, and every other cell is as it was
#   0.3  one cell has changed, to the right value, but it is another cell
#   0.1  one cell has changed, the right one, but to a wrong value
cd "${WORKSPACE:-/workspace}" || exit 1
path=@PATH@
row=@ROW@
column=@COLUMN@
value=@VALUE@
readarray -t before <<'SHEET'
@SHEET@
SHEET

[[ -f $path && ! -L $path ]] && readarray -t -n 1000 after <"$path"
changed=0 place=0 right=0
IFS=, read -ra header <<<"${before[0]}"
((${#after[@]} == ${#before[@]})) || changed=99
for ((line = 0; line < ${#before[@]} && changed < 2; line++)); do
    new=${after[line]%$'\r'}
    [[ $new == "${before[line]}" ]] && continue
    IFS=, read -ra old_cells <<<"${before[line]}"
    IFS=, read -ra new_cells <<<"$new"
    ((${#old_cells[@]} == ${#new_cells[@]})) || changed=99
    for ((cell = 0; cell < ${#old_cells[@]}; cell++)); do
        [[ ${old_cells[cell]} == "${new_cells[cell]}" ]] && continue
        ((++changed))
        [[ ${old_cells[0]} == "$row" && ${header[cell]} == "$column" ]] && place=1
        [[ ${new_cells[cell]} == "$value" ]] && right=1
    done
done
((changed == 1)) || place=0 right=0

case $right$place in
    11) reward=1.0 ;;
    10) reward=0.3 ;;
    01) reward=0.1 ;;
    *) reward=0.0 ;;
esac
printf '{"reward": %s, "value": %s, "place": %s}\n' "$reward" "$right" "$place" >"${LOGS:-/logs/verifier}/reward.json"
