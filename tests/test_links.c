/* SPDX-License-Identifier: MIT */
/* Links: messages and one-sided operations, inside a node and through the NIC, with both ways of
 * learning of arrival. */
#include "tests/ranks.h"
#include "transport/device.h"
#include "transport/link.h"
#include "transport/memory.h"
#include "transport/wait.h"
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* CMocka wants the ones above before it. */
#include <cmocka.h>

static const uint64_t SEED = 20240607;

struct traffic {
    struct sstar_link_attr attr;
    int messages;     /* from each rank to each other */
    bool zero_copy;   /* link_send now and then */
    bool half_duplex; /* only the lower rank sends: credit must come back by itself */
    bool chained;     /* on a device without ibv_wr_* */
};

/* A device that has ibv_post_send only. */
static struct verbs verbs_plain;

static struct ibv_qp *refuse_create_qp_ex(struct ibv_context *context,
                                          struct ibv_qp_init_attr_ex *attr)
{
    (void)context;
    (void)attr;
    errno = EOPNOTSUPP;
    return NULL;
}

static int plain_device(struct sstar_world *world)
{
    struct device *device;
    int err = device_get(world, &device);
    if (!err)
        device->verbs = &verbs_plain;
    return err;
}

static uint64_t seed_of(int from, int to, int i)
{
    uint64_t seed = SEED ^ (uint64_t)from << 48 ^ (uint64_t)to << 32 ^ ((uint64_t)i + 1);
    random_next(&seed);
    return seed | 1;
}

/* Message i from one rank to another: its size and its bytes follow from the seed. */
static uint32_t size_of_message(const struct traffic *t, int from, int to, int i)
{
    uint64_t seed = seed_of(from, to, i);
    uint64_t kind = random_next(&seed) % 8, r = random_next(&seed);
    if (kind == 0)
        return 0;
    if (kind == 1)
        return t->attr.slot_bytes;
    return (uint32_t)(kind < 6 ? r % 65 % (t->attr.slot_bytes + 1) : r % (t->attr.slot_bytes + 1));
}

static void fill(uint8_t *to, uint32_t bytes, uint64_t seed)
{
    for (uint32_t i = 0; i < bytes; i++)
        to[i] = (uint8_t)(random_next(&seed) >> 56);
}

static bool is_filled(const uint8_t *from, uint32_t bytes, uint64_t seed)
{
    for (uint32_t i = 0; i < bytes; i++)
        if (from[i] != (uint8_t)(random_next(&seed) >> 56))
            return false;
    return true;
}

static int all_peers(const struct sstar_world *world, int *peers)
{
    int n = 0;
    for (int rank = 0; rank < sstar_size(world); rank++)
        if (rank != sstar_rank(world))
            peers[n++] = rank;
    return n;
}

/* Two pieces of registered memory; the ring of places outlives the messages under way. */
static int send_pieces(struct sstar_link *link, const struct sstar_region *region, uint8_t *place,
                       uint32_t bytes, uint64_t seed, int flags)
{
    uint64_t ticket;
    struct piece pieces[2] = {{region, place, bytes / 3},
                              {region, place + bytes / 3, bytes - bytes / 3}};
    fill(place, bytes, seed);
    return link_send(link, pieces, 2, flags, &ticket);
}

static int send_one(struct sstar_world *world, struct sstar_link *link, const struct traffic *t,
                    int i, const struct sstar_region *region, uint8_t *places)
{
    int rank = sstar_rank(world), to = link_peer(link);
    uint32_t bytes = size_of_message(t, rank, to, i);
    int flags = i % 3 ? SSTAR_MORE : 0;
    uint64_t seed = seed_of(rank, to, i);
    if (t->zero_copy && i % 4 == 1)
        return send_pieces(link, region, places + (size_t)i * t->attr.slot_bytes, bytes, seed,
                           flags);
    void *payload, *again;
    int err = link_reserve(link, bytes, &payload);
    if (err)
        return err;
    CHECK(link_reserve(link, bytes, &again) == 0 && again == payload);
    CHECK((uintptr_t)payload % 16 == 0);
    fill(payload, bytes, seed);
    return link_commit(link, bytes, flags);
}

static int receive_some(struct sstar_world *world, struct sstar_link *link, const struct traffic *t,
                        int *count)
{
    struct message message;
    uint32_t held = 0;
    int got;
    /* Sometimes several before the first is released. */
    while ((got = link_receive(link, &message)) == 1) {
        int from = link_peer(link), to = sstar_rank(world), i = (*count)++;
        CHECK(message.sequence == (uint64_t)i + 1);
        CHECK(message.bytes == size_of_message(t, from, to, i));
        CHECK(is_filled(message.data, message.bytes, seed_of(from, to, i)));
        size_t base_bytes;
        const char *base = link_slots_base(link, &base_bytes);
        CHECK((const char *)message.data >= base &&
              (const char *)message.data + message.bytes <= base + base_bytes);
        if (++held == 3) {
            link_release(link, held);
            held = 0;
        }
    }
    if (held)
        link_release(link, held);
    return got;
}

static bool sends(const struct traffic *t, int from, int to)
{
    return !t->half_duplex || from < to;
}

static int exchange(struct sstar_world *world, struct sstar_links *links, const struct traffic *t,
                    const struct sstar_region **regions, uint8_t **places)
{
    int rank = sstar_rank(world), size = sstar_size(world), sent[64] = {0}, received[64] = {0};
    struct waiter w = wait_begin(world, "test traffic", -1, 0);
    for (bool busy = true; busy;) {
        busy = false;
        for (int peer = 0; peer < size; peer++) {
            struct sstar_link *link = sstar_links_to(links, peer);
            if (!link)
                continue;
            for (int burst = 0; burst < 20 && sends(t, rank, peer) && sent[peer] < t->messages;
                 burst++) {
                int err = send_one(world, link, t, sent[peer], regions[peer], places[peer]);
                if (err == -EAGAIN)
                    break;
                CHECK(err == 0);
                sent[peer]++;
            }
            int before = received[peer];
            CHECK(receive_some(world, link, t, &received[peer]) == 0);
            if (received[peer] != before)
                wait_progress(&w);
            busy |= (sends(t, rank, peer) && (sent[peer] < t->messages || !link_idle(link))) ||
                    (sends(t, peer, rank) && received[peer] < t->messages);
        }
        CHECK(sstar_links_progress(links) >= 0);
        CHECK(wait_step(&w) == 0);
    }
    return 0;
}

static int body_messages(struct sstar_world *world, void *arg)
{
    const struct traffic *t = arg;
    int peers[64], n = all_peers(world, peers);
    struct sstar_links *links;
    struct sstar_region *regions[64] = {0};
    uint8_t *places[64] = {0};
    CHECK(!t->chained || plain_device(world) == 0);
    CHECK(sstar_links_open(world, peers, n, &t->attr, &links) == 0);
    size_t bytes = (size_t)t->messages * t->attr.slot_bytes + 1;
    for (int i = 0; i < n && t->zero_copy; i++) {
        void *memory;
        CHECK(sstar_alloc(world, bytes, &memory) == 0);
        CHECK(sstar_register(world, memory, bytes, &regions[peers[i]]) == 0);
        places[peers[i]] = memory;
    }
    int failed = exchange(world, links, t, (const struct sstar_region **)regions, places);
    /* A rank that is done leaves credit and queues to be moved on by closing. */
    sstar_links_close(links);
    for (int i = 0; i < n && t->zero_copy; i++) {
        sstar_deregister(regions[peers[i]]);
        sstar_free(world, places[peers[i]]);
    }
    return failed;
}

/* A sender runs out of credit exactly at `slots` and gets it back when the peer releases. */
static int body_credit(struct sstar_world *world, void *arg)
{
    struct sstar_link_attr attr = *(struct sstar_link_attr *)arg;
    int peer = !sstar_rank(world);
    struct sstar_links *links;
    attr.slots = 8;
    attr.slot_bytes = 100;
    CHECK(sstar_links_open(world, &peer, 1, &attr, &links) == 0);
    struct sstar_link *link = sstar_links_to(links, peer);
    CHECK(sstar_links_to(links, sstar_rank(world)) == NULL && sstar_links_to(links, 99) == NULL);
    void *payload;
    CHECK(link_reserve(link, 101, &payload) == -EMSGSIZE);
    for (uint32_t i = 0; i < attr.slots; i++) {
        CHECK(link_credits(link) == attr.slots - i);
        CHECK(link_reserve(link, 4, &payload) == 0);
        memcpy(payload, &i, sizeof i);
        CHECK(link_commit(link, 4, SSTAR_MORE) == 0);
    }
    CHECK(link_reserve(link, 4, &payload) == -EAGAIN);
    CHECK(!link_idle(link));
    CHECK(sstar_link_ring(link) == 0);
    struct message message;
    struct waiter w = wait_begin(world, "test messages", peer, 0);
    for (uint32_t i = 0; i < attr.slots;) {
        int got = link_receive(link, &message);
        CHECK(got >= 0);
        CHECK(sstar_links_progress(links) >= 0 && wait_step(&w) == 0);
        if (!got)
            continue;
        CHECK(message.bytes == 4 && memcmp(message.data, &i, sizeof i) == 0);
        i++;
    }
    CHECK(link_receive(link, &message) == 0);
    CHECK(sstar_barrier(world) == 0);
    CHECK(sstar_links_progress(links) >= 0);
    CHECK(link_reserve(link, 4, &payload) == -EAGAIN);
    CHECK(sstar_barrier(world) == 0);
    link_release(link, attr.slots);
    for (w = wait_begin(world, "test credit", peer, 0); !link_idle(link);)
        CHECK(sstar_links_progress(links) >= 0 && wait_step(&w) == 0);
    CHECK(link_credits(link) == attr.slots);
    CHECK(link_reserve(link, 4, &payload) == 0);
    sstar_links_close(links);
    return 0;
}

/* ---- one-sided ------------------------------------------------------------------------------ */

enum { PUT_BYTES = 3000, PUT_SLOTS = 40, PUTS = 400 };

struct board {
    uint64_t sum;
    uint64_t filler[7];
    uint8_t data[PUT_SLOTS][PUT_BYTES];
};
struct shared {
    struct board board; /* peers write here */
    uint8_t out[PUT_SLOTS][PUT_BYTES];
    uint8_t in[PUT_BYTES];
    uint64_t before;
};

#define TRY(call)                                                                                  \
    do {                                                                                           \
        int try_err;                                                                               \
        struct waiter try_w = wait_begin(world, "test operation", -1, 0);                          \
        while ((try_err = (call)) == -EAGAIN)                                                      \
            CHECK(sstar_links_progress(links) >= 0 && wait_step(&try_w) == 0);                     \
        CHECK(try_err == 0);                                                                       \
    } while (0)

/* Round r: write PUT_SLOTS pieces to the peer, each with a signal; wait for as many; compare. */
static int put_rounds(struct sstar_world *world, struct sstar_links *links, struct sstar_link *link,
                      struct shared *mine, struct sstar_region *region,
                      const struct sstar_remote_region *remote)
{
    int rank = sstar_rank(world), peer = link_peer(link);
    uint64_t ticket = 0;
    for (int round = 0; round < PUTS / PUT_SLOTS; round++) {
        for (int i = 0; i < PUT_SLOTS; i++) {
            int number = round * PUT_SLOTS + i;
            uint32_t bytes = (uint32_t)(seed_of(rank, peer, number) % (PUT_BYTES + 1));
            fill(mine->out[i], bytes, seed_of(rank, peer, number));
            TRY(sstar_put(link, region, mine->out[i], remote, offsetof(struct board, data[i]),
                          bytes, SSTAR_SIGNAL | (i % 4 ? SSTAR_MORE : 0), &ticket));
        }
        CHECK(sstar_link_ring(link) == 0);
        CHECK(sstar_signal_wait(link, (uint64_t)(round + 1) * PUT_SLOTS) == 0);
        CHECK(sstar_signals(link) == (uint64_t)(round + 1) * PUT_SLOTS);
        for (int i = 0; i < PUT_SLOTS; i++) {
            int number = round * PUT_SLOTS + i;
            uint32_t bytes = (uint32_t)(seed_of(peer, rank, number) % (PUT_BYTES + 1));
            CHECK(is_filled(mine->board.data[i], bytes, seed_of(peer, rank, number)));
        }
        CHECK(sstar_link_wait(link, ticket) == 0);
        CHECK(sstar_link_done(link, ticket));
        CHECK(sstar_fast_barrier(world) == 0);
    }
    return 0;
}

static int body_one_sided(struct sstar_world *world, void *arg)
{
    const struct sstar_link_attr *attr = arg;
    int rank = sstar_rank(world), peer = rank ^ 1, n = sstar_size(world);
    bool foreign = attr->slots == 1; /* memory that does not come from sstar_alloc */
    CHECK(attr->slots != 2 || plain_device(world) == 0);
    struct sstar_link_attr real = {
        .queue_pairs = attr->queue_pairs, .puts = attr->puts, .through_nic = attr->through_nic};
    struct sstar_links *links;
    CHECK(sstar_links_open(world, &peer, 1, &real, &links) == 0);
    struct sstar_link *link = sstar_links_to(links, peer);
    void *memory = NULL;
    if (foreign)
        memory = aligned_alloc(64, (sizeof(struct shared) + 63) / 64 * 64);
    else
        CHECK(sstar_alloc(world, sizeof(struct shared), &memory) == 0);
    CHECK(memory != NULL);
    struct shared *mine = memory;
    memset(mine, 0, sizeof *mine);
    struct sstar_region *region;
    struct sstar_remote_region here, all[64];
    CHECK(sstar_register(world, mine, sizeof *mine, &region) == 0);
    sstar_region_describe(region, &here);
    CHECK(sstar_allgather(world, &here, sizeof here, all) == 0);
    CHECK(put_rounds(world, links, link, mine, region, &all[peer]) == 0);
    /* get what the peer wrote last into its own memory */
    uint64_t ticket;
    for (int i = 0; i < PUT_SLOTS; i++) {
        int number = PUTS - PUT_SLOTS + i;
        uint32_t bytes = (uint32_t)(seed_of(peer, rank, number) % (PUT_BYTES + 1));
        TRY(sstar_get(link, region, mine->in, &all[peer], offsetof(struct shared, out[i]), bytes, 0,
                      &ticket));
        CHECK(sstar_link_wait(link, ticket) == 0);
        CHECK(is_filled(mine->in, bytes, seed_of(peer, rank, number)));
    }
    /* both ranks of a pair add to the word of the lower one */
    int lower = rank & ~1;
    enum { ADDS = 200 };
    uint64_t last = 0;
    bool can_add = !foreign || !link_is_local(link);
    if (rank != lower && can_add) {
        for (int i = 0; i < ADDS; i++) {
            TRY(sstar_fetch_add(link, region, &mine->before, &all[lower],
                                offsetof(struct board, sum), 3, i + 1 == ADDS ? SSTAR_SIGNAL : 0,
                                &ticket));
            CHECK(sstar_link_wait(link, ticket) == 0);
            CHECK(mine->before == last);
            last += 3;
        }
    } else if (can_add) {
        CHECK(sstar_signal_wait(link, PUTS + 1) == 0);
        CHECK(__atomic_load_n(&mine->board.sum, __ATOMIC_ACQUIRE) == 3 * ADDS);
    }
    /* refused without doing anything */
    CHECK(sstar_put(link, region, mine->in, &all[peer], sizeof *mine - 1, 2, 0, &ticket) ==
          -EINVAL);
    CHECK(sstar_put(link, region, (char *)mine - 1, &all[peer], 0, 2, 0, &ticket) == -EINVAL);
    CHECK(sstar_put(link, region, mine->in, &all[rank], 0, 2, 0, &ticket) == -EINVAL);
    CHECK(sstar_fetch_add(link, region, &mine->before, &all[peer], 4, 1, 0, &ticket) == -EINVAL);
    CHECK(n >= 2);
    sstar_links_close(links);
    CHECK(sstar_deregister(region) == 0);
    if (foreign)
        free(memory);
    else
        CHECK(sstar_free(world, memory) == 0);
    return 0;
}

static int body_add_refused(struct sstar_world *world, void *arg)
{
    (void)arg;
    int peer = !sstar_rank(world);
    struct sstar_links *links;
    CHECK(sstar_links_open(world, &peer, 1, &(struct sstar_link_attr){0}, &links) == 0);
    uint64_t words[2] = {0, 0}, ticket;
    struct sstar_region *region;
    struct sstar_remote_region mine, all[2];
    CHECK(sstar_register(world, words, sizeof words, &region) == 0);
    sstar_region_describe(region, &mine);
    CHECK(sstar_allgather(world, &mine, sizeof mine, all) == 0);
    CHECK(sstar_fetch_add(sstar_links_to(links, peer), region, &words[1], &all[peer], 0, 1, 0,
                          &ticket) == -EOPNOTSUPP);
    CHECK(strstr(sstar_last_error(world), "sstar_alloc"));
    sstar_links_close(links);
    CHECK(sstar_deregister(region) == 0);
    return 0;
}

/* ---- barrier and refusals ------------------------------------------------------------------- */

static int body_barrier(struct sstar_world *world, void *arg)
{
    (void)arg;
    int size = sstar_size(world), rank = sstar_rank(world);
    uint64_t all[64];
    void *memory;
    CHECK(sstar_alloc(world, 4096, &memory) == 0);
    _Atomic uint64_t *word = memory;
    uint64_t mine = (uintptr_t)memory;
    CHECK(sstar_allgather(world, &mine, sizeof mine, all) == 0);
    for (uint64_t round = 1; round <= 300; round++) {
        atomic_store(word, round);
        CHECK(sstar_fast_barrier(world) == 0);
        for (int peer = 0; peer < size; peer++) {
            _Atomic uint64_t *theirs = memory_peer(world, peer, all[peer], 8);
            CHECK(!theirs || atomic_load(theirs) == round);
        }
        CHECK(sstar_fast_barrier(world) == 0);
    }
    (void)rank;
    CHECK(sstar_free(world, memory) == 0);
    return 0;
}

static int body_refused(struct sstar_world *world, void *arg)
{
    (void)arg;
    int peer = !sstar_rank(world), self = sstar_rank(world), twice[2] = {peer, peer};
    struct sstar_links *links;
    CHECK(sstar_links_open(world, &peer, 1, &(struct sstar_link_attr){.slots = 3, .slot_bytes = 8},
                           &links) == -EINVAL);
    CHECK(strstr(sstar_last_error(world), "power of two"));
    CHECK(sstar_links_open(world, &self, 1, &(struct sstar_link_attr){.slot_bytes = 8}, &links) ==
          -EINVAL);
    CHECK(sstar_links_open(world, twice, 2, &(struct sstar_link_attr){.slot_bytes = 8}, &links) ==
          -EINVAL);
    CHECK(sstar_links_open(world, &peer, 1, &(struct sstar_link_attr){.queue_pairs = 99}, &links) ==
          -EINVAL);
    CHECK(sstar_links_open(world, NULL, 0, &(struct sstar_link_attr){.slot_bytes = 8}, &links) ==
          0);
    sstar_links_close(links);
    /* ranks that ask for different links are told */
    struct sstar_link_attr attr = {.slot_bytes = self ? 8 : 16};
    CHECK(sstar_links_open(world, &peer, 1, &attr, &links) == -EPROTO);
    CHECK(strstr(sstar_last_error(world), "all must ask for the same"));
    return 0;
}

static int body_one_names(struct sstar_world *world, void *arg)
{
    (void)arg;
    int peer = !sstar_rank(world);
    struct sstar_links *links;
    struct sstar_link_attr attr = {.slot_bytes = 16};
    CHECK(sstar_links_open(world, &peer, sstar_rank(world), &attr, &links) == -EPROTO);
    return 0;
}

/* The last rank is killed in the middle of traffic; each other one must fail and name it. */
static int body_death(struct sstar_world *world, void *arg)
{
    (void)arg;
    int peers[64], n = all_peers(world, peers), victim = sstar_size(world) - 1, moved = 0, err = 0;
    struct sstar_links *links;
    struct sstar_link_attr attr = {.slots = 8, .slot_bytes = 64};
    CHECK(sstar_links_open(world, peers, n, &attr, &links) == 0);
    struct waiter w = wait_begin(world, "test traffic", -1, 0);
    while (!err) {
        for (int i = 0; i < n && !err; i++) {
            struct sstar_link *link = sstar_links_to(links, peers[i]);
            struct message message;
            void *payload;
            err = link_reserve(link, 64, &payload);
            if (!err)
                err = link_commit(link, 64, 0);
            if (err == -EAGAIN)
                err = 0;
            if (!err)
                err = link_receive(link, &message);
            if (err == 1) {
                moved++;
                link_release(link, 1);
                wait_progress(&w);
                err = 0;
            }
        }
        if (sstar_rank(world) == victim && moved > 500)
            raise(SIGKILL);
        if (!err)
            err = sstar_links_progress(links);
        if (err >= 0)
            err = wait_step(&w);
    }
    char name[24];
    snprintf(name, sizeof name, "rank %d ", victim);
    CHECK(strncmp(sstar_last_error(world), name, strlen(name)) == 0);
    sstar_links_close(links);
    return 0;
}

/* ---- the tests ------------------------------------------------------------------------------ */

static const struct sstar_wire SHAPED = {20, 1, 1};

static void ranks_expect(const struct ranks *ranks)
{
    assert_int_equal(ranks_run(ranks), 0);
}

static void run_both(struct ranks ranks)
{
    for (int processes = 0; processes < 2; processes++) {
        ranks.processes = processes;
        ranks_expect(&ranks);
    }
}

static void messages(int size, int per_node, struct traffic t, const struct sstar_wire *wire)
{
    run_both((struct ranks){.size = size,
                            .ranks_per_node = per_node,
                            .wire = wire ? *wire : (struct sstar_wire){0},
                            .body = body_messages,
                            .arg = &t});
}

static void test_local_messages(void **state)
{
    (void)state;
    messages(2, 0,
             (struct traffic){
                 .attr = {.slots = 4, .slot_bytes = 5000}, .messages = 2000, .zero_copy = true},
             NULL);
    messages(4, 0, (struct traffic){.attr = {.slots = 16, .slot_bytes = 300}, .messages = 500},
             NULL);
    messages(2, 0, (struct traffic){.attr = {.slots = 1, .slot_bytes = 1}, .messages = 300}, NULL);
    messages(3, 0,
             (struct traffic){
                 .attr = {.slots = 8, .slot_bytes = 64}, .messages = 300, .half_duplex = true},
             NULL);
    messages(1, 0, (struct traffic){.attr = {.slot_bytes = 64}, .messages = 10}, NULL);
}

static void nic_messages(const struct sstar_wire *wire)
{
    for (uint32_t k = 1; k <= 8; k *= 2)
        messages(2, 1,
                 (struct traffic){.attr = {.queue_pairs = k, .slots = 16, .slot_bytes = 5000},
                                  .messages = 1000,
                                  .zero_copy = k == 2,
                                  .half_duplex = k == 4},
                 wire);
    messages(2, 1,
             (struct traffic){.attr = {.queue_pairs = 3, .slots = 2, .slot_bytes = 100},
                              .messages = 500,
                              .zero_copy = true},
             wire);
    messages(2, 1,
             (struct traffic){
                 .attr = {.slots = 512, .slot_bytes = 200}, .messages = 3000, .chained = true},
             wire);
    messages(5, 2,
             (struct traffic){
                 .attr = {.slots = 8, .slot_bytes = 1000}, .messages = 150, .zero_copy = true},
             wire);
    messages(6, 2,
             (struct traffic){.attr = {.queue_pairs = 1, .slots = 32, .slot_bytes = 64},
                              .messages = 200},
             wire);
    messages(3, 0,
             (struct traffic){.attr = {.slots = 8, .slot_bytes = 256, .through_nic = true},
                              .messages = 200},
             wire);
}

static void test_nic_messages(void **state)
{
    (void)state;
    nic_messages(NULL);
}

static void test_nic_messages_by_completion(void **state)
{
    (void)state;
    nic_messages(&SHAPED);
}

static void test_credit(void **state)
{
    (void)state;
    struct sstar_link_attr attr = {.queue_pairs = 2};
    run_both((struct ranks){.size = 2, .body = body_credit, .arg = &attr});
    run_both((struct ranks){.size = 2, .ranks_per_node = 1, .body = body_credit, .arg = &attr});
    run_both((struct ranks){
        .size = 2, .ranks_per_node = 1, .wire = SHAPED, .body = body_credit, .arg = &attr});
}

static void one_sided(int size, int per_node, struct sstar_link_attr attr,
                      const struct sstar_wire *wire)
{
    run_both((struct ranks){.size = size,
                            .ranks_per_node = per_node,
                            .wire = wire ? *wire : (struct sstar_wire){0},
                            .body = body_one_sided,
                            .arg = &attr});
}

static void test_one_sided_local(void **state)
{
    (void)state;
    one_sided(2, 0, (struct sstar_link_attr){.puts = 8}, NULL);
    one_sided(4, 2, (struct sstar_link_attr){.puts = 8}, NULL);
    one_sided(2, 0, (struct sstar_link_attr){.slots = 1}, NULL);
    /* Threads of one process reach such a word; processes do not. */
    ranks_expect(&(struct ranks){.size = 2, .processes = true, .body = body_add_refused});
}

static void nic_one_sided(const struct sstar_wire *wire)
{
    for (uint32_t k = 1; k <= 8; k *= 2)
        one_sided(2, 1, (struct sstar_link_attr){.queue_pairs = k, .puts = 2 * k}, wire);
    one_sided(2, 1, (struct sstar_link_attr){.queue_pairs = 3, .puts = 64, .slots = 1}, wire);
    one_sided(2, 1, (struct sstar_link_attr){.queue_pairs = 2, .puts = 32, .slots = 2}, wire);
    one_sided(4, 1, (struct sstar_link_attr){.puts = 1}, wire);
    one_sided(2, 0, (struct sstar_link_attr){.through_nic = true}, wire);
}

static void test_one_sided_nic(void **state)
{
    (void)state;
    nic_one_sided(NULL);
}

static void test_one_sided_nic_by_completion(void **state)
{
    (void)state;
    nic_one_sided(&SHAPED);
}

static void test_barrier(void **state)
{
    (void)state;
    run_both((struct ranks){.size = 1, .body = body_barrier});
    run_both((struct ranks){.size = 4, .body = body_barrier});
    for (int size = 2; size <= 6; size++)
        run_both(
            (struct ranks){.size = size, .ranks_per_node = 1 + size % 2, .body = body_barrier});
    run_both((struct ranks){.size = 3, .ranks_per_node = 1, .wire = SHAPED, .body = body_barrier});
}

static void test_refused(void **state)
{
    (void)state;
    run_both((struct ranks){.size = 2, .body = body_refused});
    run_both((struct ranks){.size = 2, .body = body_one_names});
}

static void test_death(void **state)
{
    (void)state;
    for (int per_node = 1; per_node <= 4; per_node *= 2)
        for (int shaped = 0; shaped < 2; shaped++)
            assert_int_equal(
                ranks_run(&(struct ranks){.size = 4,
                                          .ranks_per_node = per_node,
                                          .processes = true,
                                          .wire = shaped ? SHAPED : (struct sstar_wire){0},
                                          .body = body_death}),
                1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_local_messages),
        cmocka_unit_test(test_credit),
        cmocka_unit_test(test_one_sided_local),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_barrier),
        cmocka_unit_test(test_nic_messages),
        cmocka_unit_test(test_nic_messages_by_completion),
        cmocka_unit_test(test_one_sided_nic),
        cmocka_unit_test(test_one_sided_nic_by_completion),
        cmocka_unit_test(test_death),
    };
    verbs_plain = verbs_softnic;
    verbs_plain.create_qp_ex = refuse_create_qp_ex;
    printf("# seed %llu\n", (unsigned long long)SEED);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
