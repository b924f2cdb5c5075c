#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# `sstar fit` from outside: what it writes, what it refuses. No figure is compared with a time.
set -euo pipefail
sstar=$1
command -v jq >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    printf 'test_fit_program: %s\n' "$*" >&2
    exit 1
}

# Run, and keep the exit status.
status=0
run() {
    status=0
    "$sstar" fit --ib-dev softnic "$@" >"$work/out" 2>"$work/err" || status=$?
}

member() {
    jq -c --arg path "$1" \
        'getpath($path | split(".") | map(if test("^[0-9]+$") then tonumber else . end))' \
        "$work/fit.json"
}

# Imposed stands beside measured; the exit status and S* say the same.
run --quick --wire 20,1,1 --json "$work/fit.json" --csv "$work/fit.csv"
[ "$status" = 0 ] || [ "$status" = 1 ] || fail "status $status: $(cat "$work/err")"
for key in alpha_us alpha_ci_us.0 alpha_ci_us.1 beta_GBps beta_ci.0 gap_us gap_ci_us.0 form device \
    imposed.alpha_us imposed.gap_us imposed.beta_GBps unshaped_latency_us deviation.alpha_percent \
    deviation.beta_percent deviation.gap_percent points.0.size_bytes points.0.median_us \
    points.0.predicted_us points.0.p99_us; do
    [ "$(member fit.$key)" != null ] || fail "fit.$key is null"
done
[ "$(member fit.device)" = '"softnic-shaped"' ] || fail "device is $(member fit.device)"
[ "$(jq '.fit.imposed.alpha_us == 20' "$work/fit.json")" = true ] || fail "imposed is $(member fit.imposed)"
if [ "$status" = 0 ]; then
    for key in s_star_bytes s_star_ci_bytes.0 size_80_bytes size_90_bytes; do
        [ "$(member fit.$key)" != null ] || fail "fit.$key is null, but the status is 0"
    done
    [ "$(member fit.refused)" = null ] || fail "refused, but the status is 0"
else
    [ "$(member fit.s_star_bytes)" = null ] || fail "an S*, but the status is 1"
fi
head -1 "$work/fit.csv" | grep -q '^size_bytes,median_us,' || fail "the CSV has no heading"

# 1 KiB cannot show a beta of 0.1 GB/s behind 120 us: no S*, the reason, status 1.
run --quick --wire 120,10,0.1 -e 1K --json "$work/fit.json"
[ "$status" = 1 ] || fail "status $status for sizes that are too short"
[ "$(member fit.s_star_bytes)" = null ] || fail "an S* from sizes that are too short"
[ "$(member fit.size_80_bytes)" = null ] || fail "an 80 % size from sizes that are too short"
[ "$(member fit.refused)" != null ] || fail "no reason"
grep -q 'no S\*' "$work/err" || fail "nothing said: $(cat "$work/err")"
grep -q 'median_us' "$work/out" || fail "no table"

# A device that is not there: one sentence, from every rank the same.
run --ib-dev nowhere
[ "$status" = 1 ] || fail "status $status for a device that is not there"
[ "$(grep '^sstar fit:' "$work/err" | sort -u | wc -l)" = 1 ] || fail "more than one sentence: $(cat "$work/err")"
grep -q 'there is no device nowhere here' "$work/err" || fail "no word of it: $(cat "$work/err")"

# Three ranks: two measure, one looks on.
run --quick -e 64K --ranks 3 --json "$work/fit.json"
[ "$status" = 0 ] || [ "$status" = 1 ] || fail "three ranks: status $status: $(cat "$work/err")"

# What can be typed wrong.
for wrong in '-b 0' '-b 1K -e 2K' '-e 2G' '--points 2' '-n 0' '-n x' '--ranks 1' '--wire 1,2' \
    '--wire 1,2,x' '--nonsense'; do
    # shellcheck disable=SC2086
    run $wrong
    [ "$status" = 2 ] || fail "$wrong: status $status, not 2"
    [ -s "$work/err" ] || fail "$wrong: not a word"
done
run --quick --json "$work/no/such/place.json"
[ "$status" = 1 ] || fail "a file that cannot be written: status $status"
echo "sstar fit: all as it should be"
