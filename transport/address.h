/* SPDX-License-Identifier: MIT */
/* Sockets of the control plane: where to listen, how to connect. Private. */
#ifndef SSTAR_TRANSPORT_ADDRESS_H
#define SSTAR_TRANSPORT_ADDRESS_H

#include "transport/report.h"

/* A listening, non-blocking socket for rank 0: on the interface that SSTAR_SOCKET_IFNAME names, on
 * loopback if root_host is that, else on all addresses. The socket, or a negative errno. */
int address_listen(const struct sstar_config *config, struct report *report);
/* One attempt to connect to root_host:root_port within `timeout_ms`. The socket (non-blocking), or
 * a negative errno; -ENXIO: the name means nothing here; -EINVAL: SSTAR_SOCKET_IFNAME is wrong.
 * Then the sentence is in the report. Others are worth another attempt. */
int address_connect(const struct sstar_config *config, int timeout_ms, struct report *report);
/* No delay, and a peer whose host is gone is noticed within 5 s. */
void address_tune(int fd);

#endif
