/* SPDX-License-Identifier: MIT */
/*
 * sstar collectives: AllReduce and its kin, an aggregating all-to-all, and what they should cost.
 *
 * Conventions as in transport.h: 0 or a negative errno, the sentence in sstar_last_error(world).
 */
#ifndef SSTAR_COLLECTIVES_H
#define SSTAR_COLLECTIVES_H

#ifdef SSTAR_INSIDE_PROJECT
#include "transport/transport.h"
#else
#include <sstar/transport.h>
#endif

#include <errno.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the wire, as measured ------------------------------------------------------------------- */

/* What the price of anything is computed from. T(S) = alpha + S/beta for a lone message; a stream
 * is spaced gap + S/beta. */
struct sstar_cost {
    double alpha_us;
    double gap_us;
    double beta_gbps; /* 1e9 bytes per second */
    /* What the ranks add to it; 0 unless measured (sstar_collective_measure). */
    double overhead_us;  /* o: from a message being there until the rank that receives it has acted
                            on it; waiting for a core counts */
    double node_us;      /* one step of a node's ranks through their memory, of no bytes */
    double byte_ns;      /* gamma: a rank's work for a byte of a message, sent or received */
    double node_byte_ns; /* a node step's for each byte of the vector */
};
static inline double sstar_s_star_bytes(const struct sstar_cost *c)
{
    return c->alpha_us * c->beta_gbps * 1e3;
}
static inline double sstar_s_star_rate_bytes(const struct sstar_cost *c)
{
    return c->gap_us * c->beta_gbps * 1e3;
}
/* Measure quickly (tens of milliseconds) between one rank of each of two nodes and tell all ranks
 * the same figures; between two ranks of one node if there is one node only. All zero for a world
 * of one rank, which has no wire. Collective. */
SSTAR_API int sstar_measure_cost(struct sstar_world *world, struct sstar_cost *cost);

/* ---- collective operations ------------------------------------------------------------------ */

enum sstar_type {
    SSTAR_FLOAT32,
    SSTAR_FLOAT64,
    SSTAR_INT32,
    SSTAR_INT64,
    SSTAR_FLOAT16,
    SSTAR_BFLOAT16,
    SSTAR_FLOAT8_E4M3, /* OCP 8-bit floating point 1.0 */
    SSTAR_FLOAT8_E5M2,
    SSTAR_INT8,
    SSTAR_INT16,
    SSTAR_UINT8,
    SSTAR_UINT32,
    SSTAR_UINT64
};
/* An average is the sum, divided once at the end by the number of ranks; integers towards zero. */
enum sstar_op { SSTAR_SUM, SSTAR_MIN, SSTAR_MAX, SSTAR_PROD, SSTAR_AVG };
enum { SSTAR_TYPES = SSTAR_UINT64 + 1, SSTAR_OPS = SSTAR_AVG + 1 };

/*
 * With n ranks and `count` as given to the call:
 *
 *     AllReduce       send: count                 recv: count on every rank, reduced over all
 *     ReduceScatter   send: n * count             recv: count, block r on rank r
 *     AllGather       send: count                 recv: n * count, the block of rank r at r * count
 *     Broadcast       send: count on the root     recv: count on every rank
 *     Reduce          send: count                 recv: count on the root
 *     Barrier         nothing; no rank leaves before all have come
 *
 * Memory that an operation does not name for a rank is not looked at and may be NULL. In place:
 * send == recv; ReduceScatter: recv == send + r * count; AllGather: send == recv + r * count.
 */
enum sstar_operation {
    SSTAR_ALL_REDUCE,
    SSTAR_REDUCE_SCATTER,
    SSTAR_ALL_GATHER,
    SSTAR_BROADCAST,
    SSTAR_REDUCE,
    SSTAR_BARRIER,
    SSTAR_OPERATIONS
};
/* Each is a file collectives/schedule_NAME.c with its cost. Not every operation has every one.
 * HIERARCHICAL: that of those below it that costs least. AUTO: that of all that costs least, or
 * what SSTAR_ALGORITHM says. */
enum sstar_algorithm {
    SSTAR_AUTO,
    SSTAR_RING,
    SSTAR_DOUBLING,
    SSTAR_HALVING,
    SSTAR_CIRCULANT,
    SSTAR_TREE,
    SSTAR_HIERARCHICAL,
    SSTAR_HIERARCHICAL_RING,
    SSTAR_HIERARCHICAL_DOUBLING,
    SSTAR_HIERARCHICAL_HALVING,
    SSTAR_HIERARCHICAL_TREE,
    SSTAR_HIERARCHICAL_CIRCULANT,
    SSTAR_ALGORITHMS
};

SSTAR_API size_t sstar_type_bytes(enum sstar_type type);
SSTAR_API const char *
sstar_type_name(enum sstar_type type); /* "float", "double", "int32", "half", .. */
SSTAR_API const char *sstar_op_name(enum sstar_op op);
SSTAR_API const char *sstar_operation_name(enum sstar_operation operation); /* "allreduce", .. */
SSTAR_API const char *sstar_algorithm_name(enum sstar_algorithm algorithm);
/* Whether the operation can be done this way; AUTO and HIERARCHICAL always can. */
SSTAR_API bool sstar_algorithm_exists(enum sstar_operation operation,
                                      enum sstar_algorithm algorithm);

struct sstar_collective_attr {
    enum sstar_operation operation;
    enum sstar_algorithm algorithm;
    int root;             /* of Broadcast and Reduce */
    uint32_t queue_pairs; /* 0: the world's default */
    uint32_t slice_bytes; /* largest piece that is sent as one message; 0: chosen */
    enum sstar_type
        wire_type;        /* what SSTAR_FLOAT32 is shortened to where it crosses nodes: FLOAT16,
                             BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2; FLOAT32 (0): not at all */
    bool progress_thread; /* see sstar_collective_start; each rank as it likes */
};
/*
 * With a wire_type of p significant bits (half 11, bfloat16 8, fp8_e4m3 4, fp8_e5m2 3) a float32
 * that crosses nodes is rounded to nearest even at each crossing, with a relative error of at most
 * u = 2^-p, or of eta/2 where it is subnormal there (the least number eta is 2^-24, 2^-133, 2^-9,
 * 2^-16). Sums are made in float32. The result of AllReduce, AllGather and Broadcast is the rounded
 * value on every rank, the one that computed it included, so all have the same bits; Broadcast and
 * AllGather in place round their own input too. With H roundings at most on the way of a
 * contribution,
 *
 *     |sum - exact| <= ((1 + u)^H (1 + 2^-24)^n - 1) sum |x_r| + n (1 + u)^H eta
 *
 * over n ranks, each rounding being a factor of 1 + d, |d| <= u (N. J. Higham, "Accuracy and
 * stability of numerical algorithms", 2002, ch. 3); ring, and the chain of Reduce: H = N + 1 for N
 * nodes; all others: H = ceil(log2 n) + 2, n being the number of nodes with hierarchical ones.
 * Broadcast and AllGather: H = 1. What does not fit becomes infinity, in fp8_e4m3, which has none,
 * NaN: not the greatest number, as it must not pass for a result (OCP 8-bit Floating Point
 * Specification 1.0, non-saturating mode). NaN stays NaN. In a world of one node, and for other
 * types, nothing is rounded.
 */
/* An operation that is planned: started as often as wanted, one at a time. Several plans may be
 * under way together. */
struct sstar_collective;
/* Open the links that the algorithm needs; `attr` NULL: AllReduce, AUTO. Collective. */
SSTAR_API int sstar_collective_open(struct sstar_world *world,
                                    const struct sstar_collective_attr *attr,
                                    struct sstar_collective **plan);
SSTAR_API void sstar_collective_close(struct sstar_collective *plan);
/*
 * Do it. Collective; all ranks give the same count, type and op (op: of the operations that reduce;
 * Barrier takes no notice of any of them). Any memory; memory from sstar_alloc is used without
 * copies. The order of summation is fixed for an operation, an algorithm, a world and a count, as
 * its file collectives/schedule_NAME.c says, and does not depend on slices, on who comes first or
 * on where the memory lies: the same input gives the same bits on every rank and every run. Where
 * AllReduce has more ranks than cores on one node, how many cores there are (the fewest of any
 * rank, agreed on when the plan is opened) belongs to the world, since sums are made within a core
 * first; a flat algorithm, by name or in SSTAR_ALGORITHM, takes no notice of cores. min and max: a
 * NaN in any input gives NaN; -0 is less than +0.
 */
SSTAR_API int sstar_collective_run(struct sstar_collective *plan, const void *send, void *recv,
                                   size_t count, enum sstar_type type, enum sstar_op op);
/*
 * The same in parts: start it, do something else, and test now and then (1: done, 0: not yet;
 * each call moves it on) or wait; once it is done both go on to say so (1 and 0, or its error)
 * until the next start. The memory must stay as it is meanwhile. -EBUSY: one is under way already.
 * Whoever waits in any call on the world moves all on that was started there, so ranks may wait for
 * several in different orders. Otherwise nothing moves between the calls, unless a plan of the
 * world was opened with `progress_thread`: from then until the world is closed a thread of the
 * library moves on what was started, and sleeps while that is nothing. It runs where the caller's
 * thread may run, and naps between looks (50 to 300 us, longer when long nothing moves) unless
 * there are twice as many cores as ranks. It and the caller's thread take turns on the world; the
 * caller needs to do nothing for that, and still uses the world from one thread at a time. What the
 * thread meets, a dead rank for instance, is the result of test and wait. Time that nobody waits
 * does not count towards SSTAR_TIMEOUT.
 */
SSTAR_API int sstar_collective_start(struct sstar_collective *plan, const void *send, void *recv,
                                     size_t count, enum sstar_type type, enum sstar_op op);
SSTAR_API int sstar_collective_test(struct sstar_collective *plan);
SSTAR_API int sstar_collective_wait(struct sstar_collective *plan);
/* AllReduce with a plan for SSTAR_AUTO that is kept in the world. */
SSTAR_API int sstar_allreduce(struct sstar_world *world, const void *send, void *recv, size_t count,
                              enum sstar_type type, enum sstar_op op);

/*
 * Prices: the steps of a schedule played on the port model of softnic.h, with the node map of the
 * world, on alpha, g and beta of its wire (as imposed, else measured when first asked) and on what
 * the ranks add, measured too: see sstar_cost. Opening with AUTO or HIERARCHICAL measures and
 * prices all that is possible; rank 0 decides and tells the others.
 */
struct sstar_price {
    enum sstar_algorithm algorithm;
    double us;      /* the parts below make it up */
    double wire_us; /* what the wire alone would take, ranks working in no time */
    double alpha_us, gap_us, beta_us, work_us;
};
/* Measure the wire and what the ranks add, for each algorithm that the plan may take, unless that
 * has been done. Some 50 ms for each, more on a slow wire. Collective. */
SSTAR_API int sstar_collective_measure(struct sstar_collective *plan);
/* The figures that prices of an algorithm are made with; zeros for one that the plan cannot take.
 */
SSTAR_API struct sstar_cost sstar_collective_cost(const struct sstar_collective *plan,
                                                  enum sstar_algorithm algorithm);
/* What the plan does with so many elements. */
SSTAR_API enum sstar_algorithm sstar_collective_choice(const struct sstar_collective *plan,
                                                       size_t count, enum sstar_type type);
/* The same, and its price: 0 before it is measured. */
SSTAR_API int sstar_collective_price(const struct sstar_collective *plan, size_t count,
                                     enum sstar_type type, struct sstar_price *price);
/* The prices of all that the plan may do: how many, in the order of the algorithms; none before it
 * is measured. `wire` NULL: on the wire that there is; else on its alpha, g and beta. */
SSTAR_API int sstar_collective_prices(const struct sstar_collective *plan,
                                      const struct sstar_cost *wire, size_t count,
                                      enum sstar_type type,
                                      struct sstar_price prices[SSTAR_ALGORITHMS]);

/* ---- the aggregating all-to-all ------------------------------------------------------------- */

enum sstar_strategy {
    SSTAR_NONE,
    SSTAR_PER_RANK,
    SSTAR_PER_NODE,
    SSTAR_MESH,     /* two or three hops by way of other ranks */
    SSTAR_ADAPTIVE, /* per destination and while running: per rank if that pair alone fills S* in
                       time, else per node, or by a mesh in worlds of many nodes */
    SSTAR_STRATEGIES
};
/* When a buffer is sent. BYTES: when it holds flush_bytes. MARGINAL: also when the wire is free and
 * waiting would save less of its time than it takes (collectives/flush.c). */
enum sstar_flush { SSTAR_FLUSH_BYTES, SSTAR_FLUSH_MARGINAL, SSTAR_FLUSH_RULES };
SSTAR_API const char *sstar_strategy_name(enum sstar_strategy strategy);
SSTAR_API const char *sstar_flush_name(enum sstar_flush flush);

struct sstar_aggregator_attr {
    enum sstar_strategy strategy;
    /* Either every message is of item_bytes, and none carries its size; or item_bytes is 0 and they
     * are of 0 to max_item_bytes. */
    uint32_t item_bytes, max_item_bytes;
    uint32_t flush_bytes; /* a buffer is sent by the first message that reaches this; 0: 4*S*,
                             measured */
    enum sstar_flush flush;
    uint32_t hops;         /* of a mesh: 2 or 3; 0: chosen. With ADAPTIVE also: use a mesh */
    double max_age_us;     /* and at this age of its first message, while ranks call; 0: no bound */
    uint32_t queue_pairs;  /* 0: the world's default */
    uint32_t buffer_bytes; /* room for messages under way, of each kind and pair; 0: chosen */
    /* For the ledger's exact counts past these sizes; 0: from `flush_bytes` 0 or the imposed wire,
     * if they are known from there, else not counted. */
    double s_star_bytes, s_star_rate_bytes;
};
struct sstar_aggregator;
/* Data lies aligned to 8 bytes; with item_bytes to 4 if that divides them, else it may lie
 * anywhere.
 */
struct sstar_item {
    const void *data; /* in place, until the next pull or advance; aligned to 8 bytes, or with
                         item_bytes to 4 if those are a multiple of 4, else to nothing */
    uint32_t bytes;
    int source;
};

/* Collective. */
SSTAR_API int sstar_aggregator_open(struct sstar_world *world,
                                    const struct sstar_aggregator_attr *attr,
                                    struct sstar_aggregator **aggregator);
SSTAR_API void sstar_aggregator_close(struct sstar_aggregator *aggregator);
/* Bytes for messages under way that the rank which needs most of them takes in a world of so many
 * ranks, with `ranks_per_node` on each node but the last: what open asks the hosts for before it
 * takes it (-ENOMEM on every rank if a host has not got it); the device's own queues not counted.
 * attr->flush_bytes must be given. 0 or -EINVAL. */
SSTAR_API int sstar_aggregator_memory(const struct sstar_aggregator_attr *attr, int ranks,
                                      int ranks_per_node, uint64_t *most_bytes);
/* Start again after all were done (advance returned 0). Collective. */
SSTAR_API int sstar_aggregator_reset(struct sstar_aggregator *aggregator);

/* What sstar_push must know to put a message where it is gathered; the aggregator's own. */
struct sstar_lane {
    unsigned char *at, *end; /* the next message goes there, if it fits */
    uint32_t stride;         /* header and payload of a message of item_bytes; 0: sizes vary */
    uint32_t header_bytes;   /* of a message */
    uint32_t item_bytes;     /* of every payload; UINT32_MAX: they vary */
    uint32_t count, bytes;   /* put there so far: messages and payload; if sizes vary */
    unsigned char *begin;    /* from here on, if they do not */
};
/* What sstar_pull hands out next: messages in a row, alike in size, and from one rank unless a
 * header says from whom each is. */
struct sstar_window {
    const unsigned char *at, *end;
    uint32_t header_bytes, bytes, stride;
    int source;
};
struct sstar_aggregator_front {
    uint32_t ranks, rank;
    uint32_t most_bytes;       /* of a message, if sizes vary */
    struct sstar_lane **lanes; /* [ranks] */
    struct sstar_window window;
};
static inline uint64_t sstar_lane_room(const struct sstar_lane *lane, uint32_t bytes)
{
    return lane->stride ? lane->stride : 8 + (((uint64_t)bytes + 7) & ~(uint64_t)7);
}
/* The first words go one by one: as one vector they would wait for the stores that have just made
 * them, and so for all stores before, since a processor hands a store on to a load that it covers,
 * but not two. */
static inline void sstar_lane_copy(unsigned char *to, const unsigned char *from, uint32_t bytes)
{
    uint32_t i = 0;
    for (; i + 8 <= bytes && i < 64; i += 8) {
        uint64_t word;
        __builtin_memcpy(&word, from + i, sizeof word);
        __asm__("" : "+r"(word)); /* so that the compiler does not make one of them again */
        __builtin_memcpy(to + i, &word, sizeof word);
    }
    if (i != bytes)
        __builtin_memcpy(to + i, from + i, bytes - i);
}
/* Little-endian: size (if it varies), source, destination; then the payload. */
static inline void sstar_lane_put(struct sstar_lane *lane, uint32_t source, uint32_t destination,
                                  const void *data, uint32_t bytes)
{
    unsigned char *at = lane->at;
    uint32_t header = lane->header_bytes, tag = source | destination << 16;
    lane->at = at + sstar_lane_room(lane, bytes);
    if (!lane->stride) {
        lane->count++;
        lane->bytes += bytes;
        __builtin_memcpy(at, &bytes, sizeof bytes);
    }
    if (header)
        __builtin_memcpy(at + header - 4, &tag, sizeof tag);
    sstar_lane_copy(at + header, (const unsigned char *)data, bytes);
}
SSTAR_API int sstar_push_slow(struct sstar_aggregator *aggregator, int to, const void *data,
                              uint32_t bytes);

/* Hand over a message for rank `to` (itself included). It is copied. Messages from one rank to
 * another arrive in the order of pushing. -EAGAIN: full; pull what has arrived, advance, and push
 * again. */
static inline int sstar_push(struct sstar_aggregator *aggregator, int to, const void *data,
                             uint32_t bytes)
{
    const struct sstar_aggregator_front *front = (const struct sstar_aggregator_front *)aggregator;
    if ((uint32_t)to < front->ranks) {
        struct sstar_lane *lane = front->lanes[to];
        uint64_t room = (uint64_t)(lane->end - lane->at);
        if (lane->item_bytes == bytes ? room >= lane->stride
                                      : !lane->stride && bytes <= front->most_bytes &&
                                            room >= sstar_lane_room(lane, bytes)) {
            sstar_lane_put(lane, front->rank, (uint32_t)to, data, bytes);
            return 0;
        }
    }
    return sstar_push_slow(aggregator, to, data, bytes);
}
static inline void sstar_window_take(struct sstar_window *window, struct sstar_item *item)
{
    item->data = window->at + window->header_bytes;
    item->bytes = window->bytes;
    item->source = window->source;
    if (window->header_bytes) { /* its last four bytes: source, destination */
        uint16_t source;
        __builtin_memcpy(&source, window->at + window->header_bytes - 4, sizeof source);
        item->source = source;
    }
    window->at += window->stride;
}
SSTAR_API int sstar_pull_slow(struct sstar_aggregator *aggregator, struct sstar_item *item);

/* 1 and the next message that has arrived, 0 if there is none now, or a negative errno. */
static inline int sstar_pull(struct sstar_aggregator *aggregator, struct sstar_item *item)
{
    struct sstar_window *window = &((struct sstar_aggregator_front *)aggregator)->window;
    if (window->at == window->end)
        return sstar_pull_slow(aggregator, item);
    sstar_window_take(window, item);
    return 1;
}
/* Move messages on; `done`: this rank will push no more. 1: go on pulling and advancing; 0: every
 * rank is done and every message has been pulled. Waits a little when nothing moves (spin, yield,
 * sleep), so a loop around it waits well. */
SSTAR_API int sstar_advance(struct sstar_aggregator *aggregator, bool done);

/* Wire messages of at least `bytes`, and the messages and payload bytes that travelled in them. */
struct sstar_past {
    double bytes;
    uint64_t wire_messages, messages, message_bytes;
};
enum {
    SSTAR_PAST_S_STAR,
    SSTAR_PAST_4_S_STAR,
    SSTAR_PAST_9_S_STAR,
    SSTAR_PAST_S_STAR_RATE,
    SSTAR_PASTS
};

/* What one rank sent since open or reset; a message counts from when its buffer leaves. Add up over
 * ranks with sstar_allgather. With `node` the wire messages of a node stand in the ledgers of its
 * gateways. */
struct sstar_ledger {
    uint64_t messages, message_bytes;     /* pushed here */
    uint64_t cross_messages, cross_bytes; /* of these, to other nodes (payload) */
    uint64_t wire_messages, wire_bytes;   /* sent across nodes, headers included */
    /* Wire messages by size class: class i holds sizes in [2^(i/4), 2^((i+1)/4)); and the messages
     * and payload bytes that travelled in them. */
    uint64_t wire_class[128], wire_class_messages[128], wire_class_bytes[128];
    uint64_t wire_class_total[128]; /* bytes of the wire messages of a class, headers included */
    struct sstar_past past[SSTAR_PASTS]; /* exact, past S*, 4*S*, 9*S* and S*rate */
    /* Age of a buffer's first message, from push to doorbell, on the sender's clock: class i holds
     * [2^(i/4), 2^((i+1)/4)) ns. */
    uint64_t age_class[192];
    uint64_t copied_bytes; /* by this rank, while pushing, gathering and handing out */
    uint64_t full;         /* pushes refused with -EAGAIN */
    /* Messages that need not cross because they were merged with another, or one copy was enough
     * for a node; and their payload. Of a combiner and of a mixture of experts. */
    uint64_t merged_messages, merged_bytes;
    /* Messages pushed here, by size class as wire_class; of sizes that vary, by the mean of those
     * that were put into a lane together. */
    uint64_t message_class[128];
    uint64_t age_greatest_ns;
    /* Where the time went. Of pushing and copying only samples are timed: one call of eight, and of
     * the copies every 16th of those that begin a lane or stand alone. */
    uint64_t pushing_ns;   /* in sstar_push, looks at the wire and copies not counted */
    uint64_t copying_ns;   /* of messages: as they are pushed, and on their way */
    uint64_t moving_ns;    /* looking for arrivals, gathering, passing on, ringing */
    uint64_t waiting_ns;   /* in advance, while nothing moved */
    uint64_t memory_bytes; /* that this rank took for messages under way */
    /* Of `adaptive`: what one destination that goes straight may have of that at most, here and at
     * the destination each; 0: there is no such pool. */
    uint64_t pool_bound_bytes;
};
SSTAR_API void sstar_aggregator_ledger(const struct sstar_aggregator *aggregator,
                                       struct sstar_ledger *out);
/* The same for what this rank sent over its link to each rank: to the gateway of another node with
 * `node`, to the next hop with `mesh`. */
struct sstar_link_ledger {
    uint64_t wire_messages, wire_bytes;
    uint64_t messages, message_bytes; /* that travelled in them */
    uint64_t past_bytes;              /* of these, in wire messages past S* */
    uint64_t pool_peak_bytes;         /* of the pool here, most at once */
    /* As in the ledger; ranks of this node have these too. Refused: from the first push that found
     * no room to the one that did. */
    uint64_t pushing_ns, copying_ns, refused_ns;
};
/* links[rank], of which there are as many as ranks. */
SSTAR_API void sstar_aggregator_links(const struct sstar_aggregator *aggregator,
                                      struct sstar_link_ledger *links);

/* ---- combining ------------------------------------------------------------------------------ */

/*
 * Messages for the same key of the same rank, merged on their way: those of one node at a rank of
 * that node, the key's gateway, into one share, which crosses; the shares of the nodes at the rank
 * that the key belongs to. Order is fixed, so the same parts give the same bits on every run: at
 * the gateway float32(weight * element) in the order of `place`, by `op` in float32, rounded once
 * to `type`; then the shares in the order of nodes, in float32.
 */
struct sstar_combiner_attr {
    struct sstar_aggregator_attr gather; /* strategy, and when to send; sizes are of no meaning */
    enum sstar_type type;                /* of what is handed over and of what crosses: a float of
                                            32 bits or less */
    enum sstar_op op;                    /* SUM, MIN, MAX or PROD */
    uint32_t count;                      /* elements of a message */
    uint32_t keys;                       /* every rank has the keys 0 .. keys - 1 */
    uint32_t parts;                      /* of a key and node: at most so many */
    uint32_t nodes;                      /* that have parts of one key: at most so many; 0: all */
};
struct sstar_combiner;
struct sstar_part {
    int to; /* the rank that the key belongs to */
    uint32_t key;
    uint32_t place, here; /* 0 .. here - 1, among the `here` parts of the key that this node has */
    uint32_t nodes;       /* that have parts of the key */
    float weight;
    const void *data; /* attr.count elements, in memory from sstar_alloc; it must stay as it is
                         until advance returns 0 */
};
struct sstar_combined {
    uint32_t key;
    const float *values; /* attr.count, until the next call */
};
/* Collective. `memory_bytes`, unless NULL: what open takes for tables and shares on this rank,
 * above what its aggregator takes. */
SSTAR_API int sstar_combiner_open(struct sstar_world *world, const struct sstar_combiner_attr *attr,
                                  struct sstar_combiner **combiner, uint64_t *memory_bytes);
SSTAR_API void sstar_combiner_close(struct sstar_combiner *combiner);
/* As sstar_push, sstar_pull, sstar_advance and sstar_aggregator_reset. A key comes once, when the
 * parts of all its nodes are in. */
SSTAR_API int sstar_combiner_push(struct sstar_combiner *combiner, const struct sstar_part *part);
SSTAR_API int sstar_combiner_pull(struct sstar_combiner *combiner, struct sstar_combined *out);
SSTAR_API int sstar_combiner_advance(struct sstar_combiner *combiner, bool done);
SSTAR_API int sstar_combiner_reset(struct sstar_combiner *combiner);
/* Its aggregator's; merged_messages: parts that need not cross because others of their key do. */
SSTAR_API void sstar_combiner_ledger(const struct sstar_combiner *combiner,
                                     struct sstar_ledger *out);

/* ---- mixture of experts --------------------------------------------------------------------- */

/*
 * Dispatch: a token crosses to a node once, however many of its experts live there, lands at one
 * rank and is read there by all of them. Combine: the experts' results, weighted, are combined as
 * above (key: the token; place: the order in which it chose the experts of a node).
 * Expert e lives on rank e * ranks / experts (whole).
 */
struct sstar_moe_attr {
    struct sstar_aggregator_attr gather; /* as for a combiner */
    uint32_t experts;
    uint32_t top;                            /* experts that a token chooses, at most */
    uint32_t tokens;                         /* of a rank in a batch, at most */
    uint32_t values;                         /* of a token, and of a result */
    enum sstar_type token_type, result_type; /* floats of 32 bits or less */
};
struct sstar_moe;
/* A token for an expert of this rank. */
struct sstar_moe_row {
    const void *token; /* values of token_type, in place */
    void *result;      /* room for values of result_type: the expert's answer goes here */
    uint32_t expert;
    int source;     /* the rank that it came from */
    uint32_t index; /* its number there */
    float weight;
    uint32_t place, here, nodes; /* see sstar_part */
};
/* Collective. -ENOMEM when a host has not the memory: see sstar_moe_memory. */
SSTAR_API int sstar_moe_open(struct sstar_world *world, const struct sstar_moe_attr *attr,
                             struct sstar_moe **moe);
SSTAR_API void sstar_moe_close(struct sstar_moe *moe);
/* What open takes on this rank for tokens that land and for shares, the aggregators' own not
 * counted; results take room besides, as many as there are rows. */
SSTAR_API uint64_t sstar_moe_memory(const struct sstar_moe *moe);
/*
 * Token t is tokens[t * values ..]; its experts are experts[t * top ..] (SSTAR_NO_EXPERT: none,
 * also for all), with their weights. Gives the rows of this rank's experts, by expert, source and
 * index; they are there until the next dispatch. Collective.
 */
#define SSTAR_NO_EXPERT UINT32_MAX
SSTAR_API int sstar_moe_dispatch(struct sstar_moe *moe, const void *tokens, const uint32_t *experts,
                                 const float *weights, uint32_t n, struct sstar_moe_row **rows,
                                 size_t *n_rows);
/* When all results are there: out[t * values ..] is the weighted sum for token t of the dispatch
 * before, 0 for one without an expert. Collective. */
SSTAR_API int sstar_moe_combine(struct sstar_moe *moe, float *out);
/* Of the last dispatch and of the last combine; merged_messages: how often a token need not cross
 * because it did for another expert; results that need not because they were added to another. */
SSTAR_API void sstar_moe_ledgers(const struct sstar_moe *moe, struct sstar_ledger *dispatch,
                                 struct sstar_ledger *combine);

/* ---- questions and answers ------------------------------------------------------------------ */

/*
 * Ask any rank, and pull its answer: every question is answered exactly once, and the answers of
 * one rank come in the order in which it was asked. Two streams of the aggregator, one for
 * questions, one for answers: answers are taken whenever the asker pulls, so they never wait for
 * questions, and a question is read only when the answer before it has its place. So bounded memory
 * cannot lock up as long as all ranks go on pulling and advancing.
 */
struct sstar_exchange_attr {
    /* Of either stream; its item_bytes and max_item_bytes are not looked at. There is always an age
     * bound, since who waits for an answer asks no more: max_age_us 0 is 200. */
    struct sstar_aggregator_attr way;
    uint32_t question_bytes, answer_bytes; /* of each */
    uint32_t outstanding; /* most questions to one rank whose answers were not pulled; 0: chosen */
    /* Answer n questions of a rank, in a row question_bytes apart and aligned as an sstar_item is:
     * fill `answers`, answer_bytes apart and aligned to 64. Called while this rank pulls and
     * advances; must not call this exchange. */
    void (*answer)(void *context, int asker, const void *questions, void *answers, uint32_t n);
    void *context;
};
struct sstar_exchange;
struct sstar_answer {
    const void *data; /* in place, until the next pull or advance; aligned as an sstar_item is */
    uint64_t tag;     /* of the question */
    int source;
};

/* Collective, as those of the aggregator are. Memory: sstar_aggregator_memory twice, with
 * question_bytes and answer_bytes as item_bytes, and 8 B for each rank and outstanding question. */
SSTAR_API int sstar_exchange_open(struct sstar_world *world, const struct sstar_exchange_attr *attr,
                                  struct sstar_exchange **exchange);
SSTAR_API void sstar_exchange_close(struct sstar_exchange *exchange);
SSTAR_API int sstar_exchange_reset(struct sstar_exchange *exchange);

/* What is asked of a rank and not yet answered; the exchange's own. */
struct sstar_asked {
    uint64_t *tags;
    uint32_t mask, asked, answered; /* counts that go round */
};
struct sstar_exchange_front {
    struct sstar_aggregator *questions, *answers;
    struct sstar_asked *asked; /* [ranks] */
    uint32_t ranks;
};

/* Ask rank `to` (oneself included); `bytes` must be question_bytes. The tag stays here and comes
 * back with the answer. -EAGAIN: full; pull answers, advance, and ask again. */
static inline int sstar_ask(struct sstar_exchange *exchange, int to, const void *question,
                            uint32_t bytes, uint64_t tag)
{
    struct sstar_exchange_front *front = (struct sstar_exchange_front *)exchange;
    if ((uint32_t)to >= front->ranks)
        return sstar_push_slow(front->questions, to, question, bytes);
    struct sstar_asked *asked = &front->asked[to];
    if (asked->asked - asked->answered > asked->mask)
        return -EAGAIN;
    int err = sstar_push(front->questions, to, question, bytes);
    if (!err)
        asked->tags[asked->asked++ & asked->mask] = tag;
    return err;
}
/* 1 and the next answer, 0 if there is none now, or a negative errno. */
static inline int sstar_pull_answer(struct sstar_exchange *exchange, struct sstar_answer *answer)
{
    struct sstar_exchange_front *front = (struct sstar_exchange_front *)exchange;
    struct sstar_item item;
    int got = sstar_pull(front->answers, &item);
    if (got <= 0)
        return got;
    struct sstar_asked *asked = &front->asked[item.source];
    answer->data = item.data;
    answer->tag = asked->tags[asked->answered++ & asked->mask];
    answer->source = item.source;
    return 1;
}
/* Answer what was asked of us and move both streams on; `done`: this rank asks no more. As
 * sstar_advance: 0 when every rank is done and every answer has been pulled. */
SSTAR_API int sstar_exchange_advance(struct sstar_exchange *exchange, bool done);
/* What this rank's two streams did. */
SSTAR_API void sstar_exchange_ledgers(const struct sstar_exchange *exchange,
                                      struct sstar_ledger *questions, struct sstar_ledger *answers);

#ifdef __cplusplus
}
#endif
#endif
