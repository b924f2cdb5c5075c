#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# In the lab's guest, one host: the suites, the program, a bad network. one_host.sh BUILD_DIR
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=tests/lab/parts.sh
. "$here/parts.sh"
# shellcheck source=tests/lab/collectives.sh
. "$here/collectives.sh"

# shellcheck disable=SC2317 # called through part
suite() { # NAME
    SSTAR_TEST_DEVICE=rxe0 timeout -k 5 120 "$build/tests/test_$1"
}

routing_file
part "sstar devices" devices
for name in conformance links one_sided barrier; do
    part "test_$name on rxe0" suite "$name"
done
for name in connect rdmacm links; do
    SSTAR_TEST_CONNECT=rdmacm part "test_$name on rxe0, through librdmacm" suite "$name"
done
SSTAR_RANKS_PER_NODE=1 part "sstar fit, 2 ranks" fit 2
collectives exchange 2
collectives exchange 4
collectives rdmacm 2
[ "$full" -eq 0 ] || collectives rdmacm 4
exit $failed
