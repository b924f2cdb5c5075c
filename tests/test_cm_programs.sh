#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Programs that use librdmacm, unmodified, on softnic.
set -euo pipefail
# shellcheck source=tests/dropin.sh
. "$(dirname "$0")/dropin.sh"
# shellcheck source=tests/cm.sh
. "$(dirname "$0")/cm.sh"
need rping ucmatose udaddy rdma_server rdma_client rdma_xserver rdma_xclient rstream flock ib_write_bw nm

# Every public call of librdmacm is defined.
real=$(ldconfig -p | awk '/librdmacm\.so\.1 / && !seen++ { print $NF }')
exports() {
    nm -D --defined-only "$1" | awk '$2 == "T" { sub(/@.*/, "", $3); print $3 }' | sort -u
}
missing=$(comm -23 <(exports "$real") <(exports "$build/lib/libsoftnic.so"))
[ -z "$missing" ] || fail "not defined: $missing"

# rping compares what comes back (-V) and shows it (-v).
cm_pair 106 rping -s -a 127.0.0.1 -p PORT -v -C 20 -- rping -c -a 127.0.0.1 -p PORT -v -V -C 20
[ "$(grep -c '^ping data: rdma-ping-' "$work/client")" -eq 20 ] || fail "rping's pings"
[ "$(grep -c '^server ping data: rdma-ping-' "$work/server")" -eq 20 ] || fail "rping's server's pings"
# With a queue pair that librdmacm does not know of: rdma_init_qp_attr and rdma_establish.
cm_pair 106 rping -s -q -a 127.0.0.1 -p PORT -C 5 -- rping -c -q -a 127.0.0.1 -p PORT -V -C 5
# IPv6, where the machine has it.
if grep -q '^0*1 ' /proc/net/if_inet6 2>/dev/null; then
    cm_pair 106 rping -s -a ::1 -p PORT -C 5 -- rping -c -a ::1 -p PORT -V -C 5
fi

# A persistent server serves one after the other (two requests at once it would take for one).
cm_port=$((cm_port + 1))
cm_start "$work/server" rping -s -P -a 127.0.0.1 -p "$cm_port"
cm_listening "$cm_port" || fail "rping -s -P does not listen"
for _ in 1 2 3; do
    softnic rping -c -a 127.0.0.1 -p "$cm_port" -V -C 20 >"$work/client" 2>&1 || fail "a client of rping -s -P"
done
cm_kill

cm_pair 106 rdma_server -p PORT -- rdma_client -s 127.0.0.1 -p PORT
grep -q 'end 0' "$work/client" || fail "rdma_client"
cm_pair 106 ucmatose -p PORT -c 20 -C 10 -S 1000 -- ucmatose -s 127.0.0.1 -p PORT -c 20 -C 10 -S 1000
grep -q 'return status 0' "$work/client" || fail "ucmatose"
# Ids moved to another event channel while they are connected.
cm_pair 106 ucmatose -p PORT -m -- ucmatose -s 127.0.0.1 -p PORT -m

# Datagram services. udaddy knows one number only: one of us at a time.
exec 9>"${TMPDIR:-/tmp}/sstar-test-udaddy-$(id -u)"
flock -w 60 9 || fail "udaddy's turn does not come"
mine=$cm_port cm_port=7173
cm_pair 111 udaddy -c 5 -C 10 -- udaddy -s 127.0.0.1 -c 5 -C 10
grep -q 'return status 0' "$work/client" || fail "udaddy"
cm_port=$mine
exec 9>&-
cm_pair 106 rdma_xserver -p PORT -c r -- rdma_xclient -s 127.0.0.1 -p PORT -c r

cm_pair 106 ib_write_bw -R -n 100 -p PORT -- ib_write_bw -R -n 100 -p PORT 127.0.0.1
cm_pair 106 ib_write_bw -R -q 4 -n 100 -p PORT -- ib_write_bw -R -q 4 -n 100 -p PORT 127.0.0.1
cm_pair 106 ib_send_lat -R -n 100 -p PORT -- ib_send_lat -R -n 100 -p PORT 127.0.0.1
cm_pair 106 ib_read_lat -R -n 100 -p PORT -- ib_read_lat -R -n 100 -p PORT 127.0.0.1
cm_pair 106 ib_send_lat -R -c UD -n 100 -p PORT -- ib_send_lat -R -c UD -n 100 -p PORT 127.0.0.1
cm_pair 106 ib_send_bw -R --use-srq -q 2 -n 200 -p PORT -- ib_send_bw -R --use-srq -q 2 -n 200 -p PORT 127.0.0.1

# Nobody there: an answer at once.
softnic rping -c -a 127.0.0.1 -p $((cm_port + 1)) >"$work/client" 2>&1 && fail "rping without a server"
grep -q 'RDMA_CM_EVENT_REJECTED, error 8' "$work/client" || fail "rping is not told that nobody is there"

# Sockets over RDMA are not there, and say so.
softnic rstream -s 127.0.0.1 >"$work/client" 2>&1 && fail "rstream"
grep -q 'not supported' "$work/client" || fail "rstream is not told why"

# What they leave: nothing.
address=$(softnic ibv_devinfo -v | sed -n 's/.*::ffff:\(10[0-9.]*\).*/\1/p')
[ -n "$address" ] || fail "ibv_devinfo shows no GID"
[ ! -e "/dev/shm/softnic-$(id -u)-$address" ] || fail "the port's file is still there"
finish
