/* SPDX-License-Identifier: MIT */
/* Port numbers as names of abstract unix sockets. A number is one id's in all of its port space,
 * whatever address it is bound to. */
#include "transport/softnic/cm/cm.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/un.h>
#include <unistd.h>

/* Where Linux picks ports for those who do not care. */
enum { EPHEMERAL_FIRST = 32768, EPHEMERAL_COUNT = 28232 };

static socklen_t name_of(struct sockaddr_un *name, enum rdma_port_space ps, unsigned port)
{
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    /* A first byte of zero: no file, and gone with the socket. */
    int n = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "softnic-cm-%u-%x-%u",
                     (unsigned)geteuid(), (unsigned)ps, port);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static int take(struct cm_id *id, unsigned port)
{
    struct sockaddr_un name;
    socklen_t size = name_of(&name, id->base.ps, port);
    if (bind(id->fd, (struct sockaddr *)&name, size) != 0)
        return -errno;
    cm_address_set_port(&id->base.route.addr.src_addr, (uint16_t)port);
    id->named = true;
    return 0;
}

static int take_any(struct cm_id *id)
{
    uint32_t start = 0;
    int err = -EADDRINUSE;
    if (getrandom(&start, sizeof start, 0) != (ssize_t)sizeof start)
        start = (uint32_t)cm_now_ns();
    for (uint32_t i = 0; i < EPHEMERAL_COUNT && err == -EADDRINUSE; i++)
        err = take(id, EPHEMERAL_FIRST + (start + i) % EPHEMERAL_COUNT);
    return err == -EADDRINUSE ? -EADDRNOTAVAIL : err;
}

int cm_name_take(struct cm_id *id)
{
    if (id->named)
        return 0;
    if (id->fd < 0)
        id->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (id->fd < 0)
        return -errno;
    unsigned port = cm_address_port(&id->base.route.addr.src_addr);
    return port != 0 ? take(id, port) : take_any(id);
}

int cm_name_connect(struct cm_id *id)
{
    struct sockaddr_un name;
    socklen_t size = name_of(&name, id->base.ps, cm_address_port(&id->base.route.addr.dst_addr));
    if (connect(id->fd, (struct sockaddr *)&name, size) != 0)
        return -errno;
    /* A stranger may have taken a name that holds our user id. */
    return cm_peer_is_ours(id->fd) ? 0 : -ECONNREFUSED;
}
