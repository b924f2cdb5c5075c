#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Unmodified programs on ports that misbehave, and their traffic in a capture.
set -euo pipefail
# shellcheck source=tests/dropin.sh
. "$(dirname "$0")/dropin.sh"
need ibv_rc_pingpong

rc() {
    pair ibv_rc_pingpong -g 1 -n 100 -c "$@"
}

# Borne: lost packets, delays, completions that are late for one who sleeps.
softnic_options=(--faults 'seed=5; drop op=send p=0.02; delay op=send p=0.05 by=200us')
rc
rc -N
grep -q 'misbehaves as SOFTNIC_FAULTS says, seed 5 replays it' "$work/client" || fail "the seed is not told"
grep -q 'fault on .*: drop, queue pair 0' "$work/client" || fail "no packet was lost"
softnic_options=(--faults 'late nth=3 by=20ms')
rc -e
rc -t
# What strikes always does not fill the screen.
softnic_options=(--faults 'late by=10us')
rc
[ "$(grep -c 'fault on' "$work/client")" = 20 ] || fail "$(grep -c 'fault on' "$work/client") faults told, not 20"
[ "$(grep -c 'more faults follow' "$work/client")" = 1 ] || fail "it is not said that more follow"

# Not borne: what the program says, on the side where it strikes.
strikes() { # PATTERN PLAN ARGUMENT...
    local pattern=$1 server
    shift
    tcp_port=$((tcp_port + 1))
    softnic_options=()
    softnic ibv_rc_pingpong -g 1 -n 100 -p "$tcp_port" >"$work/server" 2>&1 &
    server=$!
    listening "$tcp_port" || fail "nobody listens"
    softnic_options=(--faults "$1")
    shift
    softnic ibv_rc_pingpong -g 1 -n 100 -p "$tcp_port" "$@" 127.0.0.1 >"$work/client" 2>&1 && fail "the client ended well"
    pkill -P "$server" || true # the server waits for ever
    wait "$server" || true
    grep -q "$pattern" "$work/client" || fail "no '$pattern': $(cat "$work/client")"
}
strikes 'status transport retry counter exceeded (12)' 'drop nth=3 tries=all'
strikes 'status remote access error (10)' 'error nth=2 status=REM_ACCESS_ERR' -N

fails() { # PATTERN PLAN
    softnic_options=(--faults "$2")
    softnic ibv_rc_pingpong -g 1 >"$work/said" 2>&1 && fail "$2: it ended well"
    grep -q "$1" "$work/said" || fail "$2: no '$1': $(cat "$work/said")"
}
fails "Couldn't register MR" 'fail call=reg_mr errno=ENOSPC'
fails "Couldn't create CQ" 'fail call=create_cq'
fails "Couldn't create QP" 'fail call=create_qp'
fails "line 1 column 6: 'ntj' is no key of drop" 'drop ntj=3'
softnic_options=(--faults 'down')
softnic ibv_devinfo >"$work/said" 2>&1 || fail "ibv_devinfo"
grep -q 'state:.*PORT_DOWN' "$work/said" || fail "the port is not down: $(cat "$work/said")"

# Right programs under --check-verbs: ibv_rc_pingpong receives all into one buffer, from which it also sends.
softnic_options=(--check-verbs)
rc -n 10
status=0
softnic "$build/tests/misuse" >"$work/said" 2>&1 || status=$?
[ "$status" -eq 1 ] || fail "misuse ends with $status"
grep -q 'misuse of verbs on .* is in RESET' "$work/said" || fail "misuse: $(cat "$work/said")"
grep -q '^refused' "$work/said" || fail "misuse is not survived: $(cat "$work/said")"
softnic ibv_devinfo >"$work/said" 2>&1 || fail "ibv_devinfo under --check-verbs: $(cat "$work/said")"
timeout 60 "$1" put --ranks 2 -s 64 -n 100 --check-verbs >"$work/said" 2>&1 || fail "sstar put --check-verbs: $(cat "$work/said")"

# Each side's frames in one file.
softnic_options=(--capture "$work/run.pcapng")
rc
[ -s "$work/run.pcapng" ] || fail "no capture"
finish
