# SPDX-License-Identifier: MIT
# Sourced by tests that run programs of others on softnic. $1 is the path of sstar, beside which
# softnic-run was built.
# shellcheck shell=bash

build=$(dirname "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Ports of our own: their names hold our process number.
export SOFTNIC_PORT=t$$
tcp_port=$((20000 + $$ % 10000))
failed=0

# softnic PROGRAM [ARGUMENT...]: on softnic, with a deadline. A sanitizer's library goes first, and
# what a program of others leaks is not ours.
softnic() {
    ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="${SOFTNIC_TEST_PRELOAD:-}" timeout -k 5 100 \
        "$build/softnic-run" "${softnic_options[@]}" "$@"
}
softnic_options=()

fail() {
    printf 'FAILED: %s\n' "$*"
    failed=1
}

finish() {
    exit "$failed"
}

need() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || {
            echo "skipped: there is no $program"
            exit 77
        }
    done
}

# listening PORT: until somebody listens there; 10 s at most.
listening() {
    local hex tries=0
    hex=$(printf ':%04X' "$1")
    until awk -v at="$hex" '$2 ~ at "$" && $4 == "0A" { found = 1 } END { exit !found }' /proc/net/tcp /proc/net/tcp6; do
        tries=$((tries + 1))
        [ "$tries" -lt 500 ] || return 1
        sleep 0.02
    done
}

# pair PROGRAM [ARGUMENT...]: as server, then as client of it, both to end with 0. Output of both
# is left in $work/server and $work/client.
pair() {
    local server status=0
    tcp_port=$((tcp_port + 1))
    softnic "$@" -p "$tcp_port" >"$work/server" 2>&1 &
    server=$!
    listening "$tcp_port" || status=1
    softnic "$@" -p "$tcp_port" 127.0.0.1 >"$work/client" 2>&1 || status=1
    wait "$server" || status=1
    [ "$status" -eq 0 ] || {
        fail "$*"
        tail -n 15 "$work/server" "$work/client"
    }
}
