/* SPDX-License-Identifier: MIT */
/* A mixture of experts: opening, and a batch as a whole. */
#include "collectives/moe.h"
#include "collectives/float_row.h"
#include "collectives/strategy.h"
#include "transport/memory.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *mistake(const struct sstar_moe_attr *attr)
{
    if (!float_row_is(attr->token_type) || !float_row_is(attr->result_type))
        return "token_type and result_type must be floats of 32 bits or less";
    if (!attr->experts || attr->experts > 1u << 24)
        return "experts must lie between 1 and 2^24";
    if (!attr->top || attr->top > UINT16_MAX)
        return "top must lie between 1 and 65535";
    if (!attr->tokens || attr->tokens > 1u << 24)
        return "tokens must lie between 1 and 2^24";
    if (!attr->values || attr->values > 1u << 24)
        return "values must lie between 1 and 2^24";
    return NULL;
}

static int find_place(struct sstar_moe *m)
{
    int size = sstar_size(m->world), *node_of = calloc((size_t)size, sizeof *node_of);
    int err = node_of ? 0 : -ENOMEM;
    for (int r = 0; !err && r < size; r++)
        node_of[r] = sstar_node_of(m->world, r);
    if (!err)
        err = node_map_init(&m->map, size, node_of);
    free(node_of);
    if (err)
        return err;
    m->rank = sstar_rank(m->world);
    m->node = m->map.node_of[m->rank];
    m->local = m->map.local_of[m->rank];
    m->local_size = node_map_local_size(&m->map, m->node);
    return 0;
}

static int choose_sizes(struct sstar_moe *m)
{
    const struct sstar_moe_attr *attr = &m->attr;
    m->token_bytes = attr->values * sstar_type_bytes(attr->token_type);
    m->result_bytes = attr->values * sstar_type_bytes(attr->result_type);
    m->result_stride = align_up(m->result_bytes, 64);
    size_t choices = attr->top * sizeof(struct moe_choice);
    m->payload_offset = align_up(sizeof(struct moe_landing) + choices, 64);
    m->row_bytes = align_up(m->payload_offset + m->token_bytes, 64);
    /* Our own tokens, and of each rank of another node those whose turn it is to land here. */
    uint64_t local = (uint64_t)m->local_size, remote = (uint64_t)m->map.size - local;
    uint64_t rows = attr->tokens + remote * ((attr->tokens + local - 1) / local);
    if (rows >= UINT32_MAX || rows * m->row_bytes > SIZE_MAX / 2)
        return -ENOMEM;
    m->rows_most = (uint32_t)rows;
    m->message = calloc(1, sizeof(struct moe_head) + choices + m->token_bytes);
    m->node_count = calloc((size_t)m->map.nodes, sizeof *m->node_count);
    m->landing_of = calloc((size_t)m->local_size, sizeof *m->landing_of);
    return m->message && m->node_count && m->landing_of ? 0 : -ENOMEM;
}

/* Landing rows of the node, mapped. Collective, also for a rank that could not come so far. */
static int share_landing(struct sstar_moe *m, int err)
{
    struct told {
        uint64_t address, bytes;
        int64_t err;
    } mine, *all = calloc((size_t)sstar_size(m->world), sizeof *all);
    mine.bytes = (uint64_t)m->rows_most * m->row_bytes;
    mine.err = err ? err : sstar_alloc(m->world, mine.bytes, (void **)&m->landing);
    mine.address = (uint64_t)(uintptr_t)m->landing;
    err = all ? sstar_allgather(m->world, &mine, sizeof mine, all) : -ENOMEM;
    for (int r = 0; !err && r < sstar_size(m->world); r++)
        if (all[r].err)
            err = report_set(&m->world->report, (int)all[r].err,
                             "mixture of experts: rank %d could not get its memory; take fewer "
                             "tokens in a batch",
                             r);
    for (int i = 0; !err && i < m->local_size; i++) {
        int r = m->map.members[m->map.first[m->node] + i];
        m->landing_of[i] =
            r == m->rank ? m->landing : memory_peer(m->world, r, all[r].address, all[r].bytes);
        if (!m->landing_of[i])
            err = memory_peer_missing(m->world, r, "mixture of experts");
    }
    free(all);
    return err;
}

static int open_streams(struct sstar_moe *m)
{
    const struct sstar_moe_attr *attr = &m->attr;
    struct sstar_aggregator_attr gather = attr->gather;
    size_t most = sizeof(struct moe_head) + attr->top * sizeof(struct moe_choice) + m->token_bytes;
    gather.item_bytes = 0;
    gather.max_item_bytes = (uint32_t)most;
    int err = sstar_aggregator_open(m->world, &gather, &m->across);
    if (err)
        return err;
    struct sstar_aggregator_attr numbers = {.strategy = SSTAR_NONE,
                                            .item_bytes = sizeof m->row_told,
                                            .flush_bytes = sizeof m->row_told};
    if ((err = aggregator_open_inside(m->world, &numbers, &m->inside)))
        return err;
    struct sstar_combiner_attr combine = {.gather = attr->gather,
                                          .type = attr->result_type,
                                          .op = SSTAR_SUM,
                                          .count = attr->values,
                                          .keys = attr->tokens,
                                          .parts = attr->top,
                                          .nodes = attr->top};
    return sstar_combiner_open(m->world, &combine, &m->combiner, &m->shares_bytes);
}

int sstar_moe_open(struct sstar_world *world, const struct sstar_moe_attr *attr,
                   struct sstar_moe **moe)
{
    const char *wrong = mistake(attr);
    if (wrong)
        return report_set(&world->report, -EINVAL, "rank %d: mixture of experts: %s",
                          sstar_rank(world), wrong);
    struct sstar_moe *m = calloc(1, sizeof *m);
    if (!m)
        return -ENOMEM;
    m->world = world;
    m->attr = *attr;
    int err = find_place(m);
    if (!err)
        err = choose_sizes(m);
    err = share_landing(m, err);
    if (!err)
        err = open_streams(m);
    if (err) {
        sstar_moe_close(m);
        return err;
    }
    *moe = m;
    return 0;
}

void sstar_moe_close(struct sstar_moe *m)
{
    if (!m)
        return;
    /* Closing these is collective: after it nobody reads our memory. */
    sstar_combiner_close(m->combiner);
    sstar_aggregator_close(m->inside);
    sstar_aggregator_close(m->across);
    for (size_t i = 0; i < m->n_kept; i++)
        sstar_free(m->world, m->kept[i]);
    if (m->landing)
        sstar_free(m->world, m->landing);
    free(m->kept);
    free(m->rows);
    free(m->landing_of);
    free(m->node_count);
    free(m->message);
    node_map_destroy(&m->map);
    free(m);
}

uint64_t sstar_moe_memory(const struct sstar_moe *m)
{
    return (uint64_t)m->rows_most * m->row_bytes + m->shares_bytes;
}

/* ---- a batch ------------------------------------------------------------------------------------
 */

static int check_batch(const struct sstar_moe *m, const uint32_t *experts, uint32_t n)
{
    struct report *report = &m->world->report;
    if (n > m->attr.tokens)
        return report_set(report, -EINVAL, "rank %d: dispatch of %u tokens, opened for %u", m->rank,
                          n, m->attr.tokens);
    for (size_t i = 0; i < (size_t)n * m->attr.top; i++)
        if (experts[i] >= m->attr.experts && experts[i] != SSTAR_NO_EXPERT)
            return report_set(report, -EINVAL,
                              "rank %d: dispatch of token %zu to expert %u, there are %u", m->rank,
                              i / m->attr.top, experts[i], m->attr.experts);
    return 0;
}

static int by_expert(const void *a, const void *b)
{
    const struct sstar_moe_row *x = a, *y = b;
    if (x->expert != y->expert)
        return x->expert < y->expert ? -1 : 1;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    if (x->index != y->index)
        return x->index < y->index ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

/* Room for the results of all rows. What was there before stays mapped until the end: others of the
 * node know it. It doubles, so all together is less than twice the last. */
static int results_room(struct sstar_moe *m)
{
    if (m->n_rows > m->results_rows) {
        size_t rows = 2 * m->results_rows > m->n_rows ? 2 * m->results_rows : m->n_rows;
        void *memory, **kept = realloc(m->kept, (m->n_kept + 1) * sizeof *kept);
        m->kept = kept ? kept : m->kept;
        int err = kept ? sstar_alloc(m->world, rows * m->result_stride, &memory) : -ENOMEM;
        if (err)
            return world_fail(m->world, err,
                              "mixture of experts: rank %d has no memory for %zu results of %zu B",
                              m->rank, rows, m->result_bytes);
        m->kept[m->n_kept++] = m->results = memory;
        m->results_rows = rows;
    }
    if (m->n_rows)
        qsort(m->rows, m->n_rows, sizeof *m->rows, by_expert);
    for (size_t i = 0; i < m->n_rows; i++)
        m->rows[i].result = m->results + i * m->result_stride;
    return 0;
}

static int begin_batch(struct sstar_moe *m, const void *tokens, const uint32_t *experts,
                       const float *weights, uint32_t n)
{
    int err = m->used ? sstar_aggregator_reset(m->across) : 0;
    if (!err && m->used)
        err = sstar_aggregator_reset(m->inside);
    if (!err && m->used)
        err = sstar_combiner_reset(m->combiner);
    m->used = true;
    m->tokens = tokens;
    m->experts = experts;
    m->weights = weights;
    m->count = n;
    m->sending = m->rows_landed = m->row_told = m->choice_told = 0;
    m->sending_node = 0;
    m->n_rows = 0;
    m->dispatched.merged_messages = m->dispatched.merged_bytes = 0;
    return err;
}

static int move_tokens(struct sstar_moe *m)
{
    int left = 1;
    while (left > 0) {
        int sent = moe_send(m), err = sent < 0 ? sent : moe_take_tokens(m);
        left = err ? err : sstar_advance(m->across, !sent);
    }
    return left;
}

static int move_rows(struct sstar_moe *m)
{
    int left = 1;
    while (left > 0) {
        int told = moe_tell(m), err = told < 0 ? told : moe_take_rows(m);
        left = err ? err : sstar_advance(m->inside, !told);
    }
    return left;
}

int sstar_moe_dispatch(struct sstar_moe *m, const void *tokens, const uint32_t *experts,
                       const float *weights, uint32_t n, struct sstar_moe_row **rows,
                       size_t *n_rows)
{
    if (m->world->failed)
        return m->world->failed;
    int err = check_batch(m, experts, n);
    if (!err)
        err = begin_batch(m, tokens, experts, weights, n);
    if (!err)
        err = move_tokens(m);
    if (!err)
        err = move_rows(m);
    if (!err)
        err = results_room(m);
    if (err)
        return err;
    struct sstar_ledger ledger;
    sstar_aggregator_ledger(m->across, &ledger);
    ledger.merged_messages = m->dispatched.merged_messages;
    ledger.merged_bytes = m->dispatched.merged_bytes;
    m->dispatched = ledger;
    *rows = m->rows;
    *n_rows = m->n_rows;
    return 0;
}

static int hand_over(struct sstar_moe *m, size_t *next)
{
    enum { PARTS_PER_TURN = 64 };
    size_t end = *next + PARTS_PER_TURN < m->n_rows ? *next + PARTS_PER_TURN : m->n_rows;
    for (; *next < end; ++*next) {
        const struct sstar_moe_row *row = &m->rows[*next];
        struct sstar_part part = {.to = row->source,
                                  .key = row->index,
                                  .place = row->place,
                                  .here = row->here,
                                  .nodes = row->nodes,
                                  .weight = row->weight,
                                  .data = row->result};
        int err = sstar_combiner_push(m->combiner, &part);
        if (err)
            return err == -EAGAIN ? 0 : err;
    }
    return 0;
}

int sstar_moe_combine(struct sstar_moe *m, float *out)
{
    if (m->world->failed)
        return m->world->failed;
    if (!m->used)
        return report_set(&m->world->report, -EINVAL, "rank %d: combine before any dispatch",
                          m->rank);
    size_t next = 0;
    int left = 1, got = 0;
    memset(out, 0, (size_t)m->count * m->attr.values * sizeof *out);
    while (left > 0) {
        struct sstar_combined token;
        if ((got = hand_over(m, &next)))
            return got;
        while ((got = sstar_combiner_pull(m->combiner, &token)) > 0)
            memcpy(out + (size_t)token.key * m->attr.values, token.values,
                   m->attr.values * sizeof *out);
        if (got < 0)
            return got;
        left = sstar_combiner_advance(m->combiner, next == m->n_rows);
    }
    if (left)
        return left;
    sstar_combiner_ledger(m->combiner, &m->combined);
    return 0;
}

void sstar_moe_ledgers(const struct sstar_moe *m, struct sstar_ledger *dispatch,
                       struct sstar_ledger *combine)
{
    *dispatch = m->dispatched;
    *combine = m->combined;
}
