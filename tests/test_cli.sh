#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The program from outside: what is wrong is refused with a sentence and the right status, what is
# right ends with 0, and nothing is left running or lying about.
# shellcheck disable=SC2016 # many of the programs run here are shells, with $ of their own
set -u
sstar=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT "${!SSTAR_@}" "${!SOFTNIC_@}"
failures=0 checks=0

fail() {
    printf 'FAILED: %s\n' "$*"
    sed 's/^/    | /' "$work/output" | head -n 20
    failures=$((failures + 1))
}

# expect STATUS PATTERN COMMAND...: status, and a line of what it said ('' for: says nothing).
expect() {
    local status=$1 pattern=$2 got
    shift 2
    checks=$((checks + 1))
    "$@" >"$work/output" 2>&1 </dev/null
    got=$?
    if [ "$got" -ne "$status" ]; then
        fail "status $got, not $status: $*"
    elif [ -z "$pattern" ] && [ -s "$work/output" ]; then
        fail "should have said nothing: $*"
    elif [ -n "$pattern" ] && ! grep -qE -- "$pattern" "$work/output"; then
        fail "did not say '$pattern': $*"
    fi
}

# wait_for COMMAND...: until it succeeds; a minute is more than it can need.
wait_for() {
    local i
    for ((i = 0; i < 1200; i++)); do
        "$@" && return 0
        sleep 0.05
    done
    fail "never came true: $*"
    return 1
}

names() { # of files in shared memory that are ours
    find /dev/shm -maxdepth 1 -user "$(id -un)" \( -name 'softnic*' -o -name 'sstar*' \) | sort
}

# ---- the frame -----------------------------------------------------------------------------------

expect 0 '^sstar [0-9]+\.[0-9]+\.[0-9]+$' "$sstar" --version
expect 0 '^Usage: sstar COMMAND' "$sstar" help
expect 0 '^Usage: sstar COMMAND' "$sstar" --help
expect 2 '^Usage: sstar COMMAND' "$sstar"
expect 2 "there is no command 'frobnicate'" "$sstar" frobnicate
expect 2 "there is no command 'frobnicate'" "$sstar" help frobnicate
commands=$("$sstar" help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' | grep -v '^help$')
for command in $commands; do
    expect 0 "^Usage: sstar $command" "$sstar" help "$command"
    expect 0 "^Usage: sstar $command" "$sstar" "$command" --help
    expect 0 '^sstar [0-9]' "$sstar" "$command" --version
    expect 2 "^sstar $command: unrecognized option" "$sstar" "$command" --frobnicate
done
measuring=$(printf '%s\n' "$commands" | grep -xE 'fit|put|allreduce|alltoall')

# ---- the launcher --------------------------------------------------------------------------------

expect 2 '-n takes a whole number from 1 to 1024' "$sstar" run -n 0 -- true
expect 2 '-n takes a whole number' "$sstar" run -n -1 -- true
expect 2 '-n takes a whole number' "$sstar" run -n 1025 -- true
expect 2 '-n takes a whole number' "$sstar" run -n 2x -- true
expect 2 'how many ranks' "$sstar" run -- true
expect 2 'no program to run' "$sstar" run -n 2
expect 2 'no program to run' "$sstar" run -n 2 --
expect 2 '--ranks-per-node 3 is more than the 2 ranks' "$sstar" run -n 2 --ranks-per-node 3 -- true
expect 2 '--ranks-per-node takes' "$sstar" run -n 2 --ranks-per-node 0 -- true
expect 127 "cannot run './nosuchprogram'.*No such file" "$sstar" run -n 3 -- ./nosuchprogram
expect 126 "cannot run '$work'.*Permission denied" "$sstar" run -n 3 -- "$work"
expect 0 '' "$sstar" run -n 3 -- true
expect 0 '' "$sstar" run -n 3 true
expect 1 'rank [0-2] \(pid [0-9]+\) ended with status 1' "$sstar" run -n 3 -- false
expect 7 'rank 2 .* status 7' "$sstar" run -n 3 -- sh -c 'test "$RANK" != 2 || exit 7'
expect 77 '' "$sstar" run -n 2 -- sh -c 'exit 77'
expect 137 'rank 1 .* killed by signal 9' "$sstar" run -n 3 -- sh -c 'test "$RANK" != 1 || kill -9 $$'
expect 0 '^1 of 3, 1 of 2, 2$' "$sstar" run -n 3 --ranks-per-node 2 -- \
    sh -c 'echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $SSTAR_RANKS_PER_NODE"'
expect 0 '^2 of 3, 0 of 1, 2$' env SSTAR_RANKS_PER_NODE=2 "$sstar" run -n 3 -- \
    sh -c 'echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $SSTAR_RANKS_PER_NODE"'
expect 0 '^127\.0\.0\.1:[0-9]+ [0-9a-f]{32}$' "$sstar" run -n 2 -- \
    sh -c 'echo "$MASTER_ADDR:$MASTER_PORT $SSTAR_TOKEN"'
expect 2 'SSTAR_QP' env SSTAR_QP=many "$sstar" run -n 2 -- true

# Each rank says who it is and then sleeps, once itself and once behind a shell that waits for it.
started() { [ "$(find "$work" -name 'pid.*' | wc -l)" -eq "$1" ]; }
running() { local file; for file in "$work"/pid.*; do kill -0 "$(cat "$file")" 2>/dev/null && return 0; done; return 1; }
gone() { ! running; }
export work
ended_by() { # SIGNAL STATUS: of the launcher while its ranks sleep
    checks=$((checks + 1))
    rm -f "$work"/pid.*
    "$sstar" run -n 3 -- sh -c 'sh -c "echo \$\$ >$work/tmp.in.$RANK; mv $work/tmp.in.$RANK $work/pid.in.$RANK; exec sleep 600" &
        echo $$ >"$work/tmp.$RANK"; mv "$work/tmp.$RANK" "$work/pid.$RANK"; wait' >"$work/output" 2>&1 &
    local launcher=$! got
    wait_for started 6 || return
    kill -"$1" "$launcher"
    wait "$launcher" 2>/dev/null
    got=$?
    [ "$got" -eq "$2" ] || fail "the launcher ended with $got, not $2, on SIG$1"
    if [ "$1" = KILL ]; then
        cat "$work"/pid.in.* | xargs kill # what the ranks started: nobody is left to end it
    fi
    wait_for gone
}
ended_by TERM 143
ended_by HUP 129
ended_by KILL 137

# ---- options that every measurement has ----------------------------------------------------------

for command in $measuring; do
    expect 2 '--ranks takes a whole number from 1 to 1024' "$sstar" "$command" --ranks 0
    expect 2 '--ranks takes' "$sstar" "$command" --ranks many
    expect 2 '--ranks-per-node takes' "$sstar" "$command" --ranks-per-node 0
    expect 2 '--ranks-per-node 3 is more than the 2 ranks' "$sstar" "$command" --ranks 2 --ranks-per-node 3
    expect 2 '--gid-index takes' "$sstar" "$command" --gid-index=-2
    expect 2 '--connect takes exchange or rdmacm, not .tcp.' "$sstar" "$command" --connect tcp
    expect 2 '--traffic-class takes a whole number from 0 to 255' "$sstar" "$command" --traffic-class 256
    expect 2 '--service-level takes a whole number from 0 to 15' "$sstar" "$command" --service-level 16
    expect 1 'device softnic .* librdmacm does not know it; leave out --connect rdmacm' \
        "$sstar" "$command" --ranks 2 --ranks-per-node 1 --ib-dev softnic --connect rdmacm
    expect 2 '-qp? takes' "$sstar" "$command" --qp 0
    expect 2 '-qp? takes' "$sstar" "$command" --qp 17
    expect 2 '--wire takes three numbers' "$sstar" "$command" --wire 120,10
    expect 2 '--wire takes three numbers' "$sstar" "$command" --wire -1,10,0.1
    expect 2 '--wire takes three numbers' "$sstar" "$command" --wire nan,10,0.1
    expect 2 '--timeout takes' "$sstar" "$command" --timeout 0
    expect 2 '--seed takes' "$sstar" "$command" --seed x
    expect 2 '--ib-dev takes' "$sstar" "$command" --ib-dev ''
    expect 2 'option .--ib-dev. requires an argument' "$sstar" "$command" --ib-dev
    expect 2 '--order takes strict, relaxed,SEED' "$sstar" "$command" --order relaxed
    expect 2 'SSTAR_WIRE' env SSTAR_WIRE=fast "$sstar" "$command" --ranks 2
    expect 2 "SSTAR_ALGORITHM is 'rign', which is no algorithm" env SSTAR_ALGORITHM=rign "$sstar" "$command" --ranks 2
    expect 1 "sstar $command: cannot write --json .*No such file" "$sstar" "$command" --json "$work/no/where"
    expect 1 "sstar $command: cannot write --csv .*Is a directory" "$sstar" "$command" --csv "$work"
    expect 1 "nosuchdevice" "$sstar" "$command" --ranks 2 --ranks-per-node 1 --ib-dev nosuchdevice
    expect 2 'the launcher \(sstar\) started 3' "$sstar" run -n 3 -- "$sstar" "$command" --ranks 2
done

# Ranks that somebody starts one by one with different work do not wait for each other.
by_hand() { # OPTIONS OF RANK 0 -- OPTIONS OF RANK 1
    local first=() port=$((20000 + RANDOM % 9000))
    while [ "$1" != -- ]; do
        first+=("$1")
        shift
    done
    shift
    export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
    RANK=0 timeout 60 "$sstar" "${first[@]}" >"$work/first" 2>&1 &
    RANK=1 timeout 60 "$sstar" "$@"
    local status=$?
    unset WORLD_SIZE MASTER_ADDR MASTER_PORT
    wait "$!" || status=$?
    return "$status"
}
expect 2 "rank 0 was started as 'sstar allreduce -e 32K --seed 1' and rank 1 as 'sstar allreduce -e 8K --seed 1'" \
    by_hand allreduce -e 32K -- allreduce -e 8K
expect 2 "'sstar allreduce --seed 1' and rank 1 as 'sstar allreduce --seed 2'" by_hand allreduce -- allreduce --seed 2
expect 2 "'sstar control-path .*'sstar control-path --path proxy" by_hand control-path -- control-path --path proxy
expect 0 '' by_hand allreduce -e 8 --csv "$work/by-hand.csv" -- allreduce -e 8

# ---- sstar put -----------------------------------------------------------------------------------

expect 2 'a put is between 2 ranks' "$sstar" put --ranks 3
expect 2 'a put is between 2 ranks' "$sstar" run -n 3 -- "$sstar" put
expect 2 'the 2 ranks' "$sstar" put --ranks-per-node 3
expect 2 '-s takes a size' "$sstar" put -s 0
expect 2 '-s takes a size' "$sstar" put -s 2G
expect 2 '-n takes a whole number' "$sstar" put -n 0
expect 2 '-qp? takes' "$sstar" put -q 0
expect 2 '--post-list 8 is more than --tx-depth 4' "$sstar" put --bandwidth -l 8 -t 4
expect 2 'Too many arguments' "$sstar" put surplus

before=$(names)
expect 0 ' #bytes +#iterations +t_min\[usec\] +t_max\[usec\] +t_typical\[usec\] +t_avg\[usec\] +t_stdev\[usec\] +99%\[usec\] +99\.9%\[usec\]' \
    "$sstar" put -n 50 -F
expect 0 '^ +8 +50 .* softnic$' "$sstar" put -n 50 -s 8 --json "$work/latency.json" --csv "$work/latency.csv"
expect 0 '^ +64 +20 .* softnic-shaped$' "$sstar" put -n 20 -s 64 --wire 50,5,0.5 --get --json "$work/shaped.json"
expect 0 ' #bytes +#iterations +BW peak\[MB/sec\] +BW average\[MB/sec\] +MsgRate\[Mpps\]' \
    "$sstar" put --bandwidth -n 100
expect 0 '^ +65536 +100 ' "$sstar" put --bandwidth -n 100 -q 1 -t 16 -l 4 --json "$work/bandwidth.json"
expect 0 '^ +1000 +7 ' "$sstar" put --bandwidth --get -n 7 -s 1000 -t 4
expect 0 '^ +8388608 +3 ' "$sstar" put -a -n 3
expect 0 '^ +8388608 +3 ' "$sstar" put -a -n 3 --bandwidth --get
expect 0 '^ +1048576 +10 .* memory$' "$sstar" put --ranks-per-node 2 -s 1M -n 10
expect 0 '^ +2 +10 ' "$sstar" run -n 2 -- "$sstar" put -n 10
expect 0 '^size_bytes|,size_bytes' cat "$work/latency.csv"

if command -v jq >/dev/null; then
    expect 0 '^8 50 softnic true true$' jq -r \
        '.put[0] | "\(.size_bytes) \(.iterations) \(.device_class) \(.min_us <= .typical_us) \(.typical_us <= .p99_us)"' \
        "$work/latency.json"
    expect 0 '^put 2 1 softnic true$' jq -r \
        '"\(.command) \(.ranks) \(.ranks_per_node) \(.device_class) \(.command_line | contains("-n 50"))"' "$work/latency.json"
    # A get on that wire cannot take less than 2 alpha + S/beta.
    expect 0 '^get softnic-shaped true 50 5 0\.5$' jq -r \
        '"\(.put[0].operation) \(.device_class) \(.put[0].min_us >= 100) \(.wire.alpha_us) \(.wire.gap_us) \(.wire.beta_GBps)"' \
        "$work/shaped.json"
    # Four work requests per doorbell.
    expect 0 '^true 25$' jq -r '.put[0] | "\(.peak_MBps >= .average_MBps) \(.doorbells)"' "$work/bandwidth.json"
fi

# ---- files and limits that stand in the way ------------------------------------------------------

: >"$work/empty"
head -c 3000 "$sstar" >"$work/binary"
printf '0,0,0,1,2\n0,0,1,-1,3\n' >"$work/minus"
"$sstar" routing --tokens 20 | gzip >"$work/whole.gz"
head -c 500 "$work/whole.gz" >"$work/cut.gz"
route() { expect "$1" "$2" "$sstar" alltoall --ranks 2 --ranks-per-node 1 --strategy node --routing "$work/$3"; }
route 0 'node' whole.gz
route 1 'nosuch.*No such file' nosuch
route 1 'empty' empty
route 1 'binary' binary
route 1 'expert -1' minus
route 1 'cut.gz.*cut off' cut.gz
route 1 'Is a directory' .
limited() { (ulimit "$1" "$2" && shift 2 && "$@"); }
# Wherever the descriptors run out (how many there are at first depends on who starts us), it says so.
enough=0
for ((descriptors = 6; descriptors < 40; descriptors++)); do
    checks=$((checks + 1))
    limited -n "$descriptors" "$sstar" put -n 10 >"$work/output" 2>&1 </dev/null
    status=$?
    enough=$((status == 0 ? enough + 1 : enough))
    { [ "$status" -eq 0 ] || grep -qF 'ulimit -n' "$work/output"; } ||
        fail "status $status with $descriptors file descriptors, and no word of ulimit -n"
done
if [ "$enough" -eq 0 ] || [ "$enough" -eq 34 ]; then fail "$enough of 34 limits were enough"; fi
if unshare -rm true 2>/dev/null; then # a small and a locked /dev/shm of our own
    expect 1 'rank [01] .*/dev/shm.*No space left' unshare -rm sh -c \
        'mount -t tmpfs -o size=4k none /dev/shm && echo full >/dev/shm/full && exec "$0" put -n 10' "$sstar"
    expect 1 'rank [01] .*/dev/shm.*Read-only' unshare -rm sh -c \
        'mount -t tmpfs -o ro none /dev/shm && exec "$0" put -n 10' "$sstar"
fi

# ---- sstar devices, sstar info -------------------------------------------------------------------

expect 0 '^ +softnic' "$sstar" devices
expect 0 'is chosen: ' env SSTAR_IB_HCA=softnic "$sstar" devices
expect 1 'nosuchdevice' env SSTAR_IB_HCA=nosuchdevice "$sstar" devices
expect 2 'Too many arguments' "$sstar" devices surplus
expect 0 'SSTAR_QP +7 +(SSTAR_QP|environment)' env SSTAR_QP=7 "$sstar" info
expect 0 'event loop +(io_uring|ppoll) ' "$sstar" info
expect 0 '/dev/shm free' "$sstar" info
expect 0 'launcher +sstar +rank 1 of 2; rank 0 listens at 127\.0\.0\.1:[0-9]+ ' "$sstar" run -n 2 -- "$sstar" info
expect 0 'launcher +openmpi$' env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 "$sstar" info
expect 2 'SSTAR_TIMEOUT' env SSTAR_TIMEOUT=never "$sstar" info
if command -v jq >/dev/null; then
    "$sstar" devices --json - >"$work/devices.json"
    expect 0 '^true$' jq '[.devices[] | select(.class | startswith("softnic")) | .gids | length > 0] | any' \
        "$work/devices.json"
    env SSTAR_IB_HCA=softnic "$sstar" info --json - >"$work/info.json"
    expect 0 '^softnic ' jq -r '.settings[] | select(.variable == "SSTAR_IB_HCA") | "\(.value) \(.origin)"' \
        "$work/info.json"
    expect 0 '^softnic' jq -r '.devices[] | select(.chosen) | .device' "$work/info.json"
fi
# A record on stdout stands there alone.
recorded() { "$sstar" allreduce --ranks 2 -e 8 "$@" 2>"$work/table"; }
expect 0 '^\{$' recorded --json -
expect 0 '^ +8 ' cat "$work/table"
recorded --json - >"$work/record.json"
expect 1 '' grep -v '^[ {}]' "$work/record.json"
recorded --csv - >"$work/record.csv"
expect 0 '^algorithm,' head -n 1 "$work/record.csv"
expect 2 '--json and --csv would both write to standard output' "$sstar" allreduce --ranks 2 --json - --csv -
expect 2 '--json and --csv would both write to same' "$sstar" allreduce --ranks 2 --json same --csv same
if [ -c /dev/full ]; then
    into_full() { "$@" >/dev/full; }
    expect 1 'cannot write --json -: No space' into_full "$sstar" allreduce --ranks 2 -e 8 --json -
    expect 1 'cannot write to standard output: No space' into_full "$sstar" info
    expect 1 'cannot write to standard output: ' into_full "$sstar" allreduce --ranks 2 -e 8
    expect 1 'cannot write to standard output: ' into_full "$sstar" allreduce --help
fi
# Where nobody can read it, it is not printed as if somebody did; no socket gets the numbers 0 and 1.
into_nothing() { "$@" <&- >&-; }
expect 1 'cannot write to standard output: Bad file' into_nothing "$sstar" --version
expect 1 'cannot write to standard output: ' into_nothing "$sstar" allreduce --ranks 2 --ranks-per-node 1 -e 8
expect 0 '' into_nothing "$sstar" run -n 2 -- true
without_input() { "$@" <&-; }
expect 0 '^ +8 ' without_input "$sstar" allreduce --ranks 2 --ranks-per-node 1 -e 8
# A progress line is for a terminal that can erase it.
if command -v script >/dev/null; then
    on_terminal() { TERM=$1 script -qec "'$sstar' allreduce --ranks 2 -e 8" /dev/null </dev/null; }
    checks=$((checks + 2))
    on_terminal xterm | grep -q $'\033\\[K' || { failures=$((failures + 1)); echo 'no progress line on a terminal'; }
    ! on_terminal dumb | grep -q $'\033\\[K' || { failures=$((failures + 1)); echo 'a progress line on a dumb terminal'; }
fi
nothing_new() { [ -z "$(comm -13 <(printf '%s\n' "$before") <(names))" ]; }
checks=$((checks + 1))
wait_for nothing_new

printf '%d checks, %d failed\n' "$checks" "$failures"
[ "$failures" -eq 0 ]
