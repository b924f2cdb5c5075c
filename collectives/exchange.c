/* SPDX-License-Identifier: MIT */
/*
 * Questions and answers over two aggregators.
 *
 * Why it cannot lock up: what holds up an answer is only room in the stream of answers, which the
 * asker's pulls make without looking at a question. Questions may wait for answers (those of `held`
 * go first), answers never for questions. Tags stay with the asker, one queue for each rank asked,
 * since both streams keep the order of a pair: nothing of them goes over the wire. (bale's
 * biconveyors answer by a call too.)
 */
#include "collectives/strategy.h"
#include "transport/turn.h"
#include <stdlib.h>

enum {
    HELD_BYTES = 4096,       /* of answers that are ready, unless one is longer */
    OUTSTANDING_MOST = 8192, /* of a pair */
    OUTSTANDING_LEAST = 64,
    OUTSTANDING_ALL = 1 << 20,   /* of a rank, if it is chosen */
    OUTSTANDING_LIMIT = 1 << 24, /* of a pair, if it is given */
    HELD_ALIGNMENT = 64,
};
static const double default_age_us = 200;

struct sstar_exchange {
    struct sstar_exchange_front front; /* first: what sstar_ask looks at */
    struct sstar_world *world;
    struct sstar_exchange_attr attr;
    uint64_t *tags; /* of all ranks */
    /* Answers that are ready and not all in the stream: those of one row of questions. */
    uint8_t *held;
    uint32_t held_most, held_count, held_next;
    int held_for;
};

static int refuse(struct sstar_world *world, const char *what)
{
    return report_set(&world->report, -EINVAL, "rank %d: exchange: %s", sstar_rank(world), what);
}

/* ---- answering ----------------------------------------------------------------------------------
 */

/* Push what is held: as many as fit at once where the lane has room. 0, -EAGAIN or -errno. */
static int push_held(struct sstar_exchange *x)
{
    struct sstar_aggregator *a = x->front.answers;
    struct sstar_lane *lane = a->lanes[x->held_for];
    uint32_t bytes = x->attr.answer_bytes;
    while (x->held_next < x->held_count) {
        const uint8_t *from = x->held + (size_t)x->held_next * bytes;
        uint32_t fit = lane->header_bytes ? 0 : (uint32_t)(lane->end - lane->at) / bytes;
        uint32_t left = x->held_count - x->held_next, n = fit < left ? fit : left;
        if (n) {
            memcpy(lane->at, from, (size_t)n * bytes);
            lane->at += (size_t)n * bytes;
        } else {
            int err = sstar_push(a, x->held_for, from, bytes);
            if (err)
                return err;
            n = 1;
            lane = a->lanes[x->held_for]; /* adaptive may have gone another way */
        }
        x->held_next += n;
    }
    return 0;
}

/* Answer a row of questions, of which the first was pulled and the others lie in the window. */
static void answer_row(struct sstar_exchange *x, const struct sstar_item *first)
{
    struct sstar_window *w = &x->front.questions->front.window;
    uint32_t n = 1;
    if (!w->header_bytes && w->at != w->end) {
        uint32_t more = (uint32_t)(w->end - w->at) / w->stride;
        n += more < x->held_most - 1 ? more : x->held_most - 1;
        w->at += (size_t)(n - 1) * w->stride;
    }
    x->attr.answer(x->attr.context, first->source, first->data, x->held, n);
    x->held_for = first->source;
    x->held_count = n;
    x->held_next = 0;
}

/* Answer what has come, as far as answers find room. 0 or -errno. */
static int serve(struct sstar_exchange *x)
{
    struct sstar_item question;
    for (;;) {
        int err = push_held(x);
        if (err)
            return err == -EAGAIN ? 0 : err;
        int got = sstar_pull(x->front.questions, &question);
        if (got <= 0)
            return got;
        answer_row(x, &question);
    }
}

int sstar_exchange_advance(struct sstar_exchange *x, bool done)
{
    WORLD_TURN(x->world);
    struct sstar_aggregator *questions = x->front.questions, *answers = x->front.answers;
    int err = serve(x);
    if (err)
        return err;
    int asking = advance_step(questions, done);
    if (asking < 0)
        return asking;
    bool answered = !asking && x->held_next == x->held_count;
    int left = advance_step(answers, answered);
    return left == 1 ? advance_rest(answers, questions) : left;
}

void sstar_exchange_ledgers(const struct sstar_exchange *x, struct sstar_ledger *questions,
                            struct sstar_ledger *answers)
{
    sstar_aggregator_ledger(x->front.questions, questions);
    sstar_aggregator_ledger(x->front.answers, answers);
}

/* ---- opening and closing ------------------------------------------------------------------------
 */

static uint32_t choose_outstanding(uint32_t wanted, uint32_t ranks)
{
    uint32_t n = OUTSTANDING_ALL / ranks;
    n = n > OUTSTANDING_MOST ? OUTSTANDING_MOST : n < OUTSTANDING_LEAST ? OUTSTANDING_LEAST : n;
    return (uint32_t)power_of_two(wanted ? wanted : n);
}

static int open_asked(struct sstar_exchange *x, uint32_t ranks)
{
    uint32_t outstanding = choose_outstanding(x->attr.outstanding, ranks);
    uint32_t fit = HELD_BYTES / x->attr.answer_bytes;
    x->held_most = fit ? fit : 1;
    uint64_t held = align_up((uint64_t)x->held_most * x->attr.answer_bytes, HELD_ALIGNMENT);
    x->front.ranks = ranks;
    x->front.asked = calloc(ranks, sizeof *x->front.asked);
    x->tags = calloc((size_t)ranks * outstanding, sizeof *x->tags);
    x->held = aligned_alloc(HELD_ALIGNMENT, held);
    if (!x->front.asked || !x->tags || !x->held)
        return world_fail(x->world, -ENOMEM, "rank %d: exchange: out of memory",
                          sstar_rank(x->world));
    for (uint32_t r = 0; r < ranks; r++)
        x->front.asked[r] = (struct sstar_asked){.tags = x->tags + (size_t)r * outstanding,
                                                 .mask = outstanding - 1};
    return 0;
}

static int open_streams(struct sstar_exchange *x)
{
    struct sstar_aggregator_attr way = x->attr.way;
    if (way.max_age_us == 0)
        way.max_age_us = default_age_us;
    way.item_bytes = x->attr.question_bytes;
    int err = sstar_aggregator_open(x->world, &way, &x->front.questions);
    if (err)
        return err;
    way.item_bytes = x->attr.answer_bytes;
    return sstar_aggregator_open(x->world, &way, &x->front.answers);
}

int sstar_exchange_open(struct sstar_world *world, const struct sstar_exchange_attr *attr,
                        struct sstar_exchange **exchange)
{
    if (world->failed)
        return world->failed;
    if (!attr->answer || !attr->question_bytes || !attr->answer_bytes)
        return refuse(world, "answer, question_bytes and answer_bytes must be given");
    if (attr->outstanding > OUTSTANDING_LIMIT)
        return refuse(world, "outstanding must be at most 16777216");
    struct sstar_exchange *x = calloc(1, sizeof *x);
    if (!x)
        return -ENOMEM;
    x->world = world;
    x->attr = *attr;
    int err = open_streams(x);
    if (!err)
        err = open_asked(x, (uint32_t)sstar_size(world));
    if (err)
        sstar_exchange_close(x);
    else
        *exchange = x;
    return err;
}

void sstar_exchange_close(struct sstar_exchange *x)
{
    if (!x)
        return;
    sstar_aggregator_close(x->front.answers);
    sstar_aggregator_close(x->front.questions);
    free(x->front.asked);
    free(x->tags);
    free(x->held);
    free(x);
}

int sstar_exchange_reset(struct sstar_exchange *x)
{
    WORLD_TURN(x->world);
    int err = sstar_aggregator_reset(x->front.questions);
    return err ? err : sstar_aggregator_reset(x->front.answers);
}
