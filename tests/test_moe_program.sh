#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# sstar moe from outside: sums are right, what crosses is what the routing foretells, what it refuses.
set -u
sstar=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT "${!SSTAR_@}" "${!SOFTNIC_@}"
failures=0

# expect STATUS PATTERN ARGUMENT...: status, and a line of what it said.
expect() {
    local status=$1 pattern=$2 got
    shift 2
    "$sstar" moe --ranks 4 --ranks-per-node 2 "$@" >"$work/output" 2>&1 </dev/null
    got=$?
    [ "$got" -eq "$status" ] && grep -qE -- "$pattern" "$work/output" && return
    printf 'FAILED: status %d, not %d with "%s": %s\n' "$got" "$status" "$pattern" "$*"
    sed 's/^/    | /' "$work/output" | head -n 20
    failures=$((failures + 1))
}

# Sequence 0 starts on rank 0; of 8 experts two live on each rank. Tokens 0 and 1 cross for two experts, 2 for none.
printf '%s\n' '# top-2 of 8 experts' 0,0,0,4,7 0,1,0,5,6 0,2,0,0,3 >"$work/small.csv"
expect 0 '^# 0 sums were not' --routing "$work/small.csv" --values 5 --strategy all --no-progress --json "$work/small.json" --csv "$work/small.out"
expect 0 'node +combine' --layers 1 --values 33 --type fp8_e4m3 --result-type bfloat16 --wire 20,2,0.5
expect 0 'rank +dispatch' --routing "$work/small.csv" --values 7 --type float --result-type float --strategy rank --ranks-per-node 1
if command -v jq >/dev/null; then
    got=$(jq -c '[.moe[] | .copies, .crossings, .saved, .saved_predicted, .wrong] | unique' "$work/small.json")
    [ "$got" = '[0,2,4]' ] || { echo "FAILED: $got"; failures=$((failures + 1)); }
fi
[ "$(wc -l <"$work/small.out")" = 11 ] || { echo 'FAILED: the CSV has no line for each phase'; failures=$((failures + 1)); }
expect 1 'nowhere: cannot open it' --routing "$work/nowhere"
expect 2 'type takes float, half, bfloat16' --type int32
expect 2 'values takes' --values 0
expect 2 'is for a routing' --experts 4
expect 2 'is too much' surplus

[ "$failures" -eq 0 ] || exit 1
echo "moe: as it should be"
