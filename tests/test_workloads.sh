#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# sstar histogram and sstar indexgather from outside: right results by every strategy, what they refuse.
set -u
# shellcheck source=tests/program.sh
. "$(dirname "$0")/program.sh"

for command in histogram indexgather; do
    run() { "$sstar" "$command" --ranks 5 --ranks-per-node 2 -n 3000 -T 100 --repeat 1 "$@"; }
    expect 0 ' mesh +3000 .* 0$' run --strategy all --json "$work/$command.json" --csv "$work/$command.csv"
    expect 0 ' rank +2000 .* 0$' "$sstar" "$command" --ranks 3 -n 2000 --repeat 2
    expect 0 ' node +0 ' run -n 0 --strategy node
    expect 2 "--strategy takes none" run --strategy some
    expect 2 "-T takes a whole number from 1" run -T 0
    expect 2 "is given with -n N" run 5
    if command -v jq >/dev/null; then
        counts "$work/$command.json" "[.${command}[] | .wrong] | add" 0
        counts "$work/$command.json" "[.${command}[] | .million_per_s_rank > 0] | unique" '[true]'
    fi
    [ "$(wc -l <"$work/$command.csv")" = 6 ] || fail 'the CSV has no line for each strategy'
done
program_end "workloads: as it should be"
