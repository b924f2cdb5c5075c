#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# sstar overlap from outside: its rows, what it refuses, the picture. No figure is compared with a time.
set -u
# shellcheck source=tests/program.sh
. "$(dirname "$0")/program.sh"
here=$(dirname "$0")
overlap=("$sstar" overlap --ib-dev softnic --rounds 1)

printf 'layer,parameters,flops\nembedding,40000,0\na,20000,5\nb,20000,3\nc,0,2\n' >"$work/small.csv"
expect 0 '^# best: buckets of' "${overlap[@]}" "$work/small.csv" --wire '20,2,0.5' --buckets 0.05,0.1,1 \
    --json "$work/thread.json" --csv "$work/out.csv"
expect 0 'moved on by calls' "${overlap[@]}" "$work/small.csv" --progress calls --buckets 0.01 --scale 1,10 --json "$work/calls.json"
expect 0 'moved on by nothing' "${overlap[@]}" "$work/small.csv" --progress none --buckets 0.01,1 --compute 0.5 \
    --ranks 4 --ranks-per-node 2 --json "$work/none.json"
SSTAR_ALGORITHM=ring expect 0 '^# best' "${overlap[@]}" "$work/small.csv" --wire '20,2,0.5' --buckets 1 --json "$work/asked.json"
expect 0 '25.56 M parameters' "${overlap[@]}" "$here/../docs/examples/layers-resnet50.csv" --scale 1,1000 --buckets 25 --json "$work/resnet.json"
[ "$(wc -l <"$work/out.csv")" = 4 ] || fail 'the CSV has not a line for each size'
if command -v jq >/dev/null; then
    # Cores that others use are told of.
    expect 0 '^# best' "${overlap[@]}" "$work/small.csv" --wire '20,2,0.5' --buckets 0.1 --json "$work/disturbed.json"
    grep -q 'computing alone took' "$work/output" && said=true || said=false
    counts "$work/disturbed.json" '([.overlap[].compute_us] | max) > 1.5 * .compute_us' "$said"
    for file in thread calls none resnet; do
        counts "$work/$file.json" '[.overlap[].wrong] | add' 0
        counts "$work/$file.json" '[.overlap[] | select(.note == "best")] | length' 1
        counts "$work/$file.json" '[.overlap[] | .time_us > 0 and .reduce_us > 0 and .predicted_us > 0] | unique' '[true]'
    done
    # What is possible follows from the prediction; without a price the computation is as long as the AllReduce was.
    counts "$work/thread.json" '[.overlap[] | .possible_percent - 100 * (.reduce_us + .compute_us - .predicted_us) / .reduce_us | fabs < 0.1] | unique' '[true]'
    counts "$work/asked.json" '.overlap[0] | [.predicted_us, .ratio, .possible_percent]' '[null,null,null]'
    counts "$work/asked.json" '.compute_us > 100' true
    # 0.05 MiB are 13,107 floats, 0.1 are 26,214: c and b, a, embedding; c, b and a, embedding; all.
    counts "$work/thread.json" '[.overlap[].buckets]' '[3,2,1]'
    counts "$work/calls.json" '[.overlap[0].buckets, .overlap[0].bucket_bytes]' '[3,1048]'
    counts "$work/resnet.json" '.parameters' 25557000
    if command -v gnuplot >/dev/null; then
        "$here/../tools/overlap-plot" "$work/thread.json" "$work/overlap.svg" >"$work/output" 2>&1
        grep -q '</svg>' "$work/overlap.svg" || fail 'there is no picture'
    fi
fi

refuse() { expect "$1" "$2" "${overlap[@]}" "${@:3}"; }
bad() { # TEXT WORDS
    printf "%b" "$1" >"$work/bad.csv"
    refuse 1 "bad\.csv:?$2" "$work/bad.csv"
}
bad 'a,1\n' "1: the first line must be 'layer,parameters'"
bad 'layer,parameters\na,1,2\n' '2: 3 fields, but the first line has 2'
bad 'layer,parameters\na,-1\n' "2: parameters are '-1'"
bad 'layer,parameters,flops\na,1,x\n' "2: 'x' is no number"
bad 'layer,parameters\n' ' it holds no layer'
bad 'layer,parameters,microseconds\na,1,0\n' ' it holds no layer'
refuse 1 'nowhere: cannot open it' "$work/nowhere"
refuse 2 'which model'
refuse 2 'one model is taken' a b
refuse 2 '--buckets takes' --buckets 0 a
refuse 2 '--scale takes two numbers' --scale 10 a
refuse 2 '--compute takes' --compute 0 a
refuse 2 '--progress takes thread, calls or none' --progress magic a
refuse 2 '--rounds takes' --rounds 0 a
program_end 'overlap: as it should be'
