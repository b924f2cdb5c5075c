#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# pyverbs, UCX, and Open MPI over UCX, unmodified, on softnic.
set -euo pipefail
# shellcheck source=tests/dropin.sh
. "$(dirname "$0")/dropin.sh"
need /usr/bin/python3 ucx_perftest mpicc.openmpi mpirun.openmpi
/usr/bin/python3 -c 'import pyverbs.device' 2>/dev/null || need pyverbs

cat >"$work/open.py" <<'END'
import pyverbs.device as d
import pyverbs.enums as e
from pyverbs.cq import CQ
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPCap, QPInitAttr
name = d.get_device_list()[0].name.decode()
with d.Context(name=name) as context:
    assert context.query_port(1).link_layer == e.IBV_LINK_LAYER_ETHERNET
    assert '0000:ffff:0a' in str(context.query_gid(1, 1))
    with PD(context) as pd, MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE) as mr, CQ(context, 16) as cq:
        mr.write(b'softnic', 7)
        assert mr.read(7, 0) == b'softnic'
        with QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap())) as qp:
            assert qp.qp_num > 0
END
softnic /usr/bin/python3 "$work/open.py" || fail "pyverbs"

# The rest brings threads, forks and handlers of its own, which sanitizers do not go along with.
[ -z "${SOFTNIC_TEST_PRELOAD:-}" ] || finish

export UCX_LOG_LEVEL=error
ucx() {
    tcp_port=$((tcp_port + 1))
    softnic ucx_perftest -p "$tcp_port" >"$work/server" 2>&1 &
    local server=$! status=0
    listening "$tcp_port" || status=1
    softnic ucx_perftest 127.0.0.1 -p "$tcp_port" -n 200 -w 20 "$@" >"$work/client" 2>&1 || status=1
    wait "$server" || status=1
    grep -q '^Final:' "$work/client" || status=1
    [ "$status" -eq 0 ] || {
        fail "ucx_perftest $* over $UCX_TLS"
        tail -n 15 "$work/server" "$work/client"
    }
}
for UCX_TLS in rc_verbs,ud_verbs,self ud_verbs,self; do
    export UCX_TLS
    ucx -t tag_lat -s 64
    ucx -t tag_bw -s 100000
    ucx -t ucp_put_lat -s 8
    ucx -t ucp_get -s 4096
done

mpicc.openmpi -O1 "$(dirname "$0")/programs/allreduce_mpi.c" -o "$work/allreduce"
# With private memory, and with its pages shared.
for softnic_options in "" --share-pages; do
    # shellcheck disable=SC2086
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=^openib OMPI_MCA_pml=ucx \
        OMPI_MCA_mpi_yield_when_idle=1 UCX_TLS=rc_verbs,ud_verbs,self timeout -k 5 100 \
        mpirun.openmpi --oversubscribe -n 3 "$build/softnic-run" $softnic_options "$work/allreduce" \
        >"$work/out" 2>&1 || fail "Open MPI"
    grep -q '^3 ranks, 0 wrong$' "$work/out" || {
        fail "an AllReduce of Open MPI that is right"
        tail -n 15 "$work/out"
    }
done
finish
