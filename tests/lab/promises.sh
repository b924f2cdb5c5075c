#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What the lab itself promises: exit statuses are the command's, a guest that dies is told as that, and a
# user without privileges and with 64 KB of locked memory is one; words and bytes come through as they are; nothing is left
# behind. Each is a boot. promises.sh LAB BUILD_DIR
set -euo pipefail
lab=$1 sstar=$2/sstar failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

passed() { # BEGAN TEXT
    printf 'passed  %3d s  %s\n' $((SECONDS - $1)) "$2"
}

did_not() { # BEGAN TEXT
    failed=1
    sed 's/^/    | /' "$work/output"
    printf 'FAILED  %3d s  %s\n' $((SECONDS - $1)) "$2"
}

# expect STATUS PATTERN OPTION... -- COMMAND...
expect() {
    local status=$1 pattern=$2 rc=0 began=$SECONDS
    shift 2
    "$lab" run --timeout 120 "$@" >"$work/output" 2>&1 </dev/null || rc=$?
    if [ "$rc" -eq "$status" ] && grep -Eq "$pattern" "$work/output"; then
        passed $began "status $status: $*"
        return
    fi
    did_not $began "status $rc, not $status, or it did not say \"$pattern\": $*"
}

# The words of a command, its output of any bytes, and a folder whose name is a trap for QEMU's options.
as_it_is() {
    local rc=0 began=$SECONDS text="words, bytes and files come through as they are" out="$work/o u,t"
    local words=('a b' "it's" "\"\$HOME\"" '' $'two\nlines' '*' \\)
    # shellcheck disable=SC2016 # for the guest's shell
    "$lab" run --timeout 120 --out "$out" -- bash -c 'ibv_devinfo >&2; cat /bin/true; printf "<%s>" "$@" >"$LAB_OUT/words"' \
        x "${words[@]}" >"$work/bytes" 2>"$work/output" </dev/null || rc=$?
    if [ "$rc" -eq 0 ] && cmp "$work/bytes" /bin/true >>"$work/output" && grep -q 'hca_id:.*rxe0' "$work/output" &&
        [ "$(cat "$out/words")" = "$(printf '<%s>' "${words[@]}")" ]; then
        passed $began "$text"
    else
        did_not $began "$text (status $rc)"
    fi
}

# ended SIGNAL WHOM STATUS PATTERN: QEMU or the lab is sent a signal; nothing may be left.
ended() {
    local began=$SECONDS text="$2 is ended by $1: status $3" rc=0 qemu='' lab_pid
    mkdir "$work/tmp"
    TMPDIR=$work/tmp env --default-signal=INT "$lab" run -- sleep 60 >"$work/output" 2>&1 </dev/null &
    lab_pid=$!
    until qemu=$(pgrep -n -f "^qemu.*$work/tmp") || [ $((SECONDS - began)) -gt 20 ]; do
        sleep 0.1
    done
    if [ "$2" = QEMU ]; then kill "-$1" "$qemu"; else kill "-$1" $lab_pid; fi
    wait $lab_pid || rc=$?
    if [ "$rc" -ne "$3" ] || ! grep -Eq "$4" <<<"$(cat "$work/output")" || pgrep -f "^qemu.*$work/tmp" || ! rmdir "$work/tmp"; then
        did_not $began "$text, but it was $rc, or something was left, or it did not say \"$4\""
        rm -rf "$work/tmp"
        return
    fi
    passed $began "$text"
}

as_it_is
ended KILL QEMU 125 'killed by signal 9'
ended INT "the lab" 130 '' # it may not have got as far as to say a word
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
