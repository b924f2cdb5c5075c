#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# `sstar decode` from outside: its rows, what follows from them, what it refuses. No figure is
# compared with a time.
set -euo pipefail
sstar=$1
command -v jq >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    printf 'test_decode: %s\n' "$*" >&2
    exit 1
}

run() {
    timeout 120 "$sstar" decode --ib-dev softnic --layers 2 --tokens 2 --hidden 512 --json "$work/record.json" \
        "$@" >"$work/out" 2>"$work/err" || fail "$*: status $?: $(cat "$work/err")"
}

holds() { # what jq says of the rows
    jq -e ".decode | $1" "$work/record.json" >/dev/null || fail "not so: $1 in $(jq -c .decode "$work/record.json")"
}

# Imposed: a world for each beta, every row measured.
run --wire 20,1,0.5 --factors 1,2,4 --batch 1,8 --scale 10,4 --csv "$work/record.csv"
holds 'length == 6'
holds 'all(.source == "softnic-shaped" and .allreduce_us > 20)'
holds '[.[].beta_GBps] == [0.5, 0.5, 1, 1, 2, 2]'
holds '[.[].stands_for_bytes] == [1024, 8192, 1024, 8192, 1024, 8192]'
holds '[.[].size_bytes] == [256, 2048, 256, 2048, 256, 2048]'
holds 'all((.alpha_us + .beta_us - .predicted_us | fabs) < 0.01 * .predicted_us)'
holds 'all((.token_us - 4 * .allreduce_us | fabs) < 0.001 * .token_us)'
holds 'all((.stands_for_token_us * 10 - .token_us | fabs) < 0.001 * .token_us)'
[ "$(wc -l <"$work/record.csv")" = 7 ] || fail "the CSV has not 6 rows and a heading"
grep -q '^# batch 1, messages of 1024 B: .* start-up' "$work/out" || fail "no words: $(cat "$work/out")"
grep -q '4 times the bandwidth saves' "$work/out" || fail "no word on bandwidth: $(cat "$work/out")"

# Times that are far from the price are said to be.
said=no
! grep -q 'times the price' "$work/out" || said=yes
[ "$said" = "$(jq -r '.decode | map(.ratio) | max | if . > 1.5 then "yes" else "no" end' "$work/record.json")" ] ||
    fail "far from the price: $said"

# A wire that cannot be changed: what is there is measured, the rest is the model's.
run --factors 1,2 --batch 1
holds '[.[].source] == ["softnic", "model"]'
holds '.[0].allreduce_us > 0 and .[1].allreduce_us == null'

for wrong in '--batch 0' '--batch 1,,2' '--hidden 0' '--factors 0.5' '--factors x' '--scale 10' \
    '--layers 2000000' '--nonsense'; do
    status=0
    # shellcheck disable=SC2086
    "$sstar" decode $wrong >"$work/out" 2>"$work/err" || status=$?
    [ "$status" = 2 ] || fail "$wrong: status $status, not 2"
    [ -s "$work/err" ] || fail "$wrong: not a word"
done
echo "sstar decode: all as it should be"
