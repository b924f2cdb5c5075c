/* SPDX-License-Identifier: MIT */
/* Looking at an id's socket: who has come to a listener, what has come to a connection. */
#include "transport/softnic/cm/cm.h"
#include "transport/softnic/environment.h"
#include <stdio.h>
#include <unistd.h>

enum { NS_PER_MS = 1000000, PATIENCE_MS = 60000, MOST_PATIENCE_MS = 86400000 };

static const char patience_variable[] = "SOFTNIC_CM_TIMEOUT_MS";

bool cm_patience_is_known(void)
{
    uint64_t ms;
    if (nic_env_number(patience_variable, 1, MOST_PATIENCE_MS, &ms) == 0)
        return true;
    fprintf(stderr, "softnic: %s takes a number of milliseconds from 1 to %d, not '%.80s'\n",
            patience_variable, MOST_PATIENCE_MS, nic_env_text(patience_variable));
    return false;
}

/* How long an answer may take. The kernel waits 16 times 4.3 s. */
uint64_t cm_patience_ns(void)
{
    uint64_t ms = PATIENCE_MS;
    nic_env_number(patience_variable, 1, MOST_PATIENCE_MS, &ms);
    return ms * NS_PER_MS;
}

/* The state in which a message of this type may come. */
static bool expected(const struct cm_id *id, unsigned type)
{
    enum cm_state state = id->state;
    bool datagram = cm_is_datagram(id);
    switch (type) {
    case CM_REQ:
    case CM_SIDR_REQ:
        return state == CM_NASCENT;
    case CM_REP:
        return state == CM_REQ_SENT && !datagram;
    case CM_SIDR_REP:
        return state == CM_REQ_SENT && datagram;
    case CM_RTU:
        /* rdma_notify may have been before it */
        return state == CM_REP_SENT || state == CM_ESTABLISHED;
    case CM_REJ:
        return !datagram && (state == CM_REQ_SENT || state == CM_REP_SENT ||
                             state == CM_REP_RECEIVED || state == CM_REQ_RECEIVED);
    case CM_DREQ:
        return state == CM_ESTABLISHED || state == CM_DREQ_SENT;
    case CM_DREP:
        return state == CM_DREQ_SENT;
    default:
        return false;
    }
}

/* Somebody has come to a listener. */
static void admit(struct cm_id *listener)
{
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    struct cm_id *id = NULL;
    if (cm_peer_is_ours(fd))
        id = cm_id_new(to_channel(listener->base.channel), listener->base.context,
                       listener->base.ps, listener->base.qp_type);
    if (id == NULL) {
        close(fd);
        return;
    }
    id->fd = fd;
    id->named = true; /* its number is the listener's */
    id->state = CM_NASCENT;
    id->listener = listener;
    if (cm_watch(id) != 0) {
        cm_id_free(id);
        return;
    }
    cm_set_deadline(id, cm_patience_ns());
    cm_pump(id); /* who has come asks at once */
}

void cm_pump(struct cm_id *id)
{
    struct cm_message message;
    if (id->state == CM_LISTENING) {
        admit(id);
        return;
    }
    while (id->watched) {
        int n = cm_message_receive(id->fd, &message);
        if (n == 0)
            return;
        bool ended = n < 0 || !expected(id, message.type);
        bool keep = true;
        if (!ended)
            keep = cm_on_message(id, &message);
        else if (id->state == CM_NASCENT)
            keep = false;
        else
            cm_on_end(id);
        if (!keep) {
            cm_id_free(id);
            return;
        }
    }
}
