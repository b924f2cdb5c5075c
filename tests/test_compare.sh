#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tools/compare: arguments, and one small run with whatever MPI is here. $1: the program sstar.
set -euo pipefail
build=$(cd "$(dirname "$1")" && pwd)
compare=$(cd "$(dirname "$0")/.." && pwd)/tools/compare
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

die() {
    printf 'test_compare: %s\n' "$1" >&2
    exit 1
}

refused() { # STATUS TEXT ARG...
    local status=$1 text=$2 got=0
    shift 2
    "$compare" --build "$build" "$@" >"$work/out" 2>"$work/err" || got=$?
    [ "$got" -eq "$status" ] || die "$*: status $got, not $status: $(cat "$work/err")"
    grep -qF -- "$text" "$work/err" || die "$*: it said: $(cat "$work/err")"
}

for command in jq gnuplot; do command -v $command >/dev/null || { echo "$command is not here"; exit 77; }; done
"$compare" --help | grep -q -- '--rotate' || die "--help lists no options"
refused 2 "'4x'" --sizes 4x
refused 2 "'reduce'" --operations reduce
refused 2 "there is no peer 'nccl'" --peers nccl
refused 2 'whole number from 2' --ranks 1
refused 2 'NAME=COMMAND' --launch srun
refused 2 'no option --fast' --fast 1
refused 2 "'8'" 8

status=0
"$compare" --build "$build" --peers openmpi --operations allreduce,barrier,alltoall --sizes 8,64K --rounds 2 --budget 1 --rotate \
    --shared --csv "$work/c.csv" --json "$work/c.json" --plot "$work/c.svg" >"$work/out" 2>"$work/err" || status=$?
[ "$status" -ne 77 ] || { cat "$work/err"; exit 77; }
[ "$status" -eq 0 ] || die "status $status: $(cat "$work/out" "$work/err")"
jq -e '.compare | length == 5 and all(.us.sstar > 0 and .us.openmpi > 0 and .best == "openmpi" and (.times_us.sstar | length == 2)
    and .least <= .ratio and .ratio <= .greatest)' "$work/c.json" >/dev/null || die "the record: $(cat "$work/c.json")"
[ "$(wc -l <"$work/c.csv")" -eq 6 ] || die "the CSV: $(cat "$work/c.csv")"
grep -q '</svg>' "$work/c.svg" || die "no picture"
grep -q '^# before: a cache line takes' "$work/out" || die "no state of the machine: $(cat "$work/out")"
grep -q '^# stream: two threads move' "$work/out" || die "no stream: $(cat "$work/out")"

# A system that cannot be started is named, with how it was to be.
refused 1 'openmpi has ended; it was started as: /bin/false' --peers openmpi --launch openmpi=/bin/false --sizes 8

# An answer that comes in two parts, the first before compare has waited for long, is one answer.
cat >"$work/halves" <<END
#!/usr/bin/env bash
"$build/sstar" run -n 2 -- "\$@" | while IFS= read -r line; do
    printf '%s' "\${line:0:3}"
    sleep 0.6
    printf '%s\n' "\${line:3}"
done
END
chmod +x "$work/halves"
timeout 60 "$compare" --build "$build" --peers openmpi --launch sstar="$work/halves" --operations barrier --rounds 1 --budget 1 \
    >"$work/out" 2>"$work/err" || die "in halves: $(cat "$work/out" "$work/err")"
