/* SPDX-License-Identifier: MIT */
/*
 * Dispatch: tokens on their way to experts. What is pulled always has a row to land in, so pulling
 * never waits for pushing.
 */
#include "collectives/moe.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* How many of a token's experts live on each node; on how many nodes any do. */
static uint32_t count_nodes(struct sstar_moe *m, const uint32_t *experts)
{
    uint32_t nodes = 0;
    memset(m->node_count, 0, (size_t)m->map.nodes * sizeof *m->node_count);
    for (uint32_t e = 0; e < m->attr.top; e++)
        if (experts[e] != SSTAR_NO_EXPERT)
            nodes += !m->node_count[m->map.node_of[moe_rank_of(m, experts[e])]]++;
    return nodes;
}

/* The choices on a node, in the order in which the token made them. */
static void write_choices(const struct sstar_moe *m, uint32_t t, int node, struct moe_choice *to)
{
    const uint32_t *experts = m->experts + (size_t)t * m->attr.top;
    const float *weights = m->weights + (size_t)t * m->attr.top;
    for (uint32_t e = 0; e < m->attr.top; e++)
        if (experts[e] != SSTAR_NO_EXPERT && m->map.node_of[moe_rank_of(m, experts[e])] == node)
            *to++ = (struct moe_choice){.expert = experts[e], .weight = weights[e]};
}

static struct moe_landing *land(struct sstar_moe *m, int source, const struct moe_head *head)
{
    struct moe_landing *row = moe_landing(m, m->local, m->rows_landed++);
    row->source = (uint32_t)source;
    row->head = *head;
    return row;
}

/* Token t to a node: into a row of our own, or on its way. 0, -EAGAIN or an error. */
static int send_to(struct sstar_moe *m, uint32_t t, int node, uint32_t nodes)
{
    const uint8_t *token = m->tokens + (size_t)t * m->token_bytes;
    struct moe_head head = {
        .index = t, .experts = (uint16_t)m->node_count[node], .nodes = (uint16_t)nodes};
    if (node == m->node) {
        struct moe_landing *row = land(m, m->rank, &head);
        write_choices(m, t, node, row->choice);
        memcpy((uint8_t *)row + m->payload_offset, token, m->token_bytes);
        return 0;
    }
    size_t at = sizeof head + head.experts * sizeof(struct moe_choice);
    memcpy(m->message, &head, sizeof head);
    write_choices(m, t, node, (struct moe_choice *)(m->message + sizeof head));
    memcpy(m->message + at, token, m->token_bytes);
    int err = sstar_push(m->across, moe_landing_rank(&m->map, m->rank, t, node), m->message,
                         (uint32_t)(at + m->token_bytes));
    if (!err) {
        m->dispatched.merged_messages += head.experts - 1u;
        m->dispatched.merged_bytes += (head.experts - 1u) * m->token_bytes;
    }
    return err;
}

int moe_send(struct sstar_moe *m)
{
    enum { TOKENS_PER_TURN = 16 };
    uint32_t end = m->sending + TOKENS_PER_TURN;
    for (; m->sending < m->count && m->sending < end; m->sending++, m->sending_node = 0) {
        uint32_t nodes = count_nodes(m, m->experts + (size_t)m->sending * m->attr.top);
        for (; m->sending_node < m->map.nodes; m->sending_node++) {
            int err =
                m->node_count[m->sending_node] ? send_to(m, m->sending, m->sending_node, nodes) : 0;
            if (err)
                return err == -EAGAIN ? 1 : err;
        }
    }
    return m->sending < m->count;
}

/* ---- arrivals -----------------------------------------------------------------------------------
 */

/* Our experts' choices of a row of our node. */
static int collect(struct sstar_moe *m, int local, uint32_t n)
{
    const struct moe_landing *row = moe_landing(m, local, n);
    for (uint32_t i = 0; i < row->head.experts; i++) {
        if (moe_rank_of(m, row->choice[i].expert) != m->rank)
            continue;
        if (m->n_rows == m->room_rows) {
            size_t room = m->room_rows ? 2 * m->room_rows : 1024;
            struct sstar_moe_row *rows = realloc(m->rows, room * sizeof *rows);
            if (!rows)
                return world_fail(m->world, -ENOMEM, "rank %d: no memory for %zu rows of tokens",
                                  m->rank, room);
            m->rows = rows;
            m->room_rows = room;
        }
        m->rows[m->n_rows++] =
            (struct sstar_moe_row){.token = (const uint8_t *)row + m->payload_offset,
                                   .expert = row->choice[i].expert,
                                   .source = (int)row->source,
                                   .index = row->head.index,
                                   .weight = row->choice[i].weight,
                                   .place = i,
                                   .here = row->head.experts,
                                   .nodes = row->head.nodes};
    }
    return 0;
}

/* Whether an earlier choice of the row lives at the same rank, which so knows of it. */
static bool told_before(const struct sstar_moe *m, const struct moe_landing *row, uint32_t choice)
{
    for (uint32_t i = 0; i < choice; i++)
        if (moe_rank_of(m, row->choice[i].expert) == moe_rank_of(m, row->choice[choice].expert))
            return true;
    return false;
}

int moe_tell(struct sstar_moe *m)
{
    for (; m->row_told < m->rows_landed; m->row_told++, m->choice_told = 0) {
        const struct moe_landing *row = moe_landing(m, m->local, m->row_told);
        for (; m->choice_told < row->head.experts; m->choice_told++) {
            int to = moe_rank_of(m, row->choice[m->choice_told].expert);
            if (told_before(m, row, m->choice_told))
                continue;
            int err = to == m->rank ? collect(m, m->local, m->row_told)
                                    : sstar_push(m->inside, to, &m->row_told, sizeof m->row_told);
            if (err)
                return err == -EAGAIN ? 1 : err;
        }
    }
    return 0;
}

static int take_token(struct sstar_moe *m, const struct sstar_item *item)
{
    const struct moe_head *head = item->data;
    size_t choices = head->experts * sizeof(struct moe_choice);
    bool good = item->bytes >= sizeof *head && head->experts && head->experts <= m->attr.top &&
                item->bytes == sizeof *head + choices + m->token_bytes &&
                m->rows_landed < m->rows_most;
    const struct moe_choice *choice = (const struct moe_choice *)(head + 1);
    for (uint32_t i = 0; good && i < head->experts; i++)
        good = choice[i].expert < m->attr.experts &&
               m->map.node_of[moe_rank_of(m, choice[i].expert)] == m->node;
    if (!good)
        return world_fail(m->world, -EPROTO,
                          "mixture of experts: rank %d got something that is no token for its "
                          "node from rank %d; all ranks must open it alike",
                          m->rank, item->source);
    struct moe_landing *row = land(m, item->source, head);
    memcpy(row->choice, choice, choices);
    memcpy((uint8_t *)row + m->payload_offset, (const uint8_t *)choice + choices, m->token_bytes);
    return 0;
}

static int take_row(struct sstar_moe *m, const struct sstar_item *item)
{
    uint32_t row = *(const uint32_t *)item->data;
    if (row >= m->rows_most)
        return world_fail(m->world, -EPROTO,
                          "mixture of experts: rank %d was told of a row that cannot be by rank %d",
                          m->rank, item->source);
    return collect(m, m->map.local_of[item->source], row);
}

int moe_take_tokens(struct sstar_moe *m)
{
    struct sstar_item item;
    int got;
    while ((got = sstar_pull(m->across, &item)) > 0)
        if ((got = take_token(m, &item)))
            return got;
    return got;
}

int moe_take_rows(struct sstar_moe *m)
{
    struct sstar_item item;
    int got;
    while ((got = sstar_pull(m->inside, &item)) > 0)
        if ((got = take_row(m, &item)))
            return got;
    return got;
}
