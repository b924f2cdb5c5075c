/* SPDX-License-Identifier: MIT */
/* Sending, receiving and checking the messages of a connection. */
#include "transport/softnic/cm/message.h"
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

static_assert(sizeof(struct cm_message) == 304 && sizeof(struct cm_address) == 28,
              "the wire form has no padding of the compiler's");

unsigned cm_private_limit(enum cm_message_type type)
{
    switch (type) {
    case CM_REQ:
        return CM_REQ_PRIVATE;
    case CM_REP:
        return CM_REP_PRIVATE;
    case CM_REJ:
        return CM_REJ_PRIVATE;
    case CM_SIDR_REQ:
        return CM_SIDR_REQ_PRIVATE;
    case CM_SIDR_REP:
        return CM_SIDR_REP_PRIVATE;
    default:
        return 0;
    }
}

int cm_message_send(int fd, const struct cm_message *message)
{
    struct cm_message out = *message;
    out.magic = htole32(CM_MAGIC);
    out.version = htole16(CM_VERSION);
    out.size = htole16(sizeof out);
    out.type = htole16(message->type);
    out.private_len = htole16(message->private_len);
    out.status = htole32(message->status);
    out.qpn = htole32(message->qpn);
    out.qkey = htole32(message->qkey);
    out.psn = htole32(message->psn);
    out.from.family = htole32(message->from.family);
    out.from.scope = htole32(message->from.scope);
    out.to.family = htole32(message->to.family);
    out.to.scope = htole32(message->to.scope);
    ssize_t n;
    do
        n = send(fd, &out, sizeof out, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}

static _Bool well_formed(const struct cm_message *m)
{
    if (le32toh(m->magic) != CM_MAGIC || le16toh(m->version) != CM_VERSION ||
        le16toh(m->size) != sizeof *m)
        return 0;
    unsigned type = le16toh(m->type);
    return type >= CM_REQ && type <= CM_SIDR_REP &&
           le16toh(m->private_len) <= cm_private_limit((enum cm_message_type)type);
}

int cm_message_receive(int fd, struct cm_message *message)
{
    struct cm_message in;
    ssize_t n;
    /* Where the other closed with something of ours unread, ECONNRESET comes once, and after it
     * what it had sent before. */
    enum { RESETS = 2 };
    int resets = 0;
    do
        n = recv(fd, &in, sizeof in, MSG_DONTWAIT | MSG_TRUNC);
    while (n < 0 && (errno == EINTR || (errno == ECONNRESET && ++resets < RESETS)));
    if (n < 0)
        return errno == EAGAIN ? 0 : -ECONNRESET;
    if (n == 0)
        return -ECONNRESET;
    if (n != (ssize_t)sizeof in || !well_formed(&in))
        return -EPROTO;
    in.type = le16toh(in.type);
    in.private_len = le16toh(in.private_len);
    in.status = le32toh(in.status);
    in.qpn = le32toh(in.qpn);
    in.qkey = le32toh(in.qkey);
    in.psn = le32toh(in.psn);
    in.from.family = le32toh(in.from.family);
    in.from.scope = le32toh(in.from.scope);
    in.to.family = le32toh(in.to.family);
    in.to.scope = le32toh(in.to.scope);
    /* The rest of the field reads as zeros, whatever the sender left there. */
    memset(in.private_data + in.private_len, 0, sizeof in.private_data - in.private_len);
    *message = in;
    return 1;
}

_Bool cm_peer_is_ours(int fd)
{
    struct ucred cred;
    socklen_t size = sizeof cred;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) == 0 && cred.uid == geteuid();
}
