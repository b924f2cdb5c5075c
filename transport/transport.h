/* SPDX-License-Identifier: MIT */
/*
 * sstar transport: a world of ranks, links between them, and one-sided puts that raise a signal.
 *
 * Conventions. Functions return 0 (or a count, where said) or a negative errno; outputs are set
 * only on success. The sentence that explains a failure is in sstar_last_error(world). After a
 * failure of a rank or of a link the world is failed: every later call returns the same error.
 * A world and all that hangs off it belong to one thread at a time. Nothing waits for ever: a wait
 * that sees no progress says so on stderr after 5 s and fails at the world's timeout.
 * "Collective" means that every rank of the world makes the same calls in the same order.
 */
#ifndef SSTAR_TRANSPORT_H
#define SSTAR_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SSTAR_API __attribute__((visibility("default")))

/* ---- configuration ------------------------------------------------------------------------- */

/* The shape to impose on softnic's wire; all zero: unshaped. beta_gbps: 1e9 bytes per second. */
struct sstar_wire {
    double alpha_us;
    double gap_us;
    double beta_gbps;
};

/* The order in which bytes land on softnic: as on one path, or in any that a seed picks of those
 * that adaptive routing and relaxed PCIe ordering allow. */
struct sstar_order {
    bool relaxed;
    bool keep_qps; /* with relaxed: the messages of one queue pair keep their order, and the last
                      word of each lands last */
    uint64_t seed;
};

/* How queue pairs are connected: by what the ranks tell each other, or through librdmacm. */
enum sstar_connect { SSTAR_CONNECT_EXCHANGE, SSTAR_CONNECT_RDMACM };

/* Who builds work requests and rings for them: the thread that calls, or a CPU thread of the
 * library that it hands descriptors to (docs/control-path.md). */
enum sstar_control { SSTAR_CONTROL_DIRECT, SSTAR_CONTROL_PROXY };

enum sstar_log_level {
    SSTAR_LOG_NONE,
    SSTAR_LOG_VERSION,
    SSTAR_LOG_WARN,
    SSTAR_LOG_INFO,
    SSTAR_LOG_TRACE
};

/*
 * Everything that can be set, read once by sstar_config_init(). A caller may change members
 * between that and sstar_world_open(). docs/running.md lists the variables.
 */
struct sstar_config {
    /* Who we are; from the launcher's environment, all from the same launcher. size 1 without one.
     */
    int rank;
    int size;
    char
        launcher[16]; /* "sstar", "torchrun", "openmpi", "pmix", "mpich", "slurm", "flux", "none" */
    char root_host[256];       /* MASTER_ADDR; "127.0.0.1" if size is 1 or all ranks are local */
    char root_host_origin[32]; /* the variable that it was read from */
    int root_port;             /* MASTER_PORT + 1 */
    char token[65];     /* SSTAR_TOKEN or the launcher's job id; ranks of other jobs are refused */
    int ranks_per_node; /* SSTAR_RANKS_PER_NODE: virtual nodes of so many ranks; 0: real nodes */
    bool port_per_rank; /* SSTAR_PORTS=node|rank: ranks of a node share a softnic port, or not */
    struct sstar_wire wire;   /* SSTAR_WIRE=ALPHA_US,GAP_US,BETA_GBPS */
    struct sstar_order order; /* SSTAR_ORDER=strict|relaxed,SEED|relaxed-qps,SEED */
    /* SSTAR_IB_HCA: a device's name, "softnic", or "" for automatic; of a list "a,b,.." of n names
     * rank r takes entry r mod n */
    char ib_dev[64];
    enum sstar_connect connect; /* default SSTAR_CONNECT_EXCHANGE */
    /* SSTAR_CONTROL=direct|proxy[,THREADS[,CPUS]], as in proxy,2,0,4-5; proxy i runs on the i-th of
     * the CPUs, else near the device */
    enum sstar_control control;
    int proxy_threads; /* default 1 */
    char proxy_cpus[64];
    int traffic_class;      /* of packets, 0 to 255; -1: the system's */
    int service_level;      /* 0 to 15; -1: the system's */
    int gid_index;          /* SSTAR_IB_GID_INDEX, -1: automatic */
    int queue_pairs;        /* SSTAR_QP: queue pairs of a link across nodes, 1 to 16, default 4 */
    double timeout_s;       /* SSTAR_TIMEOUT, default 60; INFINITY: for ever */
    char socket_ifname[64]; /* SSTAR_SOCKET_IFNAME */
    /* NULL, or a pcapng file to which softnic appends what goes over the wire; borrowed. Bytes kept
     * of a frame, 0: all. */
    const char *capture;
    uint32_t capture_snap;
    /* NULL, or a plan by which the device misbehaves (sstar-faults(5)), "@FILE" to read it from
     * one; borrowed while the world is open. The seed holds where the plan names none. */
    const char *faults;
    uint64_t faults_seed;
    bool check_verbs; /* say what is wrong with how the device is used (sstar(1), --check-verbs) */
    enum sstar_log_level log_level; /* SSTAR_LOG_LEVEL: NONE, VERSION, WARN, INFO, TRACE */
    char log_file[256];             /* SSTAR_LOG_FILE: %h host, %p pid, %r rank; "" is stderr */
    char algorithm[24];             /* SSTAR_ALGORITHM: what AUTO means in collectives, or "" */
    char tuning[256];               /* SSTAR_TUNING: a file that keeps what AUTO chose, or "" */
    /* For sstar_config_describe: the variable each setting was read from, and a check of its value
     * then, by which a later change is known. */
    char origins[24][28];
    uint32_t as_read[24];
};

/* Fill `config` from the environment. -EINVAL with a sentence in `error` for a value that cannot be
 * meant (which variable, what it held, what it takes). */
SSTAR_API int sstar_config_init(struct sstar_config *config, char *error, size_t error_size);
/* The order that a text means: "strict", "relaxed,SEED" or "relaxed-qps,SEED", a whole number. 0 or
 * -EINVAL. */
SSTAR_API int sstar_order_parse(const char *text, struct sstar_order *order);
/* The same for the control path, as SSTAR_CONTROL takes it: sets control, proxy_threads and
 * proxy_cpus. 0 or -EINVAL. */
SSTAR_API int sstar_control_parse(const char *text, struct sstar_config *config);
/* Number of settings, and the i-th as text: its variable, value and origin ("default", the name of
 * the variable it was read from, or "caller" if it was changed since). */
SSTAR_API int sstar_config_count(void);
SSTAR_API void sstar_config_describe(const struct sstar_config *config, int i,
                                     const char **variable, char *value, size_t value_size,
                                     const char **origin);

/* ---- the world ----------------------------------------------------------------------------- */

struct sstar_world;

/* Meet the other ranks. Collective. On failure *world is untouched and the sentence is in `error`.
 */
SSTAR_API int sstar_world_open(struct sstar_world **world, const struct sstar_config *config,
                               char *error, size_t error_size);
/* Leave. Collective when the world has not failed (others learn that we left in good order).
 * Accepts NULL. */
SSTAR_API void sstar_world_close(struct sstar_world *world);

SSTAR_API int sstar_rank(const struct sstar_world *world);
SSTAR_API int sstar_size(const struct sstar_world *world);
SSTAR_API int sstar_node_count(const struct sstar_world *world);
/* Node of a rank (0 ..), its place among the ranks of its node, how many the node has, and the
 * inverse: the rank that stands at place `local` of `node`. */
SSTAR_API int sstar_node_of(const struct sstar_world *world, int rank);
SSTAR_API int sstar_local_rank_of(const struct sstar_world *world, int rank);
SSTAR_API int sstar_local_size_of(const struct sstar_world *world, int node);
SSTAR_API int sstar_rank_at(const struct sstar_world *world, int node, int local);

/* The sentence about the last failure; "" if there was none. Valid until the next call. */
SSTAR_API const char *sstar_last_error(const struct sstar_world *world);
/* Time in ns on the world's one clock. */
SSTAR_API uint64_t sstar_now_ns(const struct sstar_world *world);

/* Control plane, over TCP: for setting up, never for measured work. Collective. `all` holds
 * size * bytes, rank by rank; alltoall sends block r of `send` to rank r. */
SSTAR_API int sstar_barrier(struct sstar_world *world);
SSTAR_API int sstar_allgather(struct sstar_world *world, const void *mine, size_t bytes, void *all);
SSTAR_API int sstar_alltoall_blocks(struct sstar_world *world, const void *send, size_t bytes,
                                    void *recv);
/* A barrier through memory inside nodes and through links across them: microseconds, not TCP. */
SSTAR_API int sstar_fast_barrier(struct sstar_world *world);

/* ---- memory -------------------------------------------------------------------------------- */

/* Memory that the ranks of this node can reach with load and store and the NIC without a copy.
 * Page aligned, zeroed. Local call. -ENOMEM / -ENOSPC with a sentence. */
SSTAR_API int sstar_alloc(struct sstar_world *world, size_t size_bytes, void **memory);
SSTAR_API int sstar_free(struct sstar_world *world, void *memory);

/* Memory registered with the NIC, ours or the caller's (memory from sstar_alloc, or any other). */
struct sstar_region;
/* What a peer needs to reach a region; 32 bytes, little-endian, sent to it by any means. */
struct sstar_remote_region {
    uint64_t address;
    uint64_t size_bytes;
    uint32_t rkey;
    int32_t rank;
    uint32_t magic;
    uint32_t version;
};
SSTAR_API int sstar_register(struct sstar_world *world, void *memory, size_t size_bytes,
                             struct sstar_region **region);
SSTAR_API int sstar_deregister(struct sstar_region *region);
SSTAR_API void sstar_region_describe(const struct sstar_region *region,
                                     struct sstar_remote_region *out);

/* ---- links --------------------------------------------------------------------------------- */

struct sstar_links; /* the links that were opened together; they share one completion queue */
struct sstar_link;  /* to one peer: k queue pairs through the NIC, or memory inside a node */

struct sstar_link_attr {
    uint32_t queue_pairs; /* at most 16; 0: the world's default; links inside a node have none */
    uint32_t slots;       /* messages under way in one direction, a power of two; 0: 64 */
    uint32_t slot_bytes;  /* largest message; 0: no message slots, only puts */
    uint32_t puts;        /* one-sided operations under way at most; 0: 64 */
    bool through_nic;     /* use the NIC even to peers of the same node */
    bool posts;           /* for sstar_post alone, through the NIC; slot_bytes 0 */
};

/* Connect to `peers`. Collective: every rank calls, possibly with no peers, and if a names b then b
 * names a, with the same attr. *links is freed with sstar_links_close (also collective). */
SSTAR_API int sstar_links_open(struct sstar_world *world, const int *peers, int n_peers,
                               const struct sstar_link_attr *attr, struct sstar_links **links);
SSTAR_API void sstar_links_close(struct sstar_links *links);
/* The link to `rank`, NULL if it is not among the peers. */
SSTAR_API struct sstar_link *sstar_links_to(struct sstar_links *links, int rank);
/* Move everything on: poll completions, account for arrivals, return credit. Never blocks.
 * Number of events handled, or a negative errno. */
SSTAR_API int sstar_links_progress(struct sstar_links *links);

enum {
    SSTAR_SIGNAL = 1, /* raise the peer's signal when the bytes are there */
    SSTAR_MORE = 2,   /* more follows: build, do not ring the doorbell yet */
};

/*
 * One-sided operations: build a work request and, without SSTAR_MORE, ring. -EAGAIN when `puts`
 * are under way (make progress and try again; nothing was done). The source must stay as it is
 * until sstar_link_done() has passed the ticket. A signal never overtakes the data of its own put;
 * puts of one link may arrive in any order (they take turns on its queue pairs).
 * `region` is the region that holds the local memory. A get takes no SSTAR_SIGNAL.
 */
SSTAR_API int sstar_put(struct sstar_link *link, const struct sstar_region *region,
                        const void *source, const struct sstar_remote_region *remote,
                        uint64_t offset, size_t bytes, int flags, uint64_t *ticket);
SSTAR_API int sstar_get(struct sstar_link *link, const struct sstar_region *region,
                        void *destination, const struct sstar_remote_region *remote,
                        uint64_t offset, size_t bytes, int flags, uint64_t *ticket);
/* Adds to an aligned 64-bit word; the value before is written to *before (registered memory). */
SSTAR_API int sstar_fetch_add(struct sstar_link *link, const struct sstar_region *region,
                              uint64_t *before, const struct sstar_remote_region *remote,
                              uint64_t offset, uint64_t add, int flags, uint64_t *ticket);
/* Ring for what was built with SSTAR_MORE. */
SSTAR_API int sstar_link_ring(struct sstar_link *link);
/* True when the operation with this ticket, and all before it, are complete on our side. */
SSTAR_API bool sstar_link_done(const struct sstar_link *link, uint64_t ticket);
/* Wait for that. */
SSTAR_API int sstar_link_wait(struct sstar_link *link, uint64_t ticket);
/* How many signalled puts of the peer have arrived since the link was opened: when it says n, n of
 * them are whole (a count of arrivals, which needs no order between queue pairs). */
SSTAR_API uint64_t sstar_signals(const struct sstar_link *link);
SSTAR_API int sstar_signal_wait(struct sstar_link *link, uint64_t count);

/* ---- descriptors ----------------------------------------------------------------------------
 *
 * One-sided operations that any thread may start, without a lock and without touching the world:
 * an IBRC-style control path. With control by proxy an operation becomes a descriptor of one cache
 * line in a ring; a proxy builds the work request, rings, polls and tells the caller's completion.
 * With direct control the calling thread does all of that itself, and then sstar_post and
 * sstar_links_progress, which completes, belong to the world's thread like everything else.
 */

/* What has become of operations: as many as say so raise `done`, told or not in the order of their
 * queue pair. Zeroed by the caller, and there until all have been told. One for each thread that
 * waits keeps their cache lines apart. */
struct sstar_completion {
    uint64_t done; /* complete, failed ones too; read it by sstar_completed() */
    int32_t error; /* 0, or a negative errno of one of those: -EIO the request failed (the world
                      fails with the sentence), -ECANCELED its link was closed before */
} __attribute__((aligned(64)));

static inline uint64_t sstar_completed(const struct sstar_completion *completion)
{
    return __atomic_load_n(&completion->done, __ATOMIC_ACQUIRE);
}

enum sstar_one_sided_kind { SSTAR_PUT, SSTAR_GET, SSTAR_ADD };
enum {
    SSTAR_INLINE = 4, /* a put whose source is free again when sstar_post returns: at most 16 B */
    SSTAR_TELL = 8,   /* tell completion at once, not with a later operation on its queue pair */
    SSTAR_POST_MOST = 64,
};

struct sstar_one_sided {
    enum sstar_one_sided_kind kind;
    int flags;           /* SSTAR_MORE, SSTAR_INLINE, SSTAR_TELL */
    uint32_t queue_pair; /* of the link, 0 .. attr.queue_pairs - 1; each keeps order in itself */
    uint32_t bytes;      /* SSTAR_ADD: 8 */
    void *local;         /* source, or where what is got (SSTAR_ADD: the value before) goes */
    const struct sstar_region *region; /* holds `local`; NULL with SSTAR_INLINE */
    const struct sstar_remote_region *remote;
    uint64_t offset; /* in `remote` */
    uint64_t add;
    struct sstar_completion *completion; /* or NULL */
};

/* Start `n` operations, at most SSTAR_POST_MOST, on a link that was opened with attr.posts. All or
 * none: 0; -EAGAIN when the ring, or directly the send queue, has no place for all (nothing is
 * lost: try again); -EINVAL for what cannot be meant; another negative errno when the link has
 * failed. Sets no sentence, since that belongs to the world's thread. */
SSTAR_API int sstar_post(struct sstar_link *link, const struct sstar_one_sided *operations, int n);
/* Wait, in any thread, until `count` are complete. 0; the completion's error; -ETIMEDOUT, but with
 * INFINITY never. With direct control the world's thread waits here and makes progress. */
SSTAR_API int sstar_post_wait(struct sstar_link *link, const struct sstar_completion *completion,
                              uint64_t count, double timeout_s);

/* ---- counters ------------------------------------------------------------------------------ */

struct sstar_counters {
    uint64_t wqes;                        /* work requests built */
    uint64_t doorbells;                   /* rings */
    uint64_t cqes;                        /* completions seen */
    uint64_t bytes;                       /* payload bytes sent through the NIC */
    uint64_t messages;                    /* messages and puts sent, through the NIC */
    uint64_t local_messages, local_bytes; /* inside the node, through memory */
    uint64_t credits;                     /* wire messages that carried nothing but flow control */
    uint64_t stalls;                      /* times there was no credit or no place in a queue */
    /* Time, only while sstar_counters_timed(world, true): ns of the world's thread building,
     * ringing, polling; with control by proxy what it spends on descriptors instead. */
    uint64_t build_ns, ring_ns, poll_ns;
};
SSTAR_API void sstar_counters_read(const struct sstar_world *world, struct sstar_counters *out);
SSTAR_API void sstar_counters_timed(struct sstar_world *world, bool on);

/* The device in use: its name, its class ("hardware", "softroce", "softnic", "softnic-shaped";
 * "memory" for a world of one node that has opened none), GID as text with index and type, why that
 * GID. */
struct sstar_device_info {
    char name[64];
    char device_class[24];
    char gid[64];
    int gid_index;
    char gid_why[160];
    char why[160];
    int active_mtu_bytes;
    uint32_t max_inline_bytes;
    bool arrival_in_memory;
    struct sstar_wire wire;
};
/* Opens the device if that has not happened yet. */
SSTAR_API int sstar_device_info(struct sstar_world *world, struct sstar_device_info *info);

#ifdef __cplusplus
}
#endif
#endif
