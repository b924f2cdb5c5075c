#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# libsoftnic.so and softnic-run: the calls that are there, the devices that programs see.
set -euo pipefail
# shellcheck source=tests/dropin.sh
. "$(dirname "$0")/dropin.sh"
need ibv_devices ibv_devinfo nm

# Every public call of libibverbs is defined; its private ones, for drivers, are not for us.
real=$(ldconfig -p | awk '/libibverbs\.so\.1 / && !seen++ { print $NF }')
exports() {
    nm -D --defined-only "$1" | awk '$2 == "T" && $3 !~ /PRIVATE/ { sub(/@.*/, "", $3); print $3 }' | sort -u
}
missing=$(comm -23 <(exports "$real") <(exports "$build/lib/libsoftnic.so"))
[ -z "$missing" ] || fail "not defined: $missing"

softnic_options=(--ports 3)
listed=$(softnic ibv_devices | awk '/softnic[0-9]/ { print $1 }' | xargs)
[ "$listed" = "softnic0 softnic1 softnic2" ] || fail "ibv_devices lists $listed"
[ "$(softnic ibv_devices | awk '/softnic[0-9]/ { print $2 }' | sort -u | wc -l)" -eq 3 ] ||
    fail "two ports have one GUID"
softnic_options=()

softnic ibv_devinfo -v >"$work/info" || fail "ibv_devinfo -v"
for line in 'fw_ver:.*1' 'state:.*PORT_ACTIVE' 'link_layer:.*Ethernet' 'GID\[  1\].*::ffff:10\..*RoCE v2'; do
    grep -q "$line" "$work/info" || fail "ibv_devinfo does not say $line"
done

# softnic-run's own answers.
status() {
    softnic "$@" >/dev/null 2>"$work/said" && echo 0 || echo $?
}
[ "$(status)" -eq 2 ] || fail "without a program"
[ "$(status --ports 0 true)" -eq 2 ] || fail "no ports"
[ "$(status /nowhere/program)" -eq 127 ] || fail "a program that is not there"
[ "$(status /dev/null)" -eq 126 ] || fail "a program that cannot be run"
[ "$(status false)" -eq 1 ] || fail "the program's status"

# What an option sets, a program sees; a wire that is none is said to be none.
softnic --alpha-us 3 --share-pages --ports 2 -- env >"$work/env"
for line in SOFTNIC_ALPHA_US=3 SOFTNIC_SHARE_PAGES=1 SOFTNIC_PORT=softnic0,softnic1; do
    grep -qx "$line" "$work/env" || fail "$line is not set"
done
softnic_options=(--alpha-us many)
softnic ibv_devinfo >/dev/null 2>"$work/said" && fail "a wire of many us was taken"
grep -q 'SOFTNIC_ALPHA_US' "$work/said" || fail "nothing was said of the wire"
softnic_options=()
SOFTNIC_CHECK_VERBS=please softnic ibv_devinfo >/dev/null 2>"$work/said" && fail "CHECK_VERBS=please was taken"
grep -q "SOFTNIC_CHECK_VERBS takes 0 or 1, not 'please'" "$work/said" || fail "nothing was said of CHECK_VERBS"
finish
