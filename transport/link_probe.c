/* SPDX-License-Identifier: MIT */
/*
 * Whether a silent peer is there. A queue pair notices that a peer does not answer only when
 * something is sent, so a rank that merely waits would learn of a link that is down from nobody:
 * what says so otherwise is a network connection, which may have gone with the link. After a second
 * of silence it sends a write without data, which the peer does not notice, and does so again a
 * second after it was answered. That it was is no progress of the wait.
 */
#include "transport/rc.h"
#include "transport/wait.h"

static const uint64_t silence_ns = 1000 * 1000 * 1000;

static int probe(struct sstar_link *link)
{
    uint32_t qp = link->data_qps; /* which carries credit alone */
    if (link->probing || !rc_place(&link->qps[qp], 1))
        return 0;
    struct rc_op op = {.opcode = IBV_WR_RDMA_WRITE,
                       .rkey = link->peer_rkey,
                       .remote_address = link->peer_control_address,
                       .signalled = true,
                       .probe = true};
    link->probing = true;
    rc_build(link, qp, &op, RC_LAST);
    return rc_ring(link);
}

int rc_probe(struct sstar_links *links, uint64_t now)
{
    if (links->silent_since_ns == 0)
        links->silent_since_ns = now;
    if (now - links->silent_since_ns < silence_ns)
        return 0;
    links->silent_since_ns = now;
    int err = 0;
    for (int i = 0; i < links->n_links && !err; i++)
        if (!links->all[i].local)
            err = probe(&links->all[i]);
    return err;
}

bool rc_probe_answered(struct sstar_link *link, const struct rc_qp *q, uint32_t position)
{
    if (!q->records[position & q->record_mask].probe)
        return false;
    link->probing = false;
    return true;
}
