#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tools/demo from end to end, small: its paragraph is there, and each figure in it is one. None is compared with a time.
set -euo pipefail
sstar=$1
demo=$(dirname "$0")/../tools/demo
command -v jq >/dev/null && command -v gnuplot >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    printf 'test_demo: %s\n' "$*" >&2
    tail -n 40 "$work/said" >&2
    exit 1
}

"$demo" --quick --program "$sstar" --out "$work/out" >"$work/said" 2>&1 || fail "status $?"
sed -e '1,/^== in one paragraph/d' -e '/demo.json and/,$d' "$work/said" | tr '\n' ' ' >"$work/words"

# Of what it says nothing may be missing, and no figure empty, null or not a number.
grep -Eq 'null|nan|inf ' "$work/words" && fail "a figure is none: $(cat "$work/words")"
for text in 'Measured on softnic-shaped, not on a NIC' 'a lone message starts in [1-9][0-9.]* us' 'moves at [0-9.]+ +GB/s' \
    'S\* is [1-9][0-9.]* KB' 'S\*rate = [0-9.]+ KB' 'The same [1-9][0-9]* messages, [1-9][0-9]* of them across' \
    'take [0-9.]+ ms instead of [0-9.]+ ms: [0-9.]+ times faster per node' \
    'Lost, doubled, altered: 0, 0, 0\.' 'AllReduce of 64 KiB takes [0-9.]+ ms \(predicted [0-9.]+\), +the ring [0-9.]+ ms'; do
    tr -s ' ' <"$work/words" | grep -Eq "${text//  */ +}" || fail "the paragraph does not say '$text': $(cat "$work/words")"
done

# What does not depend on the machine: who is in it, what was lost, and what gathering does to sizes.
jq -e '
    def positive: type == "number" and . > 0;
    ([.alltoall[].strategy] == ["none", "rank", "node"]) and
    (all(.alltoall[]; .lost + .doubled + .altered == 0 and (.seconds | positive) and (.predicted_seconds | positive))) and
    (([.alltoall[].share_bytes_past_s_star] | .[0] < .[1] and .[0] < .[2])) and
    (.fit | (.alpha_us | positive) and (.beta_GBps | positive) and (.gap_us | positive) and (.s_star_bytes | positive)) and
    ([.allreduce[].size_bytes] | unique == [1024, 65536]) and
    (all(.allreduce[]; (.time_us | positive) and (.predicted_us | positive)))' "$work/out/demo.json" >/dev/null ||
    fail "demo.json does not hold what it should: $(jq -c '{fit, alltoall}' "$work/out/demo.json" | cut -c1-2000)"
head -c 200 "$work/out/demo.svg" | grep -q '<svg\|<?xml' || fail "demo.svg is no picture"
tail -c 20 "$work/out/demo.svg" | grep -q '</svg>' || fail "demo.svg ends too early"

# Bad input is told, before anything is done.
for arguments in '--nonsense' '--out' '--token-bytes'; do
    status=0
    # shellcheck disable=SC2086
    "$demo" $arguments >"$work/said" 2>&1 || status=$?
    [ "$status" = 2 ] || fail "$arguments: status $status, not 2"
done
status=0
"$demo" --program "$work/none" --out "$work/out" >"$work/said" 2>&1 || status=$?
[ "$status" = 1 ] || fail "a program that is not there: status $status"
grep -q 'cannot run' "$work/said" || fail "a program that is not there: it does not say so"
