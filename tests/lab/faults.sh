# SPDX-License-Identifier: MIT
# Sourced after parts.sh, in a lab with --switch: a bad network between the ends of every link, then none
# at all, then no device.
# shellcheck shell=bash disable=SC2154 # from parts.sh
# shellcheck disable=SC2317 # called through part

quick="--algorithm ring -b 8 -e 64K -f 16 -n 3 -w 1"
# Where each message's loss costs a timeout.
few="--algorithm ring -b 1K -e 64K -f 64 -n 1 -w 0"
# So many iterations that it never ends by itself.
endless="--algorithm ring -b 1K -e 1K -n 1000000 -w 1"

packets() {
    cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts
}

# Until the ranks have been at it for a while: COUNT packets more than there were.
await_traffic() { # COUNT
    local until=$((SECONDS + 60)) first
    first=$(packets)
    while [ $(($(packets) - first)) -lt "$1" ] && [ $SECONDS -lt $until ]; do
        sleep 0.1
    done
}

# Right results and nothing said of an error, whatever the network does to packets.
through() { # TEXT NETEM...
    local text=$1 i work=$quick
    shift
    [ "$full" -eq 1 ] || [ "${2-}" != 5% ] || work=$few
    for i in "${ends[@]}"; do
        lab-link "$i" "$@"
    done
    # shellcheck disable=SC2086
    part "sstar allreduce, $text" ranks 120 "$n" allreduce $work
    if [ "$full" -eq 1 ] || [ "$text" = "1 % lost" ]; then
        part "sstar alltoall, $text" ranks 120 "$n" alltoall --strategy none,node --messages 50
    fi
    for i in "${ends[@]}"; do
        lab-link "$i" clean
    done
}

# A cable that is out for less than the devices try again.
flapping() { # SECONDS_OUT
    local rc=0
    ranks 120 "$n" allreduce --algorithm ring -b 1K -e 1K -n 1000 -w 1 &
    await_traffic 300
    [ "$LAB_HOST" -ne 0 ] || lab-link 0 flap "$1"
    wait $! || rc=$?
    return $rc
}

# Ranks of which each writes what it says into a file of its own.
ranks_apart() { # ARG...
    rm -f /tmp/said.*
    # shellcheck disable=SC2016 # for the shell of the rank
    lab-ranks "$n" sh -c '"$0" "$@" >/tmp/said.$RANK 2>&1; echo "status $?" >>/tmp/said.$RANK' "$sstar" "$@"
}

# Do something to the devices while ranks are at work: all must end, within the time that the devices take to
# notice and 5 s, each with a sentence.
deadly() { # PATTERN COMMAND...
    local pattern=$1 began file ended=0
    shift
    # shellcheck disable=SC2086
    ranks_apart allreduce $endless &
    local job=$!
    await_traffic 300
    began=$EPOCHREALTIME
    [ "$LAB_HOST" -ne 0 ] || "$@"
    # An emulated machine may be slow, so a limit that lets nothing hang; then what the sentences promise.
    (sleep 60; kill -KILL $job $(pgrep -f "^$sstar allreduce")) 2>/dev/null &
    wait $job || ended=1
    kill $! 2>/dev/null
    for file in /tmp/said.*; do
        sed "s/^/${file##*.}: /" "$file" | grep -v 'size(B)\|predicted on'
        grep -q '^status 1$' "$file" || { printf '%s: did not end with status 1\n' "$file"; ended=1; }
        grep -Eq "$pattern" "$file" || { printf '%s does not say "%s"\n' "$file" "$pattern"; ended=1; }
    done
    awk -v began="$began" -v now="$EPOCHREALTIME" '
        match($0, /at timeout [0-9]+, retries [0-9]+/) {
            split(substr($0, RSTART, RLENGTH), word, /[ ,]+/)
            detection = 4.096e-6 * 2 ^ word[3] * (word[5] + 1)
        }
        END { took = now - began
              printf "ended %.1f s after it; noticed by the device in %.1f s, and 5 s\n", took, detection
              exit took > detection + 5 + slack }' slack="${SSTAR_TEST_SLACK:-10}" /tmp/said.* || ended=1
    return $ended
}

faults() {
    local link='rank [0-9]+, link to rank [0-9]+ \(.*\), device rxe[01] port 1, GID .*, queue pair 0x.*failed'
    through "1 % lost" loss 1%
    through "5 % lost" loss 5%
    through "reordered" delay 1ms reorder 1%
    through "doubled" duplicate 5%
    through "corrupted" corrupt 1%
    part "a cable that is out for half a second" flapping 0.5
    part "a cable that is out for good" deadly "$link" lab-link 0 down
    lab-link 0 up
}
