/* SPDX-License-Identifier: MIT */
/* Messages over links, inside a node and through the NIC, with both ways of learning of arrival. */
#include "tests/ranks.h"
#include "transport/link.h"
#include "transport/wait.h"
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
/* CMocka wants the ones above before it. */
#include <cmocka.h>

struct traffic {
    struct sstar_link_attr attr;
    int messages;     /* from each rank to each other */
    bool zero_copy;   /* link_send now and then */
    bool half_duplex; /* only the lower rank sends: credit must come back by itself */
    bool chained;     /* on a device without ibv_wr_*, in long bursts for one doorbell */
};

/* Message i from one rank to another: its size and its bytes follow from the seed. */
static uint32_t size_of_message(const struct traffic *t, int from, int to, int i)
{
    uint64_t seed = pattern_seed(from, to, i);
    uint64_t kind = random_next(&seed) % 8, r = random_next(&seed);
    if (kind == 0)
        return 0;
    if (kind == 1)
        return t->attr.slot_bytes;
    return (uint32_t)(kind < 6 ? r % 65 % (t->attr.slot_bytes + 1) : r % (t->attr.slot_bytes + 1));
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
    pattern_fill(place, bytes, seed);
    return link_send(link, pieces, 2, flags, &ticket);
}

static int send_one(struct sstar_world *world, struct sstar_link *link, const struct traffic *t,
                    int i, const struct sstar_region *region, uint8_t *places)
{
    int rank = sstar_rank(world), to = link_peer(link);
    uint32_t bytes = size_of_message(t, rank, to, i);
    int flags = i % 3 || t->chained ? SSTAR_MORE : 0;
    uint64_t seed = pattern_seed(rank, to, i);
    if (t->zero_copy && i % 4 == 1)
        return send_pieces(link, region, places + (size_t)i * t->attr.slot_bytes, bytes, seed,
                           flags);
    void *payload, *again;
    int err = link_reserve(link, bytes, &payload);
    if (err)
        return err;
    CHECK(link_reserve(link, bytes, &again) == 0 && again == payload);
    CHECK((uintptr_t)payload % 16 == 0);
    pattern_fill(payload, bytes, seed);
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
        CHECK(pattern_holds(message.data, message.bytes, pattern_seed(from, to, i)));
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
            for (int burst = 0; burst < (t->chained ? 200 : 20) && sends(t, rank, peer) &&
                                sent[peer] < t->messages;
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
    CHECK(!t->chained || use_plain_device(world) == 0);
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

static uint64_t credits_told(const struct sstar_world *world)
{
    struct sstar_counters counters;
    sstar_counters_read(world, &counters);
    return counters.credits;
}

static int messages_send(struct sstar_world *world, struct sstar_link *link, uint32_t n)
{
    void *payload;
    for (uint32_t i = 0; i < n; i++) {
        CHECK(link_reserve(link, 4, &payload) == 0);
        memset(payload, 0, 4);
        CHECK(link_commit(link, 4, 0) == 0);
    }
    return 0;
}

/* Credit in the trailer of a message that stands behind many others comes too late to count on:
 * when half of the slots are owed it goes by itself. Rank 1 releases nothing meanwhile, and rank 0
 * makes no progress between what it releases and what it counts. */
static int body_credit_behind_a_queue(struct sstar_world *world, void *arg)
{
    (void)arg;
    const struct sstar_link_attr attr = {.queue_pairs = 2, .slots = 16, .slot_bytes = 8};
    int peer = !sstar_rank(world);
    struct sstar_links *links;
    CHECK(sstar_links_open(world, &peer, 1, &attr, &links) == 0);
    struct sstar_link *link = sstar_links_to(links, peer);
    CHECK(messages_send(world, link, attr.slots / 2) == 0);
    struct message message;
    struct waiter w = wait_begin(world, "test messages", peer, 0);
    for (uint32_t i = 0; i < attr.slots / 2;) {
        int got = link_receive(link, &message);
        CHECK(got >= 0 && sstar_links_progress(links) >= 0 && wait_step(&w) == 0);
        i += (uint32_t)got;
    }
    if (sstar_rank(world) == 0) {
        uint64_t before = credits_told(world);
        link_release(link, attr.slots / 2 - 1);
        CHECK(messages_send(world, link, 1) == 0);
        CHECK(credits_told(world) == before);
        link_release(link, 1);
        CHECK(credits_told(world) == before + 1);
    }
    CHECK(sstar_barrier(world) == 0);
    if (sstar_rank(world) == 1)
        link_release(link, attr.slots / 2);
    sstar_links_close(links);
    return 0;
}

static void test_credit_behind_a_queue(void **state)
{
    (void)state;
    struct ranks ranks = {.size = 2, .ranks_per_node = 1, .body = body_credit_behind_a_queue};
    ranks_expect_both(ranks);
    ranks.wire = ranks_shaped;
    if (ranks_can_shape())
        ranks_expect_both(ranks);
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

static void messages(int size, int per_node, struct traffic t, const struct sstar_wire *wire)
{
    ranks_expect_both((struct ranks){.size = size,
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
    nic_messages(&ranks_shaped);
}

static void test_credit(void **state)
{
    (void)state;
    struct sstar_link_attr attr = {.queue_pairs = 2};
    ranks_expect_both((struct ranks){.size = 2, .body = body_credit, .arg = &attr});
    ranks_expect_both(
        (struct ranks){.size = 2, .ranks_per_node = 1, .body = body_credit, .arg = &attr});
    ranks_expect_both((struct ranks){
        .size = 2, .ranks_per_node = 1, .wire = ranks_shaped, .body = body_credit, .arg = &attr});
}

static void test_refused(void **state)
{
    (void)state;
    ranks_expect_both((struct ranks){.size = 2, .body = body_refused});
    ranks_expect_both((struct ranks){.size = 2, .body = body_one_names});
}

static void test_death(void **state)
{
    (void)state;
    for (int per_node = 1; per_node <= 4; per_node *= 2)
        for (int shaped = 0; shaped <= ranks_can_shape(); shaped++)
            assert_int_equal(
                ranks_run(&(struct ranks){.size = 4,
                                          .ranks_per_node = per_node,
                                          .processes = true,
                                          .wire = shaped ? ranks_shaped : (struct sstar_wire){0},
                                          .body = body_death}),
                1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_local_messages),
        cmocka_unit_test(test_credit),
        cmocka_unit_test(test_credit_behind_a_queue),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_nic_messages),
        cmocka_unit_test(test_nic_messages_by_completion),
        cmocka_unit_test(test_death),
    };
    printf("# seed %llu\n", (unsigned long long)PATTERN_SEED);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
