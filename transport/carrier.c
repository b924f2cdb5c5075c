/* SPDX-License-Identifier: MIT */
/* Building and ringing for descriptors. */
#include "transport/carrier.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint32_t power_above(uint32_t n)
{
    uint32_t power = 1;
    while (power < n)
        power *= 2;
    return power;
}

int carrier_open(struct carrier *c, uint32_t n_lanes, uint32_t completions)
{
    uint32_t ring = power_above(completions);
    c->lanes = calloc(n_lanes ? n_lanes : 1, sizeof *c->lanes);
    c->touched = calloc(n_lanes ? n_lanes : 1, sizeof *c->touched);
    c->handed_on = calloc(ring, sizeof *c->handed_on);
    c->n_lanes = n_lanes;
    c->handed_mask = ring - 1;
    return c->lanes && c->touched && c->handed_on ? 0 : -ENOMEM;
}

int carrier_lane_tells(struct lane *lane, uint32_t depth)
{
    uint32_t ring = power_above(depth);
    lane->records = calloc(ring, sizeof *lane->records);
    lane->stamps = aligned_alloc(alignof(struct stage_stamps), ring * sizeof *lane->stamps);
    lane->mask = ring - 1;
    lane->depth = depth;
    lane->signal_every = depth / 4;
    return lane->records && lane->stamps ? 0 : -ENOMEM;
}

static void tell(struct sstar_completion *completion, uint64_t n, int error)
{
    if (!completion)
        return;
    if (error)
        __atomic_store_n(&completion->error, error, __ATOMIC_RELAXED);
    __atomic_fetch_add(&completion->done, n, __ATOMIC_RELEASE);
}

/* Everything of the lane that is under way will not happen. */
static void lane_cancel(struct carrier *c, struct lane *lane, int error)
{
    for (; lane->completed != lane->posted; lane->completed++) {
        const struct lane_record *record = &lane->records[lane->completed & lane->mask];
        c->expected -= record->signalled;
        if (record->stamps)
            c->stamped -= (lane->stamps[lane->completed & lane->mask].wanted & STAMP_CQE) != 0;
        tell(record->completion, 1, error);
    }
    lane->rung = lane->posted;
}

void carrier_close(struct carrier *c)
{
    for (uint32_t i = 0; c->lanes && i < c->n_lanes; i++) {
        struct lane *lane = &c->lanes[i];
        if (lane->records)
            lane_cancel(c, lane, -ECANCELED);
        free(lane->records);
        free(lane->stamps);
    }
    free(c->lanes);
    free(c->touched);
    free(c->handed_on);
    c->lanes = NULL;
    c->touched = NULL;
    c->handed_on = NULL;
}

/* ---- failures ------------------------------------------------------------------------------- */

/* A call was refused. The world hears of it when it next looks here. */
static void lane_broke(struct carrier *c, struct lane *lane, int err)
{
    lane->broken = err;
    if (lane->records)
        lane_cancel(c, lane, err);
    if (atomic_load(&c->error) != 0)
        return;
    atomic_store(&c->error_lane, (uint32_t)(lane - c->lanes));
    atomic_store(&c->error, err);
}

/* ---- ringing -------------------------------------------------------------------------------- */

static void stamp_doorbell(struct lane *lane, uint64_t ring, uint64_t device)
{
    uint64_t rung = lane->stamped & STAMP_RUNG ? stage_now() : 0;
    lane->stamped = 0;
    for (uint32_t i = lane->rung; i != lane->posted; i++) {
        struct stage_stamps *stamps = &lane->stamps[i & lane->mask];
        if (!lane->records[i & lane->mask].stamps)
            continue;
        stamps->ring = ring;
        stamps->rung = rung;
        stamps->device = lane->post->device_ticks - device;
    }
}

static void lane_ring(struct carrier *c, struct lane *lane)
{
    uint8_t stamped = lane->stamped;
    uint64_t device = lane->post->device_ticks, begun = stamped & STAMP_RING ? stage_now() : 0;
    lane->post->time_wanted = stamped & STAMP_DEVICE;
    int err = post_ring(lane->post);
    if (stamped)
        stamp_doorbell(lane, begun, device);
    lane->rung = lane->posted;
    lane->due = false;
    if (__builtin_expect(err != 0, 0))
        lane_broke(c, lane, err);
}

void carrier_ring(struct carrier *c)
{
    uint32_t n = c->n_touched;
    c->n_touched = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct lane *lane = &c->lanes[c->touched[i]];
        lane->listed = false;
        if (lane->due)
            lane_ring(c, lane);
    }
}

/* ---- building ------------------------------------------------------------------------------- */

static bool lane_record(struct carrier *c, struct lane *lane, const struct descriptor *d,
                        uint32_t bytes)
{
    struct lane_record *record = &lane->records[lane->posted & lane->mask];
    *record = (struct lane_record){
        .completion = (void *)(uintptr_t)d->token, .bytes = bytes, .opcode = d->opcode};
    if (++lane->unsignalled >= lane->signal_every || d->flags & DESCRIPTOR_SIGNALLED) {
        lane->unsignalled = 0;
        record->signalled = true;
        c->expected++;
    }
    if (__builtin_expect(d->flags & DESCRIPTOR_STAMPED, 0)) {
        uint32_t wanted = d->immediate;
        uint64_t now = wanted & STAMP_SEEN ? stage_now() : 0;
        record->stamps = (void *)(uintptr_t)d->operand;
        c->stamped += (wanted & STAMP_CQE) != 0;
        lane->stamps[lane->posted & lane->mask] =
            (struct stage_stamps){.seen = now, .wanted = wanted};
    }
    return record->signalled;
}

static int lane_build(struct carrier *c, struct lane *lane, const struct descriptor *d,
                      const struct ibv_sge *pieces)
{
    struct ibv_sge word = {.addr = (uintptr_t)d->word, .length = d->word_bytes};
    bool is_word = d->flags & DESCRIPTOR_WORD;
    struct post_request request = {.opcode = (enum ibv_wr_opcode)d->opcode,
                                   .wr_id = d->token,
                                   .remote_address = d->remote_address,
                                   .add = d->operand,
                                   .rkey = d->rkey,
                                   .immediate = d->immediate,
                                   .n_sge = is_word ? 1 : d->n_sge,
                                   .sge = is_word ? &word : pieces,
                                   .is_word = is_word};
    bool signalled = d->flags & DESCRIPTOR_SIGNALLED;
    if (lane->records) {
        signalled = lane_record(c, lane, d,
                                is_word    ? d->word_bytes
                                : d->n_sge ? pieces->length
                                           : 0);
        request.wr_id = lane->wr_id | lane->posted;
    }
    if (signalled)
        request.flags = IBV_SEND_SIGNALED;
    if (d->flags & (DESCRIPTOR_INLINE | DESCRIPTOR_WORD))
        request.flags |= IBV_SEND_INLINE;
    int err = post_build(lane->post, &request);
    if (lane->records && d->flags & DESCRIPTOR_STAMPED) {
        struct stage_stamps *stamps = &lane->stamps[lane->posted & lane->mask];
        lane->stamped |= stamps->wanted & (STAMP_RING | STAMP_RUNG | STAMP_DEVICE);
        if (stamps->wanted & STAMP_BUILT)
            stamps->built = stage_now();
    }
    lane->posted++;
    return err;
}

int carrier_take(struct carrier *c, const struct descriptor *d, const struct ibv_sge *pieces)
{
    struct lane *lane = &c->lanes[d->lane];
    int err = 0;
    if (__builtin_expect(lane->broken, 0)) {
        tell(lane->records ? (void *)(uintptr_t)d->token : NULL, 1, lane->broken);
        return 0;
    }
    if (d->opcode == DESCRIPTOR_RECEIVES) {
        err = post_receives(lane->post, d->immediate, d->token);
    } else if (d->opcode != DESCRIPTOR_RING) {
        if (lane->records && lane->posted - lane->completed >= lane->depth) {
            if (lane->rung != lane->posted)
                lane_ring(c, lane);
            return -EAGAIN;
        }
        err = lane_build(c, lane, d, pieces);
    }
    if (__builtin_expect(err != 0, 0)) {
        lane_broke(c, lane, err);
        return 0;
    }
    if (d->opcode == DESCRIPTOR_RECEIVES)
        return 0;
    lane->due |= !(d->flags & DESCRIPTOR_MORE);
    if (c->batch && lane->post->built >= c->batch) {
        lane_ring(c, lane);
    } else if (!lane->listed) {
        lane->listed = true;
        c->touched[c->n_touched++] = d->lane;
    }
    return 0;
}

/* ---- completions ---------------------------------------------------------------------------- */

/* What is to be told, gathered while it is for the same caller: each time is a cache line that must
 * be taken from him. */
struct telling {
    struct sstar_completion *completion;
    uint64_t n;
};

static void telling_end(struct telling *telling, int error)
{
    if (telling->n > 0)
        tell(telling->completion, telling->n, error);
    telling->n = 0;
}

/* All requests up to `position` are complete, that one with `error`. */
static void lane_complete(struct carrier *c, struct lane *lane, uint32_t position, int error,
                          uint64_t now, struct telling *telling)
{
    while (lane->completed != position + 1) {
        uint32_t at = lane->completed++ & lane->mask;
        struct lane_record *record = &lane->records[at];
        bool failed = error && lane->completed == position + 1;
        c->expected -= record->signalled;
        if (record->completion != telling->completion || failed) {
            telling_end(telling, 0);
            telling->completion = record->completion;
        }
        telling->n++;
        if (__builtin_expect(failed, 0))
            telling_end(telling, error);
        if (__builtin_expect(record->stamps != NULL, 0)) {
            /* Told first: what comes after is no part of it. */
            telling_end(telling, 0);
            c->stamped -= (lane->stamps[at].wanted & STAMP_CQE) != 0;
            lane->stamps[at].cqe = now;
            *record->stamps = lane->stamps[at];
        }
    }
}

static void hand_on(struct carrier *c, const struct ibv_wc *wc, const struct lane_record *failed)
{
    uint32_t tail = atomic_load_explicit(&c->tail, memory_order_relaxed);
    c->handed_on[tail & c->handed_mask] = (struct carried){.wr_id = wc->wr_id,
                                                           .immediate = wc->imm_data,
                                                           .status = (uint32_t)wc->status,
                                                           .vendor_err = wc->vendor_err,
                                                           .bytes = failed ? failed->bytes : 0,
                                                           .opcode = failed ? failed->opcode : 0};
    atomic_store_explicit(&c->tail, tail + 1, memory_order_release);
}

static struct lane *lane_of(const struct carrier *c, uint64_t wr_id)
{
    uint32_t link = (uint32_t)(wr_id >> 40) & 0x7fffff, qp = (uint32_t)(wr_id >> 32) & 0xff;
    return &c->lanes[link * c->lanes_per_link + qp];
}

static void carry(struct carrier *c, const struct ibv_wc *wc, uint64_t now, struct telling *telling)
{
    struct lane *lane = lane_of(c, wc->wr_id);
    if (wc->wr_id >> 63 || !lane->records) {
        hand_on(c, wc, NULL);
        return;
    }
    uint32_t position = (uint32_t)wc->wr_id;
    if (__builtin_expect(wc->status != IBV_WC_SUCCESS, 0))
        hand_on(c, wc, &lane->records[position & lane->mask]);
    lane_complete(c, lane, position, wc->status == IBV_WC_SUCCESS ? 0 : -EIO, now, telling);
}

int carrier_poll(struct carrier *c)
{
    enum { BATCH = 32 };
    struct ibv_wc wc[BATCH];
    uint32_t waiting = atomic_load_explicit(&c->tail, memory_order_relaxed) -
                       atomic_load_explicit(&c->head, memory_order_acquire);
    uint32_t room = c->handed_mask + 1 - waiting;
    int n = c->verbs->poll_cq(c->cq, room < BATCH ? (int)room : BATCH, wc);
    if (n <= 0) {
        if (n < 0 && atomic_load(&c->error) == 0) {
            atomic_store(&c->error_lane, CARRIER_NO_LANE);
            atomic_store(&c->error, -EIO);
        }
        return n;
    }
    uint64_t now = c->stamped ? stage_now() : 0;
    atomic_store_explicit(&c->cqes,
                          atomic_load_explicit(&c->cqes, memory_order_relaxed) + (uint64_t)n,
                          memory_order_relaxed);
    struct telling telling = {0};
    for (int i = 0; i < n; i++)
        carry(c, &wc[i], now, &telling);
    telling_end(&telling, 0);
    return n;
}

int carrier_read(struct carrier *c, struct ibv_wc *wc, int most)
{
    uint32_t head = atomic_load_explicit(&c->head, memory_order_relaxed);
    uint32_t n = atomic_load_explicit(&c->tail, memory_order_acquire) - head;
    if (n == 0)
        return 0;
    if (n > (uint32_t)most)
        n = (uint32_t)most;
    for (uint32_t i = 0; i < n; i++) {
        const struct carried *one = &c->handed_on[(head + i) & c->handed_mask];
        wc[i].wr_id = one->wr_id;
        wc[i].status = (enum ibv_wc_status)one->status;
        wc[i].vendor_err = one->vendor_err;
        wc[i].imm_data = one->immediate;
        wc[i].byte_len = one->bytes;
        wc[i].opcode = (enum ibv_wc_opcode)one->opcode;
    }
    atomic_store_explicit(&c->head, head + n, memory_order_release);
    return (int)n;
}
