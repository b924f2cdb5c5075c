/* SPDX-License-Identifier: MIT */
/*
 * Proxies: CPU threads that build and ring for others, as NVSHMEM's IBRC and NCCL's proxies do.
 * Private.
 *
 *     callers --descriptors--> ring --> proxy --WQEs, doorbell--> NIC
 *        ^                                |
 *        +------ completion words <-------+ <--CQEs
 *
 * A proxy reads one ring and has charge of the carriers of some sets of links. In each round it
 * takes what is in the ring, builds for all of it, rings once for each queue pair that is due, and
 * polls. When nothing happens it yields, and naps after some time; a descriptor wakes it.
 */
#ifndef SSTAR_TRANSPORT_PROXY_H
#define SSTAR_TRANSPORT_PROXY_H

#include "transport/carrier.h"

struct proxy;
struct proxies; /* of a world */

/* Start the world's proxies if that has not happened, and let one of them, in turn, have charge of
 * the carrier. From then on it is the proxy's until proxy_release. */
int proxy_take_charge(struct sstar_world *world, struct carrier *carrier, struct proxy **proxy);
/* All descriptors written before are carried out first. Nothing of the carrier is touched by the
 * proxy afterwards. */
int proxy_release(struct sstar_world *world, struct proxy *proxy, struct carrier *carrier);
struct descriptor_ring *proxy_ring(struct proxy *proxy);
/* Look at the completion queues soon, if the proxy naps. */
void proxy_nudge(struct proxy *proxy);
/* End them; accepts a world that has none. Carriers must have been released. */
void proxies_close(struct sstar_world *world);

#endif
