/* SPDX-License-Identifier: MIT */
/*
 * The device of a world: which one, through which table of verbs, and what it can do. Private.
 */
#ifndef SSTAR_TRANSPORT_DEVICE_H
#define SSTAR_TRANSPORT_DEVICE_H

#include "transport/gid.h"
#include "transport/ordering.h"
#include "transport/transport.h"
#include "transport/verbs.h"

struct connector;

struct device {
    const struct verbs *verbs;
    const struct connector *connector; /* how its queue pairs are connected */
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_device_attr attr;
    char name[64];
    const char *device_class; /* "hardware", "softroce", "softnic", "softnic-shaped" */
    uint8_t port;
    uint8_t link_layer; /* IBV_LINK_LAYER_* */
    enum ibv_mtu mtu;
    uint16_t lid;
    int gid_index;
    union ibv_gid gid;
    struct gid_entry gids[GID_USABLE]; /* what links choose from, best first */
    int n_gids;
    uint8_t ack_timeout;   /* an answer is missing after 4.096 us * 2^this */
    uint32_t part_packets; /* of one write or read at most, and the same in bytes; 0: any number */
    uint32_t part_bytes;
    uint32_t max_inline; /* bytes that a queue pair of ours takes inline */
    enum ordering gives; /* the order in which bytes land */
    enum arrival arrival;
    bool has_wr_api;       /* ibv_wr_* may be used */
    bool coherent_atomics; /* the NIC's atomics and the CPU's may meet on one word */
    struct sstar_wire wire;
    char gid_text[64];
    char why[160], gid_why[160];
};

/* The device of the world, opened on first use. Local call. 0, or a negative errno with a sentence
 * that says what there is to choose from. */
int device_get(struct sstar_world *world, struct device **device);
/* Close it; accepts a world that has opened none. */
void device_close(struct sstar_world *world);
/* Register memory for all that a peer may do to it. On failure the sentence names the limit that
 * stood in the way. */
int device_register(struct sstar_world *world, struct device *device, void *memory,
                    size_t size_bytes, struct ibv_mr **mr);

#endif
