/* SPDX-License-Identifier: MIT */
#include "transport/channel.h"
#include "transport/rendezvous.h"
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIECES_AT_ONCE = 64 };
static const uint64_t body_bytes_max = 1ull << 36; /* more cannot be meant */

static struct frame swap(const struct frame *f)
{
    return (struct frame){.magic = le32toh(f->magic),
                          .kind = le16toh(f->kind),
                          .operation = le16toh(f->operation),
                          .sequence = le64toh(f->sequence),
                          .bytes = le64toh(f->bytes)};
}

/* The header is whole: find a place for the body. */
static enum channel_event begin_body(struct channel *c)
{
    c->in = swap(&c->in_wire);
    if (c->in.magic != RENDEZVOUS_MAGIC || c->in.kind < FRAME_CALL || c->in.kind > FRAME_NOTICE ||
        c->in.bytes > body_bytes_max)
        return CHANNEL_GARBAGE;
    if (c->in.bytes == 0)
        return CHANNEL_NOTHING;
    if (c->in.kind == FRAME_REPLY && c->target && c->in.bytes == c->target_bytes)
        c->in_body = c->target;
    else
        c->in_body = malloc(c->in.bytes);
    return c->in_body ? CHANNEL_NOTHING : CHANNEL_NO_MEMORY;
}

enum channel_event channel_read(struct channel *c)
{
    const size_t header = sizeof(c->in_wire);
    for (;;) {
        if (c->in_got >= header && c->in_got == header + c->in.bytes)
            return CHANNEL_FRAME;
        uint8_t *at;
        size_t want;
        if (c->in_got < header) {
            at = (uint8_t *)&c->in_wire + c->in_got;
            want = header - c->in_got;
        } else {
            at = (uint8_t *)c->in_body + (c->in_got - header);
            want = header + c->in.bytes - c->in_got;
        }
        ssize_t n = read(c->fd, at, want);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return CHANNEL_NOTHING;
        if (n <= 0) {
            c->error = n < 0 ? errno : 0;
            return CHANNEL_END;
        }
        bool in_header = c->in_got < header;
        c->in_got += (size_t)n;
        c->moved += (uint64_t)n;
        if (in_header && c->in_got == header) {
            enum channel_event event = begin_body(c);
            if (event != CHANNEL_NOTHING)
                return event;
        }
    }
}

void *channel_take(struct channel *c)
{
    void *body = c->in_body;
    c->in_body = NULL;
    c->in_got = 0;
    return body;
}

void channel_send(struct channel *c, const struct frame *frame, struct iovec *pieces, int count)
{
    c->out_wire = swap(frame);
    c->out_header_left = sizeof(c->out_wire);
    c->out_left = sizeof(c->out_wire) + frame->bytes;
    c->out_pieces = pieces;
    c->out_count = count;
}

/* `bytes` of what was to be sent are sent. */
static void advance(struct channel *c, size_t bytes)
{
    c->out_left -= bytes;
    c->moved += bytes;
    size_t of_header = bytes < c->out_header_left ? bytes : c->out_header_left;
    c->out_header_left -= of_header;
    bytes -= of_header;
    while (c->out_count > 0 && bytes >= c->out_pieces->iov_len) {
        bytes -= c->out_pieces->iov_len;
        c->out_pieces++;
        c->out_count--;
    }
    if (bytes > 0) {
        c->out_pieces->iov_base = (uint8_t *)c->out_pieces->iov_base + bytes;
        c->out_pieces->iov_len -= bytes;
    }
}

int channel_write(struct channel *c)
{
    while (c->out_left > 0) {
        struct iovec pieces[PIECES_AT_ONCE];
        size_t n = 0;
        if (c->out_header_left > 0)
            pieces[n++] =
                (struct iovec){(uint8_t *)&c->out_wire + sizeof(c->out_wire) - c->out_header_left,
                               c->out_header_left};
        for (int i = 0; i < c->out_count && n < PIECES_AT_ONCE; i++)
            pieces[n++] = c->out_pieces[i];
        struct msghdr message = {.msg_iov = pieces, .msg_iovlen = n};
        ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL);
        if (sent >= 0)
            advance(c, (size_t)sent);
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        else if (errno != EINTR)
            return -errno;
    }
    return 0;
}

bool channel_send_small(struct channel *c, const struct frame *frame, const void *body)
{
    if (!channel_sent(c))
        return false;
    struct frame wire = swap(frame);
    struct iovec pieces[2] = {{&wire, sizeof(wire)}, {(void *)body, frame->bytes}};
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
    return sendmsg(c->fd, &message, MSG_NOSIGNAL) == (ssize_t)(sizeof(wire) + frame->bytes);
}
