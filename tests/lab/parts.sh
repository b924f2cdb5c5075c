# SPDX-License-Identifier: MIT
# Sourced by the scripts that run in the lab's guest: parts with a name, a deadline and a result.
# shellcheck shell=bash disable=SC2034 # those who source this use its variables

build=${1:?the folder of the build}
sstar=$build/sstar
failed=0
# With two hosts every part begins with a meeting, and only host 0 speaks for both.
meetings=0
# Everything, or a sample that fits into continuous integration.
full=${SSTAR_TEST_FULL:-0}
log=/tmp/part.log

# Of a suite: how many of its checks passed, how many failed as listed, how many do not apply.
summary() {
    awk '/^\[ +OK \]/ { ok++ } /^\[EXCEPTION \]/ { listed++ } /^\[ +SKIPPED \]/ && !/listed below/ { skipped[$0] }
        END { if (ok) printf " (%d checks passed, %d fail as listed, %d skipped)", ok - listed, listed,
                             length(skipped) }' "$log"
}

part() { # TEXT COMMAND...
    local text=$1 rc=0 began
    shift
    lab-meet "$((++meetings))" 120 || { failed=1; return; }
    began=$SECONDS
    "$@" >"$log" 2>&1 </dev/null || rc=$?
    if [ $rc -eq 0 ]; then
        printf 'passed  %3d s  %s%s\n' $((SECONDS - began)) "$text" "$(summary)"
        return
    fi
    failed=1
    printf '%s\n' "---- $text: status $rc"
    tail -n 200 "$log"
    printf 'FAILED  %3d s  %s\n' $((SECONDS - began)) "$text"
}

# The program must have chosen SoftRoCE by itself and say so.
on_softroce() {
    grep -q softroce "$log" || { printf 'it did not run on SoftRoCE\n'; return 1; }
}

# N ranks of this host; of two hosts, N on each.
ranks() { # SECONDS N ARG...
    local seconds=$1 n=$2
    shift 2
    timeout -k 5 "$seconds" lab-ranks "$n" "$sstar" "$@" || return
    [ "$LAB_HOST" -ne 0 ] || on_softroce
}
