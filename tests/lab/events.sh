# SPDX-License-Identifier: MIT
# Sourced after faults.sh, on one host: what a device says by itself reaches the user as a sentence.
# shellcheck shell=bash disable=SC2154 # from parts.sh
# shellcheck disable=SC2317 # called through part

# Long enough that the kernel tells, and less than the device tries again.
port_told() {
    flapping 1.5 || return
    cat "$log"
    grep -q 'device rxe0 port 1: the port is down' "$log" && grep -q 'device rxe0 port 1: the port is active again' "$log"
}

events() {
    part "a port that goes down and comes back is told" port_told
    part "a port that is switched off" deadly 'device rxe0.*the port of this rank, which is down|link to rank' ip link set v0 down
    ip link set v0 up
}
