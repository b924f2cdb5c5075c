#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The ping-pong programs of rdma-core, unmodified, on softnic; -c has them check every byte.
set -euo pipefail
# shellcheck source=tests/dropin.sh
. "$(dirname "$0")/dropin.sh"
need ibv_rc_pingpong

rc() {
    pair ibv_rc_pingpong -g 0 -n 200 -c "$@"
}

for service in rc uc ud srq; do
    pair "ibv_${service}_pingpong" -g 0 -n 200 -c
    pair "ibv_${service}_pingpong" -g 0 -n 200 -c -e # sleeping on a completion channel
done
rc -N           # ibv_wr_*
rc -t           # ibv_create_cq_ex, with the time of each completion
rc -N -e -s 65536 -r 16
rc -o           # memory paged on demand
rc -g 1 -m 4096 # by the IPv4 GID
softnic_options=(--ports 2)
rc -d softnic1
# Private memory, and private memory whose pages are shared.
softnic_options=(--share-pages)
for service in rc uc ud srq; do
    pair "ibv_${service}_pingpong" -g 0 -n 200 -c
done
rc -s 100000
softnic_options=(--alpha-us 5 --gap-us 1 --beta-gbps 5)
SOFTNIC_PORT=$SOFTNIC_PORT-shaped rc
finish
