#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# sstar replay from outside: what it plays, that results are checked, what it refuses.
set -u
# shellcheck source=tests/program.sh
. "$(dirname "$0")/program.sh"
example=$(dirname "$0")/../docs/examples/collectives-4rank.csv
replay=("$sstar" replay --repeat 1)

# As many ranks as the file has; each all-to-all once with each strategy.
expect 0 '^ +2 +all_to_allv +10496 +4 +adaptive .* 0$' "${replay[@]}" "$example" --ranks-per-node 2 \
    --wire 20,2,0.5 --json "$work/shaped.json" --csv "$work/shaped.csv"
expect 0 '^ +3 +allreduce +262144 +4 ' "${replay[@]}" "$example" --json "$work/node.json" --strategy node,none
expect 0 '^ +all_to_allv +none +3 ' "${replay[@]}" "$example" --ranks-per-node 2 --strategy none \
    --message-bytes 64 --json "$work/cut.json"
expect 0 ' 4 ranks on 2 nodes' "$sstar" run -n 4 --ranks-per-node 2 -- "${replay[@]}" "$example" --strategy rank --no-check
if command -v jq >/dev/null; then
    for file in shaped node cut; do
        counts "$work/$file.json" '[.replay[].wrong] | add' 0
    done
    counts "$work/shaped.json" '[.ranks, .nodes, (.replay | length)]' '[4,2,26]'
    counts "$work/shaped.json" '[.replay[] | select(.kind == "all_to_all").by]' '["none","rank","node","mesh","adaptive"]'
    counts "$work/shaped.json" '[.replay[] | select(.kind != "barrier") | .time_us > 0 and .predicted_us > 0] | unique' '[true]'
    counts "$work/shaped.json" '[.kinds[] | select(.kind == "all").entries] | unique' '[10]'
    counts "$work/node.json" '[.replay[].predicted_us] | unique' '[null]'
    # 2 of 4 ranks are across: of 4 x 24 KiB, in messages of 64 B, and 8 last ones.
    counts "$work/cut.json" '.replay[] | select(.seq == 1).wire_messages' 264
fi
[ "$(wc -l <"$work/shaped.csv")" = 27 ] || fail 'the CSV has not a line for each row'

refuse() { expect "$1" "$2" "${replay[@]}" "${@:3}"; }
grep -v '^1,6,' "$example" >"$work/short.csv"
sed '5s/all_to_allv/all_to_one/' "$example" >"$work/name.csv"
refuse 1 'short\.csv:[0-9]*: seq 6 has no line of rank 1, and there are 4 ranks' "$work/short.csv"
refuse 1 "name\.csv:5: no collective is called 'all_to_one'" "$work/name.csv"
[ "$(grep -c 'name.csv' "$work/output")" = 1 ] || fail 'it is said more than once'
refuse 1 'nowhere: cannot open it: No such file' "$work/nowhere"
refuse 1 'byte 0x7f at column 1 is not text' "$sstar"
refuse 2 'is of 4 ranks, and there are 2; start 4' "$example" --ranks 2
refuse 2 'which file is to be played'
refuse 2 'one file is played' "$example" "$example"
refuse 2 '--strategy takes none, rank' --strategy best "$example"
refuse 2 '--message-bytes takes' --message-bytes 0 "$example"
refuse 2 '--repeat takes' --repeat 0 "$example"
program_end 'replay: as it should be'
