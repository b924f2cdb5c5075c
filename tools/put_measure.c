/* SPDX-License-Identifier: MIT */
/* Latency and bandwidth of puts and gets between two ranks. */
#include "tools/put.h"
#include "transport/link.h"
#include "transport/wait.h"
#include "transport/world.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 64, WARM_UP = 100, PEAK_POINTS = 2000 };
static const uint64_t alive_every_ns = 10000000000u;
enum word { WORD_GOING_ON = 1, WORD_DONE = 2 };

/* ---- opening ----------------------------------------------------------------------------------
 */

static uint64_t word_offset(const struct put_test *t)
{
    return (t->max_bytes + WORD_BYTES - 1) / WORD_BYTES * WORD_BYTES;
}

static int exchange_regions(struct put_test *t)
{
    struct sstar_remote_region mine[2], all[2][2];
    sstar_region_describe(t->send_region, &mine[0]);
    sstar_region_describe(t->recv_region, &mine[1]);
    int err = sstar_allgather(t->world, mine, sizeof(mine), all);
    if (err)
        return err;
    int peer = 1 - sstar_rank(t->world);
    t->peer_send = all[peer][0];
    t->peer_recv = all[peer][1];
    return 0;
}

static int open_memory(struct put_test *t)
{
    uint64_t bytes = word_offset(t) + WORD_BYTES;
    int err = sstar_alloc(t->world, bytes, &t->send);
    if (!err)
        err = sstar_alloc(t->world, bytes, &t->recv);
    if (!err)
        err = sstar_register(t->world, t->send, bytes, &t->send_region);
    if (!err)
        err = sstar_register(t->world, t->recv, bytes, &t->recv_region);
    return err;
}

int put_open(struct put_test *t)
{
    int peer = 1 - sstar_rank(t->world);
    struct sstar_link_attr attr = {.puts = t->tx_depth};
    int err = sstar_links_open(t->world, &peer, 1, &attr, &t->links);
    if (!err) {
        t->link = sstar_links_to(t->links, peer);
        t->local = link_is_local(t->link);
        err = open_memory(t);
    }
    if (!err)
        err = exchange_regions(t);
    if (err)
        put_close(t);
    return err;
}

void put_close(struct put_test *t)
{
    if (t->links)
        sstar_links_close(t->links);
    if (t->recv_region)
        sstar_deregister(t->recv_region);
    if (t->send_region)
        sstar_deregister(t->send_region);
    if (t->recv)
        sstar_free(t->world, t->recv);
    if (t->send)
        sstar_free(t->world, t->send);
    t->links = NULL;
    t->recv_region = t->send_region = NULL;
    t->recv = t->send = NULL;
}

/* ---- one operation ----------------------------------------------------------------------------
 */

/* Whether rank 1 learns of nothing but the end. */
static bool peer_is_passive(const struct put_test *t)
{
    return t->get || t->no_signal;
}

/* Start a put, with its signal if so wanted, or a get, making progress while there is no place for
 * it. */
static int operate(struct put_test *t, bool get, uint64_t offset, uint64_t bytes, int flags,
                   uint64_t *ticket)
{
    struct waiter w =
        wait_begin(t->world, "a place in the send queue", 1 - sstar_rank(t->world), 0);
    for (;;) {
        char *local = (char *)(get ? t->recv : t->send) + offset;
        int err = get ? sstar_get(t->link, t->recv_region, local, &t->peer_send, offset, bytes,
                                  flags & ~SSTAR_SIGNAL, ticket)
                      : sstar_put(t->link, t->send_region, local, &t->peer_recv, offset, bytes,
                                  flags, ticket);
        if (err != -EAGAIN)
            return err;
        err = sstar_link_ring(t->link); /* what was built before must go out to make place */
        if (!err)
            err = sstar_links_progress(t->links);
        if (err < 0 || (err = wait_step(&w)) < 0)
            return err;
    }
}

static int await_signal(struct put_test *t)
{
    return sstar_signal_wait(t->link, ++t->signals);
}

static int say(struct put_test *t, enum word word)
{
    uint64_t ticket, offset = word_offset(t);
    *(uint64_t *)((char *)t->send + offset) = word;
    int err = operate(t, false, offset, sizeof(uint64_t), SSTAR_SIGNAL, &ticket);
    return err ? err : sstar_link_wait(t->link, ticket);
}

/* Rank 1 while it is passive: it has nothing to do, but must hear that rank 0 goes on. */
static int stand_by(struct put_test *t)
{
    const uint64_t *word = (uint64_t *)((char *)t->recv + word_offset(t));
    int err;
    do
        err = await_signal(t);
    while (!err && __atomic_load_n(word, __ATOMIC_ACQUIRE) != WORD_DONE);
    return err;
}

static int keep_alive(struct put_test *t, uint64_t now, uint64_t *last)
{
    if (!peer_is_passive(t) || now - *last < alive_every_ns)
        return 0;
    *last = now;
    return say(t, WORD_GOING_ON);
}

/* ---- the check --------------------------------------------------------------------------------
 */

static uint8_t pattern(uint64_t seed, int rank, uint64_t i)
{
    uint64_t x = (seed + (uint64_t)rank * 0x9e3779b97f4a7c15u + i) * 0xbf58476d1ce4e5b9u;
    return (uint8_t)((x ^ (x >> 29)) >> 32);
}

static int move_once(struct put_test *t, uint64_t bytes)
{
    uint64_t ticket;
    if (t->get && sstar_rank(t->world) == 1)
        return 0;
    int err = operate(t, t->get, 0, bytes, SSTAR_SIGNAL, &ticket);
    if (!err && !t->get)
        err = await_signal(t);
    return err ? err : sstar_link_wait(t->link, ticket);
}

int put_check(struct put_test *t, uint64_t bytes, uint64_t seed)
{
    int rank = sstar_rank(t->world);
    for (uint64_t i = 0; i < bytes; i++)
        ((uint8_t *)t->send)[i] = pattern(seed + bytes, rank, i);
    memset(t->recv, 0, word_offset(t) + WORD_BYTES);
    int err = sstar_barrier(t->world);
    if (!err)
        err = move_once(t, bytes);
    if (err)
        return err;
    uint64_t wrong = 0, all[2];
    for (uint64_t i = 0; i < bytes && !(t->get && rank == 1); i++)
        wrong += ((uint8_t *)t->recv)[i] != pattern(seed + bytes, 1 - rank, i);
    if (wrong)
        fprintf(
            stderr,
            "sstar put: rank %d: %llu of %llu bytes from rank %d arrived wrong; do not trust this "
            "device\n",
            rank, (unsigned long long)wrong, (unsigned long long)bytes, 1 - rank);
    err = sstar_allgather(t->world, &wrong, sizeof(wrong), all);
    return err ? err : all[0] || all[1] ? -EIO : 0;
}

/* ---- latency ----------------------------------------------------------------------------------
 */

static int echo(struct put_test *t, uint64_t bytes, uint64_t n)
{
    uint64_t ticket;
    int err = 0;
    if (t->get)
        return stand_by(t);
    for (uint64_t i = 0; i < n && !err; i++) {
        err = await_signal(t);
        if (!err)
            err = operate(t, false, 0, bytes, SSTAR_SIGNAL, &ticket);
    }
    return err;
}

static int round_trip(struct put_test *t, uint64_t bytes)
{
    uint64_t ticket;
    int err = operate(t, t->get, 0, bytes, SSTAR_SIGNAL, &ticket);
    if (err)
        return err;
    return t->get ? sstar_link_wait(t->link, ticket) : await_signal(t);
}

int put_latency(struct put_test *t, uint64_t bytes, uint32_t n, double *us)
{
    uint32_t warm = n < WARM_UP ? n : WARM_UP;
    if (sstar_rank(t->world) == 1)
        return echo(t, bytes, (uint64_t)warm + n);
    uint64_t before = clock_ns(), last = before;
    int err = 0;
    for (uint64_t i = 0; i < (uint64_t)warm + n && !err; i++) {
        err = round_trip(t, bytes);
        uint64_t now = clock_ns();
        if (i >= warm)
            us[i - warm] = (double)(now - before) / 1000 / (t->get ? 1 : 2);
        if (!err)
            err = keep_alive(t, now, &last);
        before = t->get ? clock_ns() : now;
    }
    return err ? err : t->get ? say(t, WORD_DONE) : 0;
}

/* ---- bandwidth --------------------------------------------------------------------------------
 */

struct stream {
    uint64_t bytes;
    uint64_t n, posted, done;
    uint64_t *posted_ns, *done_ns; /* [n] */
    uint64_t *tickets;             /* [tx_depth] */
};

/* One doorbell's worth, if there is room for it. */
static int post_batch(struct put_test *t, struct stream *s)
{
    uint64_t batch = t->post_list < s->n - s->posted ? t->post_list : s->n - s->posted;
    if (!batch || s->posted - s->done + batch > t->tx_depth)
        return 0;
    int signal = t->no_signal ? 0 : SSTAR_SIGNAL;
    for (uint64_t i = 0; i < batch; i++) {
        s->posted_ns[s->posted] = clock_ns();
        int err = operate(t, t->get, 0, s->bytes, (i + 1 < batch ? SSTAR_MORE : 0) | signal,
                          &s->tickets[s->posted % t->tx_depth]);
        if (err)
            return err;
        s->posted++;
    }
    return 1;
}

static int send_stream(struct put_test *t, struct stream *s)
{
    uint64_t last = clock_ns();
    struct waiter w = wait_begin(t->world, "completion", 1, 0);
    while (s->done < s->n) {
        int err, before = (int)s->done;
        while ((err = post_batch(t, s)) > 0)
            ;
        if (!err)
            err = sstar_links_progress(t->links);
        if (err < 0)
            return err;
        uint64_t now = clock_ns();
        while (s->done < s->posted && sstar_link_done(t->link, s->tickets[s->done % t->tx_depth]))
            s->done_ns[s->done++] = now;
        if ((err = keep_alive(t, now, &last)) < 0)
            return err;
        if (before != (int)s->done)
            w = wait_begin(t->world, "completion", 1, s->done);
        else if ((err = wait_step(&w)) < 0)
            return err;
    }
    return 0;
}

/* As perftest has it: the best that any run of messages reached, from posting its first to the
 * completion of its last. The whole stream is one of these runs. */
static double peak_bytes_per_ns(const struct stream *s)
{
    uint64_t step = s->n / PEAK_POINTS + 1;
    double best = 0;
    for (uint64_t i = 0; i < s->n; i += step)
        for (uint64_t j = s->n; j > i; j = j > step ? j - step : 0) {
            double rate = (double)(j - i) / ((double)(s->done_ns[j - 1] - s->posted_ns[i]) + 1);
            if (rate > best)
                best = rate;
        }
    return best * (double)s->bytes;
}

static int measure_stream(struct put_test *t, struct stream *s, struct put_rate *rate)
{
    struct sstar_counters a, b;
    struct stream warm = *s;
    warm.n = s->n < t->tx_depth ? s->n : t->tx_depth;
    int err = send_stream(t, &warm);
    if (err)
        return err;
    sstar_counters_read(t->world, &a);
    err = send_stream(t, s);
    if (err)
        return err;
    sstar_counters_read(t->world, &b);
    double ns = (double)(s->done_ns[s->n - 1] - s->posted_ns[0]) + 1;
    rate->average_gbps = (double)s->bytes * (double)s->n / ns;
    rate->peak_gbps = peak_bytes_per_ns(s);
    rate->messages_per_us = (double)s->n * 1e3 / ns;
    rate->spent = (struct sstar_counters){
        .wqes = b.wqes - a.wqes, .doorbells = b.doorbells - a.doorbells, .cqes = b.cqes - a.cqes};
    return peer_is_passive(t) ? say(t, WORD_DONE) : 0;
}

static int receive_stream(struct put_test *t, uint64_t n)
{
    int err = 0;
    if (peer_is_passive(t))
        return stand_by(t);
    for (uint64_t i = 0; i < n && !err; i++)
        err = await_signal(t);
    return err;
}

int put_bandwidth(struct put_test *t, uint64_t bytes, uint32_t n, struct put_rate *rate)
{
    uint32_t warm = n < t->tx_depth ? n : t->tx_depth;
    if (sstar_rank(t->world) == 1)
        return receive_stream(t, (uint64_t)warm + n);
    uint64_t *memory = malloc((2ull * n + t->tx_depth) * sizeof(*memory));
    if (!memory)
        return world_fail(t->world, -ENOMEM,
                          "no memory for the times of %u messages; take fewer with -n", n);
    memset(memory, 0,
           (2ull * n + t->tx_depth) * sizeof(*memory)); /* no page faults while measuring */
    struct stream s = {.bytes = bytes,
                       .n = n,
                       .posted_ns = memory,
                       .done_ns = memory + n,
                       .tickets = memory + 2ull * n};
    int err = measure_stream(t, &s, rate);
    free(memory);
    return err;
}
