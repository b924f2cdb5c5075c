#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# sstar allreduce and its kin from outside: arguments, record, no wrong value. No time is compared.
set -u
sstar=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() {
    echo "FAILED: $*" >&2
    failures=$((failures + 1))
}

refused() { # PATTERN ARGUMENT...: usage, with a sentence that says what is taken
    local pattern=$1
    shift
    timeout 60 "$sstar" allreduce "$@" >"$work/output" 2>&1
    [ $? -eq 2 ] || fail "allreduce $* did not exit with 2"
    grep -qE -- "$pattern" "$work/output" || fail "allreduce $*: no '$pattern' in: $(cat "$work/output")"
}
refused '--algorithm takes names from: auto, ring, doubling, halving, circulant, tree, hierarchical, .*all' --algorithm star
refused '-d takes names from: float, double, int32, int64, half, bfloat16, fp8_e4m3, fp8_e5m2, int8, int16, uint8, uint32, uint64, all' -d quad
refused '-o takes names from: sum, min, max, prod, avg, all' -o xor
refused '-b takes a size' -b many
refused '-e 8 is less than -b 16' -b 16 -e 8
refused '-f takes a whole number from 2' -f 1
refused '-i takes a size from 1' -i 0
refused '-n takes a whole number from 1' -n 0
refused '-c takes a whole number from 0 to 1' -c 2
refused '--slice takes a size from 8' --slice 7
refused '--ranks takes a whole number from 1' --ranks 0
refused '--ranks-per-node 3 is more than the 2 ranks' --ranks 2 --ranks-per-node 3

measure() { # ROWS ARGUMENT...: exit 0, so many rows, none of them wrong
    local rows=$1 got
    shift
    rm -f "$work/record.json"
    timeout 120 "$sstar" allreduce -n 2 -w 1 --json "$work/record.json" --csv "$work/record.csv" "$@" \
        >"$work/output" 2>&1 || fail "allreduce $*: $(cat "$work/output")"
    got=$(grep -c '"wrong": 0' "$work/record.json")
    [ "$got" -eq "$rows" ] || fail "allreduce $*: $got rows without a wrong value where $rows are due"
    [ "$(wc -l <"$work/record.csv")" -eq $((rows + 1)) ] || fail "allreduce $*: rows of the CSV"
    for key in algorithm size_bytes count type op in_place time_us algbw_GBps busbw_GBps predicted_us \
        wire_us overhead_us node_us device; do
        [ "$(grep -c "^      \"$key\":" "$work/record.json")" -eq "$rows" ] ||
            fail "allreduce $*: a row lacks $key"
    done
}
measure 2 --ranks 1 -b 8 -e 8
measure 6 --ranks 2 -b 8 -e 128
grep -q '"predicted_us": null' "$work/record.json" || fail "one node has no price"
measure 22 --ranks 3 --ranks-per-node 2 -b 0 -e 0 --algorithm all
measure 390 --ranks 5 --ranks-per-node 2 -b 8 -e 8 -d all -o all --algorithm ring,tree,hierarchical
for key in predicted_us wire_us overhead_us; do
    grep -q "\"$key\": [0-9]" "$work/record.json" || fail "across nodes there is a price, $key"
done
grep -q '^# hierarchical-ring predicted on alpha .* o .* us, gamma .* node [0-9]' "$work/output" ||
    fail "the head does not say what is predicted on: $(cat "$work/output")"
measure 8 --ranks 4 --ranks-per-node 2 -b 1000 -e 3000 -i 2000 --wire 20,2,1 --slice 512 --algorithm ring,hierarchical
grep -q '"device": "softnic-shaped"' "$work/record.json" || fail "the device class is not said"
measure 4 --ranks 2 --ranks-per-node 1 --qp 8 --port-per-rank -b 64K -e 256K

# The other operations: the same program, the columns of their own sizes.
kin() { # OPERATION ROWS ARGUMENT...
    local operation=$1 rows=$2 got
    shift 2
    rm -f "$work/record.json"
    timeout 120 "$sstar" "$operation" -n 2 -w 1 --json "$work/record.json" "$@" >"$work/output" 2>&1 ||
        fail "$operation $*: $(cat "$work/output")"
    got=$(grep -c '"wrong": 0' "$work/record.json")
    [ "$got" -eq "$rows" ] || fail "$operation $*: $got rows without a wrong value where $rows are due"
}
kin reducescatter 10 --ranks 3 --ranks-per-node 1 -b 1200 -e 1200 --algorithm all
kin allgather 10 --ranks 3 --ranks-per-node 2 -b 1200 -e 1200 --algorithm all
kin broadcast 14 --ranks 3 --ranks-per-node 2 -b 1000 -e 1000 --root 2 --algorithm all
kin reduce 14 --ranks 3 --ranks-per-node 2 -b 1000 -e 1000 --root 1 --algorithm all -d int16
kin barrier 2 --ranks 4 --ranks-per-node 2
timeout 60 "$sstar" broadcast --algorithm halving >"$work/output" 2>&1
[ $? -eq 2 ] || fail "broadcast by halving did not exit with 2"
grep -q 'broadcast cannot be done by halving' "$work/output" || fail "broadcast by halving: $(cat "$work/output")"
timeout 60 "$sstar" reduce --ranks 2 --root 2 >"$work/output" 2>&1
[ $? -eq 2 ] || fail "reduce to a root that is not there did not exit with 2"
grep -q -- '--root 2 is none of the 2 ranks, 0 to 1' "$work/output" || fail "reduce --root 2: $(cat "$work/output")"
refused '--root is for broadcast and reduce' --root 1
refused '--wire-type shortens float' --wire-type half -d double

# A tuning file that would never end, or is none, is refused; nobody waits for it.
mkfifo "$work/fifo"
untuned() { # FILE PATTERN
    SSTAR_TUNING=$1 timeout 60 "$sstar" allreduce --ranks 2 --ranks-per-node 1 -e 256 >"$work/output" 2>&1
    [ $? -eq 1 ] || fail "SSTAR_TUNING=$1 did not exit with 1"
    grep -q "SSTAR_TUNING: $2" "$work/output" || fail "SSTAR_TUNING=$1: $(cat "$work/output")"
}
for path in "$work/fifo" /dev/zero "$work"; do
    untuned "$path" "$path is not a file of at most 1048576 bytes"
done
for line in 'alreduce 2 2 0 ring 4096' 'allreduce 2 2 0 ring 4096 8' 'allreduce 2 2 0 ring -1' \
    'allreduce 2 2 0 star 4096' 'allreduce 2 2 0 ring 4294967295' 'cores 2 2 0' 'cores 2 2 1 1'; do
    printf '# by hand\n%s\n' "$line" >"$work/tuning"
    untuned "$work/tuning" 'line 2 of .* is not '
done

# --explain: each algorithm at each size, and from where on auto takes what.
kin allreduce 44 --ranks 4 --ranks-per-node 2 -b 64 -e 1024 -f 16 --wire 20,2,1 --explain
[ "$(grep -c ' auto$' "$work/output")" -eq 2 ] || fail "explain: $(cat "$work/output")"
grep -q '^# auto takes: [a-z-]* from 64 B' "$work/output" || fail "explain names no crossover: $(cat "$work/output")"

# --wire-type: values that the short type holds are summed exactly.
for type in half bfloat16 fp8_e4m3 fp8_e5m2; do
    kin allreduce 22 --ranks 4 --ranks-per-node 2 -b 4K -e 4K --algorithm all --wire-type "$type"
done
refused '--wire-type takes float, half, bfloat16, fp8_e4m3 or fp8_e5m2' --wire-type int8

# --overlap: what is hidden; with a thread and without.
for thread in "" --progress-thread; do
    # shellcheck disable=SC2086
    kin allreduce 2 --ranks 2 --ranks-per-node 1 -b 4K -e 64K -f 16 --overlap 0.5 $thread
    [ "$(grep -c '^      "hidden": -\?[0-9]' "$work/record.json")" -eq 2 ] || fail "overlap: $(cat "$work/output")"
done
refused '--overlap takes ms from 0.001' --overlap 0
refused 'choose one' --overlap 1 --explain

"$sstar" allreduce -b 8 -e 8 -n 1 --json "$work/none/x.json" >"$work/output" 2>&1 &&
    fail "a record that cannot be written is no failure"

[ "$failures" -eq 0 ] || exit 1
echo "sstar allreduce: all as it must be"
