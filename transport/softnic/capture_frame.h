/* SPDX-License-Identifier: MIT */
/* One frame of a capture. Private to capture*.c. */
#ifndef SOFTNIC_CAPTURE_FRAME_H
#define SOFTNIC_CAPTURE_FRAME_H

#include "transport/softnic/capture.h"

enum { UDP_BYTES = 8, BTH_BYTES = 12, ICRC_BYTES = 4, HEADERS_MAX = BTH_BYTES + 32 };

/* Who speaks to whom. */
struct way {
    struct capture *c;
    uint32_t from_ip, to_ip, to_qpn;
    uint32_t flags; /* ROUTE_* */
    uint16_t udp_port;
    uint64_t time_ns;
};

struct headers {
    uint8_t bytes[HEADERS_MAX];
    uint32_t used;
};

/* A place in a list of segments. */
struct cursor {
    const struct iovec *iov;
    unsigned left;
    size_t at;
};

/* Append the last `bytes` bytes of a value, in the order of the network. */
void frame_add(struct headers *h, uint64_t value, unsigned bytes);
/* The next bytes; zeros where there are no more. */
void frame_take(struct cursor *cursor, uint8_t *to, size_t bytes);
/* The frame as it is on the wire; what is kept of it goes to the file. */
void frame_emit(const struct way *w, struct headers *h, struct cursor *data, uint32_t data_bytes);

#endif
