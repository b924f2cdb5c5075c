# SPDX-License-Identifier: MIT
# Sourced after tests/dropin.sh by tests of librdmacm's calls on softnic.
# shellcheck shell=bash disable=SC2154 # build and work are dropin.sh's

# Numbers of our own, as nobody else on this machine should take them.
cm_port=$((21000 + $$ % 10000))

# cm_listening PORT [SPACE]: until an id listens there; 10 s at most. A port number is an abstract
# unix socket; 00010000 says that it listens.
cm_listening() {
    local tries=0
    until awk -v name="@softnic-cm-$(id -u)-${2:-106}-$1" \
        '$NF == name && $4 == "00010000" { found = 1 } END { exit !found }' /proc/net/unix; do
        tries=$((tries + 1))
        [ "$tries" -lt 500 ] || return 1
        sleep 0.02
    done
}

# cm_pair SPACE SERVER... -- CLIENT...: both to end with 0; PORT in their arguments is a fresh number.
# Output of both is left in $work/server and $work/client.
cm_pair() {
    local space=$1 one=() other=() pid status=0
    shift
    cm_port=$((cm_port + 1))
    while [ "$1" != -- ]; do
        one+=("${1/#PORT/$cm_port}")
        shift
    done
    shift
    other=("${@/#PORT/$cm_port}")
    softnic "${one[@]}" >"$work/server" 2>&1 &
    pid=$!
    cm_listening "$cm_port" "$space" || status=1
    softnic "${other[@]}" >"$work/client" 2>&1 || status=1
    wait "$pid" || status=1
    [ "$status" -eq 0 ] || {
        fail "${other[*]}"
        tail -n 15 "$work/server" "$work/client"
    }
}

# cm_start LOG PROGRAM [ARGUMENT...]: in the background, as one process whose number is in $started,
# so that it can be killed itself. It does not outlive the test.
started=
cm_start() {
    local log=$1
    shift
    (ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="${SOFTNIC_TEST_PRELOAD:-}" exec "$build/softnic-run" "$@") >"$log" 2>&1 &
    started=$!
    trap '[ -z "$started" ] || kill -9 "$started"; rm -rf "$work"' EXIT
}
cm_kill() {
    kill -9 "$started"
    wait "$started" 2>/dev/null || true
    started=
}
