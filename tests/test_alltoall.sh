#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# sstar alltoall and sstar routing from outside: what they count, what they refuse.
set -u
# shellcheck source=tests/program.sh
. "$(dirname "$0")/program.sh"

alltoall() { "$sstar" alltoall --ranks 4 --ranks-per-node 2 "$@"; }
shaped=(--wire '20,2,0.5')

# ---- what goes where -----------------------------------------------------------------------------

# Sequences 0 to 3 start on ranks 0 to 3; experts 0,1 live on rank 0, 2,3 on rank 1, and so on.
printf '%s\n' '# top-2 of 8 experts' 0,0,0,0,1 0,1,0,2,7 1,0,1,4,6 2,0,0,0,5 3,0,0,7,6 7,0,1,2,0 >"$work/small.csv"
expect 0 'node was' alltoall --routing "$work/small.csv" --json "$work/small.json" --csv "$work/small.out"
expect 0 'barrier after each layer' alltoall --routing "$work/small.csv" --per-layer --flush-bytes 64 --json "$work/layers.json"
expect 0 ' none +400 ' alltoall --messages 100 --message-bytes 3 --no-check --max-age-us 5 --strategy none,node
expect 0 'on one node' "$sstar" alltoall --ranks 3 --messages 1000 --json "$work/one.json"
expect 0 ' rank +50 ' "$sstar" alltoall --ranks 1 --messages 50 --strategy rank
expect 0 ' node +0 ' alltoall --messages 0
expect 0 ' adaptive +400 ' alltoall "${shaped[@]}" --messages 100 --strategy all --flush marginal --hops 2
"$sstar" routing --sequences 4 --tokens 300 --layers 4 --seed 3 | gzip >"$work/made.gz"
expect 0 'node was [0-9.]+ times (as fast|slower)' alltoall "${shaped[@]}" --routing "$work/made.gz" --json "$work/made.json"
[ "$(sed -n '1s/,.*//p' "$work/small.out")$(wc -l <"$work/small.out")" = strategy6 ] || fail 'the CSV has no line for each strategy'

# Offered load, patterns, traces, sweeps, the ledger.
expect 0 ' rank +400 ' alltoall --rate 20000 --messages 100 --max-age-us 200 --strategy rank
expect 0 ' node +400 ' alltoall --rate 20000 --burst 10 --pattern skewed --messages 100 --strategy node
expect 0 'one hot destination|ledger of node' "$sstar" alltoall "${shaped[@]}" --ranks 6 --ranks-per-node 2 --rate 50000 --poisson \
    --pattern to-one --messages 100 --strategy node --ledger --max-age-us 100 --json "$work/ledger.json"
printf 'time_us,source,destination,bytes\n0,0,3,64\n5,1,0,100\n300,3,1,8\n400,1,2,5000\n' >"$work/trace.csv"
expect 0 ' node +4 ' alltoall --trace "$work/trace.csv" --json "$work/trace.json"
for sweep in bytes age strategy; do
    expect 0 'flush\(B\)|strategy' alltoall "${shaped[@]}" --sweep $sweep --messages 50 --strategy rank,node --json "$work/$sweep.json" --csv "$work/$sweep.out"
    if command -v jq >/dev/null && command -v gnuplot >/dev/null; then
        "$(dirname "$0")/../tools/alltoall-plot" "$work/$sweep.json" "$work/$sweep.svg" >"$work/output" 2>&1
        grep -q '</svg>' "$work/$sweep.svg" || fail "no picture of the sweep of $sweep"
    fi
done

if command -v jq >/dev/null; then
    counts "$work/ledger.json" '.alltoall[0] | [.hottest_node_share, ([.links[].wire_messages] | add) == .wire_messages,
        ([.message_sizes[].count] | add), .memory_bytes > 0, .age_greatest_us > 0]' '[1,true,600,true,true]'
    counts "$work/ledger.json" '.alltoall[0] | [.memory_taken_bytes >= 0.99 * .memory_bytes and .memory_taken_bytes < .memory_bytes + 64e6, .pool_bound_bytes,
        ([.links[] | .pushing_us >= 0 and .copying_us >= 0 and .refused_us >= 0 and .pool_peak_bytes == 0] | all)]' '[true,0,true]'
    counts "$work/trace.json" '[.alltoall[] | .messages, .message_bytes, .cross_messages] | unique' '[3,4,1293]'
    counts "$work/bytes.json" '[.alltoall[].flush_bytes] | unique' '[312,625,1250,2500,5000,10000,20000,40000,80000,160000]'
    counts "$work/age.json" '[.alltoall[].max_age_us] | unique' '[5,10,20,40,80,160,320]'
    for file in small layers one made; do
        counts "$work/$file.json" '[.alltoall[] | .lost, .doubled, .altered] | add' 0
        counts "$work/$file.json" '[.alltoall[].strategy]' '["none","rank","node","mesh","adaptive"]'
    done
    # Of 12 messages 0>3, 1>2, 1>3, 2>0, 3>1 and 3>0 cross nodes; 8 ordered pairs across nodes end.
    for file in small layers; do
        counts "$work/$file.json" '[.alltoall[] | .messages, .cross_messages] | unique' '[6,12]'
    done
    counts "$work/small.json" '.alltoall[0].wire_messages' 14
    counts "$work/layers.json" '.alltoall[0].wire_messages' 22
    counts "$work/one.json" '[.alltoall[] | .cross_messages, .wire_messages] | add' 0
    counts "$work/made.json" '[.alltoall[0].messages, .device_class]' '[19200,"softnic-shaped"]'
    counts "$work/made.json" '.alltoall[0].share_bytes_past_s_star' 0
    counts "$work/made.json" '[.alltoall[] | select(.strategy == "node") | .share_bytes_past_s_star > 0.95]' '[true]'
    counts "$work/made.json" '[.alltoall[] | .wire_histogram | map(.share_bytes) | add | . > 0.999 and . < 1.001] | unique' '[true]'
    counts "$work/made.json" '[.alltoall[] | .predicted_seconds > 0 and .s_star_bytes == 10000] | unique' '[true]'
fi

# ---- memory of a world that is not there -----------------------------------------------------------

expect 0 ' mesh +48000 ' "$sstar" alltoall --memory 1024 --ranks-per-node 8 --flush-bytes 48000 --json "$work/memory.json"
if command -v jq >/dev/null; then
    counts "$work/memory.json" '.alltoall_memory | map({(.strategy): .memory_bytes}) | add | 2 * .mesh < .rank and .adaptive < .mesh + 20 * 1048576' true
fi
expect 2 '--memory takes a whole number' "$sstar" alltoall --memory 0

# ---- what is refused -----------------------------------------------------------------------------

refused() { expect "$1" "$2" alltoall --strategy node "${@:3}"; }
printf '0,0,0,1,2\n0,0,1,3' >"$work/cut.csv"
printf '0,0,0,1,2\n0,0,1,1,-1\n' >"$work/minus.csv"
: >"$work/empty.csv"
head -c 300 "$work/made.gz" >"$work/cut.gz"
refused 1 'cut\.csv:2: .*cut off' --routing "$work/cut.csv"
refused 1 'minus\.csv:2: expert -1' --routing "$work/minus.csv"
[ "$(grep -c 'expert -1' "$work/output")" = 1 ] || fail 'not one rank says it for all'
refused 1 'empty\.csv: it holds no routing line' --routing "$work/empty.csv"
refused 1 'cut\.gz:.*cut off' --routing "$work/cut.gz"
refused 1 'sstar:1: byte 0x7f' --routing "$sstar"
refused 1 'small\.csv:3: expert 7: there are 0 to 3' --routing "$work/small.csv" --experts 4
refused 1 'nowhere: cannot open it: No such file' --routing "$work/nowhere"
refused 2 'strategy takes none, rank, node, mesh' --strategy best
refused 2 'no room for what the check needs' --message-bytes 7
refused 2 'message-bytes takes' --message-bytes 0
refused 2 'flush-bytes takes' --flush-bytes 1
refused 2 'max-age-us takes' --max-age-us -1
refused 2 'is for a routing' --per-layer
refused 2 'flush takes bytes or marginal' --flush soon
refused 2 'hops takes' --hops 4
refused 2 'pattern takes uniform, skewed, to-one or others' --pattern hot
refused 2 'rate takes' --rate 0
refused 2 'add --rate' --poisson
refused 2 'exclude each other' --rate 5 --poisson --burst 2
refused 2 'sweep takes bytes, age or strategy' --sweep nothing
refused 2 'go with neither' --rate 5 --no-check
printf '0,0,1,64\n5,0,9,64\n' >"$work/far.csv"
printf '9,0,1,64\n5,0,1,64\n' >"$work/back.csv"
refused 1 'far\.csv:2: destination is .9.' --trace "$work/far.csv"
refused 1 'back\.csv:2: time 5 us after 9 us' --trace "$work/back.csv"
printf '0,0,1,8\n12000000,1,0,8\n' >"$work/pause.csv"
refused 1 'no message is due for 12 s, .* nothing has moved for 6 s: give --timeout 18' --timeout 6 --trace "$work/pause.csv"
refused 1 'no message is due for 100 s, .* --timeout 150' --messages 4 --rate 0.01
refused 1 'nowhere: ' --trace "$work/nowhere"
printf '0,0,1,64\n10,1,2,640' >"$work/cut.csv" # of 6400, perhaps
refused 1 'cut\.csv:2: the last line has no end' --trace "$work/cut.csv"
mkfifo "$work/pipe" # nobody writes: it is not even opened
refused 1 'pipe: it is a pipe' --trace "$work/pipe"
refused 1 'pipe: it is a pipe' --routing "$work/pipe"
refused 2 'is too much' surplus
expect 2 'more than the 2 experts' "$sstar" routing --experts 2 --top 3
expect 2 'top takes' "$sstar" routing --top 0

program_end "alltoall: as it should be"
