#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What the lab itself promises: exit statuses are the command's, a guest that dies is told as that, and a
# user without privileges and with 64 KB of locked memory is one. Each is a boot. promises.sh LAB BUILD_DIR
set -euo pipefail
lab=$1 sstar=$2/sstar failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# expect STATUS PATTERN OPTION... -- COMMAND...
expect() {
    local status=$1 pattern=$2 rc=0 began=$SECONDS
    shift 2
    "$lab" run --timeout 120 "$@" >"$work/output" 2>&1 </dev/null || rc=$?
    if [ "$rc" -eq "$status" ] && grep -Eq "$pattern" "$work/output"; then
        printf 'passed  %3d s  status %d: %s\n' $((SECONDS - began)) "$status" "$*"
        return
    fi
    failed=1
    sed 's/^/    | /' "$work/output"
    printf 'FAILED  %3d s  status %d, not %d, or it did not say "%s": %s\n' $((SECONDS - began)) "$rc" "$status" \
        "$pattern" "$*"
}

expect 0 'hca_id:.*rxe0' -- ibv_devinfo
# Of two hosts the first that is not 0.
# shellcheck disable=SC2016 # for the guest's shell
expect 7 '\[1\] here' --hosts 2 -- sh -c 'echo here; [ "$LAB_HOST" = 0 ] || exit 7'
expect 125 'VM 0 failed' -- sh -c 'echo c >/proc/sysrq-trigger; sleep 60'
# The limit is too small for a NIC: it works, or says the command that lifts it.
# shellcheck disable=SC2016
expect 1 'ulimit -l' --user --memlock 64 --ranks 2 -- \
    sh -c 'SSTAR_RANKS_PER_NODE=1 exec "$0" allreduce --algorithm ring -b 8 -e 8 -n 1' "$sstar"
expect 0 'through softroce' --user --ranks 2 -- \
    env SSTAR_RANKS_PER_NODE=1 "$sstar" allreduce --algorithm ring -b 8 -e 8 -n 1
exit $failed
