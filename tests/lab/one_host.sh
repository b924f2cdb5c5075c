#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# In the lab's guest, one host: the suites, the program, a bad network. one_host.sh BUILD_DIR
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=tests/lab/parts.sh
. "$here/parts.sh"
# shellcheck source=tests/lab/collectives.sh
. "$here/collectives.sh"
# shellcheck source=tests/lab/faults.sh
. "$here/faults.sh"
# shellcheck source=tests/lab/events.sh
. "$here/events.sh"

# shellcheck disable=SC2317 # called through part
suite() { # NAME [CONNECT]
    SSTAR_TEST_DEVICE=rxe0 SSTAR_TEST_CONNECT=${2-exchange} timeout -k 5 300 "$build/tests/test_$1"
}

routing_file
part "sstar devices" devices
for name in conformance links one_sided barrier connect rdmacm faults_world pool; do
    part "test_$name on rxe0" suite "$name"
done
for name in links one_sided barrier connect; do
    part "test_$name on rxe0 through librdmacm" suite "$name" rdmacm
done
SSTAR_RANKS_PER_NODE=1 part "sstar fit, 2 ranks" fit 2
collectives exchange 2
collectives exchange 4
collectives rdmacm 2
[ "$full" -eq 0 ] || collectives rdmacm 4
SSTAR_RANKS_PER_NODE=1 part "sstar allreduce through librdmacm over two ports, marked" ranks 60 2 allreduce \
    --ib-dev rxe0,rxe1 --connect rdmacm --traffic-class 104 --service-level 3 --algorithm ring -b 8 -e 64K -f 16 -n 3
n=2 ends=(0 1)
export SSTAR_IB_HCA=rxe0,rxe1 SSTAR_RANKS_PER_NODE=1
faults
events
exit $failed
