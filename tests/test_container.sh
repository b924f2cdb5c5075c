#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The program as in a container without extra privileges: not root, 64 MB of /dev/shm, no /dev/infiniband,
# 64 KB of locked memory, io_uring and reaching into other processes refused by seccomp. What cannot be taken
# away here (mounts, without root) is already so in a real container, or stays.
set -u
tests="test_links test_barrier test_memory"

# ---- confined ---------------------------------------------------------------------------------------

failures=0 checks=0

# expect STATUS PATTERN COMMAND...: status, and a line of what it said ('' for: anything).
expect() {
    local status=$1 pattern=$2 got
    shift 2
    checks=$((checks + 1))
    timeout -k 5 120 "$work/confined" "$@" >"$TMPDIR/output" 2>&1 </dev/null
    got=$?
    if [ "$got" -eq "$status" ] && { [ -z "$pattern" ] || grep -qE -- "$pattern" "$TMPDIR/output"; }; then
        return
    fi
    printf 'FAILED: status %d, not %d, or it did not say "%s": %s\n' "$got" "$status" "$pattern" "$*"
    sed 's/^/    | /' "$TMPDIR/output" | head -n 20
    failures=$((failures + 1))
}

inside() {
    local name
    export TMPDIR=$work/tmp ASAN_OPTIONS=${ASAN_OPTIONS-}:detect_leaks=0 # it would use ptrace
    unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT "${!SSTAR_@}" "${!SOFTNIC_@}"
    ulimit -l 64
    printf 'user %d, /dev/shm of %s, %s KB of locked memory\n' "$(id -u)" \
        "$(df -h --output=size /dev/shm | tail -n 1 | tr -d ' ')" "$(ulimit -l)"
    expect 0 'event loop +ppoll +io_uring is refused' "$work/sstar" info
    expect 0 '^ *softnic0 .* yes' "$work/sstar" devices
    expect 0 'through softnic' "$work/sstar" allreduce --ranks 4 --ranks-per-node 2 \
        --algorithm ring,hierarchical -b 8 -e 1M -f 32 -n 2 -w 1
    # More memory than /dev/shm holds.
    expect 0 '' "$work/sstar" allreduce --ranks 2 --ranks-per-node 1 -b 64M -e 64M -n 1 -w 0
    expect 0 'softnic' "$work/sstar" alltoall --ranks 4 --ranks-per-node 2 --messages 500
    expect 0 'softnic-shaped' "$work/sstar" alltoall --ranks 4 --ranks-per-node 2 --messages 200 \
        --wire 10,2,1
    expect 0 '' "$work/sstar" run -n 3 -- true
    for name in $tests; do
        expect 0 '' "$work/$name"
    done
    name=$(find /dev/shm -maxdepth 1 -user "$(id -un)" -name 'softnic*' | head -n 1)
    if [ -n "$name" ]; then
        printf 'FAILED: left behind: %s\n' "$name"
        failures=$((failures + 1))
    fi
    printf '%d checks, %d failed\n' "$checks" "$failures"
    [ "$failures" -eq 0 ]
    exit
}

# ---- getting there ----------------------------------------------------------------------------------

# In a mount namespace of its own, as root; then not root any more.
enclose() {
    mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm || exit 1
    [ ! -d /dev/infiniband ] || mount -t tmpfs tmpfs /dev/infiniband || exit 1
    exec setpriv --reuid=65534 --regid=65534 --clear-groups -- bash "$work/script" --inside "$work"
}

case $1 in
--inside) work=$2 && inside ;;
--enclose) work=$2 && enclose ;;
esac
built=$(dirname "$(realpath "$1")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Another user may not be able to read the folder of the build.
cp "$built/sstar" "$built/tests/confined" "$work" || exit 1
for name in $tests; do
    cp "$built/tests/$name" "$work" || exit 1
done
cp "$0" "$work/script"
mkdir -m 1777 "$work/tmp"
chmod 755 "$work"
if [ "$(id -u)" -eq 0 ] && unshare -m true 2>/dev/null; then
    unshare -m bash "$work/script" --enclose "$work"
else
    bash "$work/script" --inside "$work"
fi
