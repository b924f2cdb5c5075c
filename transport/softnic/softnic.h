/* SPDX-License-Identifier: MIT */
/*
 * softnic: a NIC in user space that speaks verbs.
 *
 * Each function has the contract of the libibverbs call of the same name (softnic_post_send is
 * ibv_post_send, and so on), and every object is a genuine libibverbs structure: the inline data
 * calls of <infiniband/verbs.h> and ibv_wr_* work on them directly.
 *
 * A *port* has a name. Processes of one user that open the same name share that port, its wire and
 * its GID, as the processes of one node share a NIC. Queue pairs of different ports, and of one
 * port, reach each other by GID and queue pair number. Whoever posts or polls moves the port on;
 * nothing runs in the background, except where bytes land late (struct softnic_order).
 */
#ifndef SOFTNIC_H
#define SOFTNIC_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * The shape of a port's wire. All zero: unshaped, as fast as memory. A message of S bytes posted at
 * `now` takes
 *     start  = max(now, tx_busy)        tx_busy = start + gap + S/beta      (sender's port)
 *     arrive = max(start + alpha, rx_busy)   done = rx_busy = arrive + S/beta  (receiver's port)
 * a READ or an atomic 2*alpha + S/beta. No completion is shown before `done`.
 * beta_gbps counts 1e9 BYTES per second; 0 with alpha or gap set means no limit.
 */
struct softnic_wire {
    double alpha_us;
    double gap_us;
    double beta_gbps;
};

/*
 * When the bytes of a message come into memory.
 *
 * Strict, the default: at once and in order, the last ones last, as on one path.
 * Relaxed: in pieces, in any order that adaptive routing and relaxed PCIe ordering allow. The
 * pieces of one message, of messages of one queue pair and of different ones change places, until
 *   - the completion of a message, at its sender or by the receive that it used up, which comes
 *     after every byte of that message and of all before it on its queue pair;
 *   - a READ or an atomic, which is carried out after every message before it on its queue pair;
 *   - a message with IBV_SEND_FENCE, which comes after every READ and atomic before it.
 * Eight bytes that are aligned stay together. What is chosen follows from the seed and the order
 * of the calls; those who neither post nor poll are moved on by a thread, within a millisecond.
 *
 * On UC and UD the sender's completion promises nothing about the far side and comes before: the
 * receiver's is what covers a message. Datagrams change places as a whole.
 *
 * Relaxed, but keeping queue pairs in order (keep_qps): messages of one queue pair land one after
 * the other, each with its last word last; its other pieces, and messages of different queue pairs,
 * change places. This is all that looking at memory may ask of a device.
 *
 * On time: bytes are put in place when they are due on a shaped wire, and not before, so that who
 * watches memory sees its delay too; a thread does it where nobody polls at that moment.
 * No thread runs where a clock was handed: whoever hands it polls.
 */
struct softnic_order {
    bool relaxed;
    bool keep_qps; /* with relaxed */
    bool on_time;
    uint64_t seed;
};

/* The order that a text means: strict, relaxed,SEED or relaxed-qps,SEED (keep_qps). 0 or EINVAL;
 * on_time is left as it is. */
int softnic_read_order(const char *text, struct softnic_order *order);

struct softnic_attr {
    const char *port_name;             /* NULL: "softnic0"; at most 63 bytes of [A-Za-z0-9._-] */
    const struct softnic_wire *wire;   /* NULL: from SOFTNIC_ALPHA_US, _GAP_US, _BETA_GBPS */
    const struct softnic_order *order; /* NULL: from SOFTNIC_ORDER and
                                          SOFTNIC_PLACE=early|on-time */
    uint64_t (*now_ns)(void *clock);   /* NULL: CLOCK_MONOTONIC. All openers must agree. */
    void *clock;
    /* Append what goes over the wire to this pcapng file. NULL: SOFTNIC_CAPTURE, or none. */
    const char *capture;
    uint32_t capture_snap; /* bytes kept of a frame; 0: SOFTNIC_CAPTURE_SNAP, or all */
    char *error;           /* NULL, or where a sentence goes when opening fails */
    size_t error_size;
};

/* Open a port by name, making it if it is not there. NULL with errno set on failure: EINVAL bad
 * name or wire, EPERM/EACCES another user's, ENOSPC /dev/shm full, EPROTO made by another version,
 * EEXIST two names fell on one GID, EBUSY shaped or ordered otherwise by a process that still has
 * it open. */
struct ibv_context *softnic_open_port(const struct softnic_attr *attr);
/* Shape the port's wire anew, for all who have it open. 0 or an errno. */
int softnic_set_wire(struct ibv_context *context, const struct softnic_wire *wire);
int softnic_get_wire(struct ibv_context *context, struct softnic_wire *wire);
/* The last sentence said about a failure on this context (never NULL; "" if none): what the kernel
 * forbade and what to allow. Valid until the next failure. */
const char *softnic_last_error(struct ibv_context *context);

/*
 * Counters of a port since its first process opened it, and of the queue pairs that are there now.
 * Faults that a decorator puts on (sstar-faults(5)) happen above the NIC, which does not count
 * them.
 */
struct softnic_counters {
    uint64_t wqes, doorbells;
    uint64_t bytes;          /* of messages carried out; READs and atomics too */
    uint64_t cqes;           /* completions of sends, flushed ones too */
    uint64_t rnr;            /* times that the receiver was not ready */
    uint64_t retries;        /* tries after the first, whatever was in the way */
    uint64_t errors;         /* requests that failed, without those that were flushed */
    uint64_t drops;          /* messages that nobody took, on UC and UD */
    uint64_t received_cqes;  /* completions of receives */
    uint64_t received_bytes; /* written here by others, and read from here */
};
struct softnic_port_counters {
    char name[64];
    union ibv_gid gid;
    int processes, queue_pairs;
    struct softnic_counters counters;
};
struct softnic_qp_counters {
    int pid;
    uint32_t qp_num, dest_qp_num; /* 0: not connected */
    enum ibv_qp_type type;
    enum ibv_qp_state state;
    struct softnic_counters counters;
};
struct softnic_counters_visitor {
    /* Each queue pair of a port, then the port, whose counters are complete only then. */
    void (*queue_pair)(void *arg, const struct softnic_port_counters *port,
                       const struct softnic_qp_counters *qp); /* may be NULL */
    void (*port)(void *arg, const struct softnic_port_counters *port);
    void *arg;
};
/* Look at every port of this user that a process has open, while they go on. Needs no context. 0 or
 * an errno. */
int softnic_visit_counters(const struct softnic_counters_visitor *visitor);

/* The device list holds the ports that SOFTNIC_PORT names, separated by commas, or "softnic0";
 * opening one is softnic_open_port with everything from the environment. */
struct ibv_device **softnic_get_device_list(int *num_devices);
void softnic_free_device_list(struct ibv_device **list);
const char *softnic_get_device_name(struct ibv_device *device);
__be64 softnic_get_device_guid(struct ibv_device *device);
/* With what the name of a device's node begins; there is no such node. */
#define SOFTNIC_NODE_PREFIX "uverbs_"
/* Whether a device, which may be a real one, is of softnic's making; a sysfs path, of its giving.
 */
bool softnic_is_device(const struct ibv_device *device);
bool softnic_is_sysfs_path(const char *path);
/* The Ethernet address that belongs to a GID. EINVAL: it is none of softnic's. */
int softnic_mac_of_gid(const union ibv_gid *gid, uint8_t mac[6]);
struct ibv_context *softnic_open_device(struct ibv_device *device);
int softnic_close_device(struct ibv_context *context);

int softnic_query_device(struct ibv_context *context, struct ibv_device_attr *attr);
int softnic_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr);
int softnic_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid);
int softnic_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                         struct ibv_gid_entry *entry, uint32_t flags);
ssize_t softnic_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
                                size_t max_entries, uint32_t flags);
int softnic_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey);
int softnic_query_device_ex(struct ibv_context *context,
                            const struct ibv_query_device_ex_input *input,
                            struct ibv_device_attr_ex *attr);
int softnic_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values);
int softnic_get_async_event(struct ibv_context *context, struct ibv_async_event *event);
void softnic_ack_async_event(struct ibv_async_event *event);

struct ibv_pd *softnic_alloc_pd(struct ibv_context *context);
int softnic_dealloc_pd(struct ibv_pd *pd);
struct ibv_mr *softnic_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
struct ibv_mr *softnic_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                   int access);
int softnic_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
                     int access);
int softnic_dereg_mr(struct ibv_mr *mr);

struct ibv_comp_channel *softnic_create_comp_channel(struct ibv_context *context);
int softnic_destroy_comp_channel(struct ibv_comp_channel *channel);
struct ibv_cq *softnic_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                                 struct ibv_comp_channel *channel, int comp_vector);
struct ibv_cq_ex *softnic_create_cq_ex(struct ibv_context *context,
                                       struct ibv_cq_init_attr_ex *attr);
int softnic_resize_cq(struct ibv_cq *cq, int cqe);
int softnic_destroy_cq(struct ibv_cq *cq);
int softnic_req_notify_cq(struct ibv_cq *cq, int solicited_only);
int softnic_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
void softnic_ack_cq_events(struct ibv_cq *cq, unsigned int nevents);
int softnic_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);

struct ibv_ah *softnic_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);
int softnic_init_ah_from_wc(struct ibv_context *context, uint8_t port, struct ibv_wc *wc,
                            struct ibv_grh *grh, struct ibv_ah_attr *attr);
struct ibv_ah *softnic_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
                                         uint8_t port);
int softnic_destroy_ah(struct ibv_ah *ah);

struct ibv_srq *softnic_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
int softnic_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask);
int softnic_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr);
int softnic_destroy_srq(struct ibv_srq *srq);
int softnic_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);

struct ibv_qp *softnic_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *softnic_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
struct ibv_qp_ex *softnic_qp_to_qp_ex(struct ibv_qp *qp);
int softnic_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);
int softnic_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask,
                     struct ibv_qp_init_attr *init_attr);
int softnic_destroy_qp(struct ibv_qp *qp);
int softnic_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
/*
 * A doorbell of softnic carries requests out, which a NIC would do beside the CPU. From now on,
 * while *wanted at a doorbell of this queue pair, the time stamp counter's ticks that this part
 * took (where there is none: ns) are added to *ticks, by the thread that rings. wanted NULL: no
 * more. 0.
 */
int softnic_time_device(struct ibv_qp *qp, const bool *wanted, uint64_t *ticks);
int softnic_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
/*
 * When to poll next, on the port's clock (CLOCK_MONOTONIC, unless one was handed), by what the port
 * knows now: while requests wait for the wire, in the middle of the alpha during which the next may
 * enter it and it is not idle yet; else when the first completion of this queue is due. UINT64_MAX:
 * nothing is known to come. 0, or EOPNOTSUPP where the wire has no shape.
 */
int softnic_next_poll(struct ibv_cq *cq, uint64_t *at_ns);

#endif
