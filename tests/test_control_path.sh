#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# `sstar control-path` from outside: its rows, what must hold of counts, what it refuses. No time is
# compared with another.
set -euo pipefail
sstar=$1
command -v jq >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    printf 'test_control_path: %s\n' "$*" >&2
    exit 1
}

run() {
    timeout 120 "$sstar" control-path --ib-dev softnic --seconds 0.01 --json "$work/record.json" \
        --csv "$work/record.csv" "$@" >"$work/out" 2>"$work/err" || fail "$*: status $?: $(cat "$work/err")"
}

holds() { # what jq says of the record
    jq -e "$1" "$work/record.json" >/dev/null || fail "not so: $1 in $(jq -c . "$work/record.json")"
}

run --batch 1,8 --signal 1,8 --qps 1,2 --callers 1,2 --post wr,each --budget 4K,32K --beta 25,100
holds '.control_path | length == 2 * 2 * 2 * (3 + 4)' # a direct caller needs a queue pair
holds '[.control_path[] | .path] | unique == ["direct", "proxy"]'
holds 'all(.control_path[]; .rate_per_us > 0 and .alpha_us > 0 and .gap_us > 0)'
holds 'all(.control_path[] | select(.signal == 1); .cqes_per_message == 1)'
holds 'all(.control_path[] | select(.signal == 8); .cqes_per_message < 0.5)'
holds 'all(.control_path[] | select(.batch == 1 or .post == "each"); .wqes_per_doorbell == 1)'
holds 'all(.control_path[] | select(.batch == 8 and .post != "each"); .wqes_per_doorbell > 4)'
holds 'all(.control_path[] | select(.path == "direct"); .proxies == 0 and .queue_pairs >= .callers)'
holds '.stages | length == 2 * 2 * 9'
holds '[.stages[].stage] | index("device (emulated)") != null'
holds '.budget | length == 2 * 2 * 2 * 2'
holds 'all(.budget[]; (.alpha_for_50_us - 4 * .alpha_for_80_us | fabs) < 0.001 * .alpha_for_50_us)'
holds 'all(.budget[]; (.alpha_for_50_us - .bytes_us | fabs) < 0.001 * .bytes_us)'
[ "$(wc -l <"$work/record.csv")" = 57 ] || fail "the CSV has not 56 rows and a heading"
grep -q '^# budget' "$work/out" || fail "no budget: $(cat "$work/out")"

run --path direct --post chain --inline yes,no -s 8,64 --signal 8
holds '.control_path | length == 8 and all(.post == "chain")'
holds 'all(.control_path[] | select(.batch == 32); .wqes_per_doorbell > 16)'

run --wire 20,1,1 --path proxy --post wr -s 8,2K --inline no --proxy-threads 2 --qps 2 --callers 3
holds 'all(.control_path[]; .alpha_us > 20 and .proxies == 2)'
holds '.device_class == "softnic-shaped"'

for wrong in '--path sideways' '--batch 0' '--batch 65' '--signal 1,,2' '--qps 17' '--callers x' '--inline maybe' \
    '--size 0' '--seconds 0' '--budget x' '--beta 0' '--proxy-threads 0' '--proxy-cpu x' '--control no' '--nonsense'; do
    status=0
    # shellcheck disable=SC2086
    "$sstar" control-path $wrong >"$work/out" 2>"$work/err" || status=$?
    [ "$status" = 2 ] || fail "$wrong: status $status, not 2"
    [ -s "$work/err" ] || fail "$wrong: not a word"
done
echo "sstar control-path: all as it should be"
