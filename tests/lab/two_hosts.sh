#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# In the lab's guests, two hosts on one wire: the program as a job of two nodes. two_hosts.sh BUILD_DIR
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=tests/lab/parts.sh
. "$here/parts.sh"
# shellcheck source=tests/lab/collectives.sh
. "$here/collectives.sh"
# shellcheck source=tests/lab/faults.sh
. "$here/faults.sh"

routing_file
part "sstar devices" devices
part "sstar fit, 2 hosts" fit 1
collectives exchange 1
collectives exchange 2
[ "$full" -eq 0 ] || collectives rdmacm 1
collectives rdmacm 2
# The control plane went over the same cable: whoever notices first, each rank's sentence names a link.
n=2
part "the cable between the hosts is out for good" deadly \
    'link to rank [0-9]+ \(lab[01]\), device rxe0 port 1.*, GID ' lab-link 0 down
exit $failed
