/* SPDX-License-Identifier: MIT */
/* What a request for a connection shows, and who is refused. */
#include "transport/rc.h"
#include "transport/rdmacm.h"
#include <string.h>

static const char *const refusal_texts[CM_REFUSALS] = {
    [CM_WELCOME] = "for no reason that it gave",
    [CM_NO_HELLO] = "it does not speak sstar's language",
    [CM_OTHER_VERSION] = "it was built from another version of sstar",
    [CM_OTHER_JOB] = "it belongs to another job (its token differs)",
    [CM_OTHER_SET] = "it does not know the key of these links",
    [CM_OTHER_RANK] = "it looks for another rank",
    [CM_UNKNOWN_RANK] = "the rank that it claims to be is not expected",
    [CM_UNKNOWN_QP] = "there is no such queue pair in the link",
    [CM_OTHER_QP] = "its queue pair is not the one that its rank told of",
    [CM_TAKEN] = "that queue pair is connected already",
};

const char *cm_refusal_text(enum cm_refusal refusal)
{
    return refusal_texts[refusal < CM_REFUSALS ? refusal : CM_WELCOME];
}

void cm_hello_fill(const struct cm_connection *c, struct cm_hello *hello)
{
    const struct sstar_link *link = c->link;
    *hello = (struct cm_hello){.magic = htole32(CM_MAGIC),
                               .version = htole16(CM_VERSION),
                               .size = htole16(sizeof *hello),
                               .token = htole64(c->cm->token),
                               .key = htole64(c->cm->theirs[link->peer].cm_key),
                               .from = htole32((uint32_t)link->world->rank),
                               .to = htole32((uint32_t)link->peer),
                               .qp = htole32(c->qp),
                               .number = htole32(link->qps[c->qp].qp->qp_num)};
}

/* Only a lower rank asks. */
static enum cm_refusal find(const struct rdmacm *cm, uint32_t from, uint32_t qp, uint32_t number,
                            struct cm_connection **found)
{
    const struct sstar_links *links = cm->links;
    const struct sstar_link *link =
        from < (uint32_t)links->world->rank ? links->by_rank[from] : NULL;
    if (!link || link->local || !cm->theirs)
        return CM_UNKNOWN_RANK;
    if (qp >= cm->qps_per_link)
        return CM_UNKNOWN_QP;
    if (number != cm->theirs[from].qps[qp].number)
        return CM_OTHER_QP;
    struct cm_connection *c = cm_connection_of(cm, link, qp);
    if (c->state != CM_IDLE)
        return CM_TAKEN;
    *found = c;
    return CM_WELCOME;
}

enum cm_refusal cm_hello_check(const struct rdmacm *cm, const void *data, size_t bytes,
                               struct cm_connection **found)
{
    struct cm_hello hello = {0};
    if (data)
        memcpy(&hello, data, bytes < sizeof hello ? bytes : sizeof hello);
    if (le32toh(hello.magic) != CM_MAGIC)
        return CM_NO_HELLO;
    if (le16toh(hello.version) != CM_VERSION || le16toh(hello.size) != sizeof hello ||
        bytes < sizeof hello)
        return CM_OTHER_VERSION;
    if (le64toh(hello.token) != cm->token)
        return CM_OTHER_JOB;
    if (le64toh(hello.key) != cm->key)
        return CM_OTHER_SET;
    if (le32toh(hello.to) != (uint32_t)cm->links->world->rank)
        return CM_OTHER_RANK;
    return find(cm, le32toh(hello.from), le32toh(hello.qp), le32toh(hello.number), found);
}

void cm_farewell_fill(enum cm_refusal refusal, struct cm_farewell *farewell)
{
    *farewell =
        (struct cm_farewell){htole32(CM_MAGIC), htole16(CM_VERSION), htole16((uint16_t)refusal)};
}

enum cm_refusal cm_farewell_read(const void *data, size_t bytes)
{
    struct cm_farewell farewell = {0};
    if (data && bytes >= sizeof farewell)
        memcpy(&farewell, data, sizeof farewell);
    uint16_t refusal = le16toh(farewell.refusal);
    bool ours = le32toh(farewell.magic) == CM_MAGIC && refusal < CM_REFUSALS;
    return ours ? (enum cm_refusal)refusal : CM_WELCOME;
}
