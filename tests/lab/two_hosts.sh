#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# In the lab's guests, two hosts on one wire: the program as a job of two nodes. two_hosts.sh BUILD_DIR
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=tests/lab/parts.sh
. "$here/parts.sh"
# shellcheck source=tests/lab/collectives.sh
. "$here/collectives.sh"

routing_file
part "sstar devices" devices
part "sstar fit, 2 hosts" fit 1
collectives exchange 1
collectives exchange 2
collectives rdmacm 1
[ "$full" -eq 0 ] || collectives rdmacm 2
exit $failed
