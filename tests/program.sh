# SPDX-License-Identifier: MIT
# Sourced by tests that drive `sstar` from outside; its path is $1. They end with `program_end WORDS`.
# shellcheck shell=bash disable=SC2034
sstar=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT "${!SSTAR_@}" "${!SOFTNIC_@}"
failures=0

fail() {
    printf 'FAILED: %s\n' "$*"
    sed 's/^/    | /' "$work/output" | head -n 20
    failures=$((failures + 1))
}

# expect STATUS PATTERN COMMAND...: status, and a line of what it said.
expect() {
    local status=$1 pattern=$2 got
    shift 2
    "$@" >"$work/output" 2>&1 </dev/null
    got=$?
    if [ "$got" -ne "$status" ]; then
        fail "status $got, not $status: $*"
    elif ! grep -qE -- "$pattern" "$work/output"; then
        fail "did not say '$pattern': $*"
    fi
}

# counts FILE FILTER EXPECTED: of the record.
counts() {
    local got
    got=$(jq -rc "$2" "$1")
    [ "$got" = "$3" ] || { echo "$2 of $1 is $got" >"$work/output"; fail "$2 is $got, not $3"; }
}

program_end() {
    [ "$failures" -eq 0 ] || exit 1
    echo "$*"
}
