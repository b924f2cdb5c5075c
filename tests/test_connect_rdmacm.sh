#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Links connected through librdmacm, where there is no RDMA at all: the suites of links and the
# program on softnic preloaded, whose devices librdmacm's calls know. (tools/test-lab does the same
# with the kernel's connection manager.)
set -euo pipefail
# shellcheck source=tests/dropin.sh
. "$(dirname "$0")/dropin.sh"
# A port is a device of its name.
export SSTAR_TEST_DEVICE=$SOFTNIC_PORT SSTAR_TEST_CONNECT=rdmacm

for name in rdmacm connect links one_sided barrier; do
    softnic "$build/tests/test_$name" >"$work/log" 2>&1 || {
        fail "test_$name through librdmacm"
        tail -n 30 "$work/log"
    }
done

# What the log says of every link that was connected.
said() { # PATTERN
    grep -Eq -- "$1" "$work/log" || {
        fail "did not say '$1'"
        tail -n 15 "$work/log"
    }
}
SSTAR_LOG_LEVEL=INFO softnic "$1" allreduce --ranks 2 --ranks-per-node 1 --connect rdmacm --traffic-class 104 \
    --service-level 3 -b 8 -e 64K -n 5 -w 2 >"$work/log" 2>&1 || fail "sstar allreduce --connect rdmacm"
said 'through softnic$'
said 'link to rank 1 connected by rdmacm: .* GID 10\.[0-9.]+ \(RoCEv2\) index 1 .*traffic class 104, service level 3; a dead peer is noticed after about 0\.5 s'
softnic "$1" alltoall --ranks 4 --ranks-per-node 2 --connect rdmacm --strategy none,rank,node --messages 200 \
    >"$work/log" 2>&1 || fail "sstar alltoall --connect rdmacm"
said '^ +node '
# A softnic's times are not a NIC's, whatever library brought it.
SOFTNIC_ALPHA_US=5 SOFTNIC_GAP_US=1 SOFTNIC_BETA_GBPS=10 softnic "$1" allreduce --ranks 2 --ranks-per-node 1 \
    --connect rdmacm --algorithm ring -b 8 -e 8 -n 5 -w 2 >"$work/log" 2>&1 || fail "a shaped wire through librdmacm"
said 'through softnic-shaped$'
finish
