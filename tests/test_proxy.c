/* SPDX-License-Identifier: MIT */
/* Descriptors from many threads: the ring loses nothing, operations are carried out and told, by a
 * proxy and directly. */
#include "tests/ranks.h"
#include "transport/descriptor_ring.h"
#include "transport/link_carrier.h"
#include "transport/wait.h"
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* CMocka wants the ones above before it. */
#include <cmocka.h>

enum { CALLERS = 4 };
static const uint64_t seed = 20261130;

static bool full(void)
{
    return getenv("SSTAR_TEST_FULL") != NULL;
}

/* Now and then a thread gives its core away, or sleeps for a moment. */
static void pause_sometimes(uint64_t *random)
{
    uint64_t r = random_next(random);
    if (r % 1024 == 0)
        usleep((useconds_t)(r >> 32) % 50);
    else if (r % 64 == 0)
        sched_yield();
}

/* ---- the ring alone ------------------------------------------------------------------------- */

struct writer {
    pthread_t thread;
    struct descriptor_ring *ring;
    uint32_t id, n;
};

/* Groups of 1 to 4 slots, each with its writer and number. */
static void *writer_main(void *arg)
{
    struct writer *w = arg;
    uint64_t random = seed + w->id, place;
    for (uint32_t i = 0; i < w->n;) {
        uint32_t group = 1 + (uint32_t)(random_next(&random) % 4);
        if (group > w->n - i)
            group = w->n - i;
        while (descriptor_claim(w->ring, group, &place) != 0)
            sched_yield();
        for (uint32_t j = 0; j < group; j++, i++) {
            struct descriptor *d = descriptor_at(w->ring, place + j);
            d->token = i;
            d->operand = w->id;
            d->remote_address = ~(uint64_t)i;
            descriptor_publish(d, place + j);
        }
        descriptor_wake_if_asleep(w->ring);
        pause_sometimes(&random);
    }
    return NULL;
}

/* Every descriptor of every writer, whole, once, in its order. The reader naps when it finds none,
 * so wake-ups are lost nowhere: without them it would take a second each. */
static void ring_keeps_all(uint32_t size, uint32_t n)
{
    struct descriptor_ring ring;
    struct writer writers[CALLERS];
    uint32_t next[CALLERS] = {0};
    uint64_t random = seed;
    assert_int_equal(descriptor_ring_open(&ring, size), 0);
    for (uint32_t i = 0; i < CALLERS; i++) {
        writers[i] = (struct writer){.ring = &ring, .id = i, .n = n};
        assert_int_equal(pthread_create(&writers[i].thread, NULL, writer_main, &writers[i]), 0);
    }
    for (uint64_t got = 0; got < (uint64_t)CALLERS * n;) {
        struct descriptor *d = descriptor_peek(&ring, 0);
        if (!d) {
            descriptor_nap(&ring, 1000000000);
            continue;
        }
        assert_in_range(d->operand, 0, CALLERS - 1);
        assert_int_equal(d->token, next[d->operand]);
        assert_int_equal(d->remote_address, ~(uint64_t)next[d->operand]);
        next[d->operand]++;
        descriptor_done(&ring, 1);
        got++;
        pause_sometimes(&random);
    }
    for (uint32_t i = 0; i < CALLERS; i++) {
        assert_int_equal(pthread_join(writers[i].thread, NULL), 0);
        assert_int_equal(next[i], n);
    }
    assert_null(descriptor_peek(&ring, 0));
    descriptor_ring_close(&ring);
}

static void test_ring(void **state)
{
    (void)state;
    ring_keeps_all(256, full() ? 10000000 : 30000);
    ring_keeps_all(4096, full() ? 10000000 : 30000);
}

/* What does not fit is refused as a whole, and place comes back by quarters. */
static void test_ring_full(void **state)
{
    (void)state;
    struct descriptor_ring ring;
    uint64_t place;
    assert_int_equal(descriptor_ring_open(&ring, 256), 0);
    for (uint64_t i = 0; i < 252; i += 4) {
        assert_int_equal(descriptor_claim(&ring, 4, &place), 0);
        assert_int_equal(place, i);
        for (uint64_t j = 0; j < 4; j++)
            descriptor_publish(descriptor_at(&ring, i + j), i + j);
    }
    assert_int_equal(descriptor_claim(&ring, 5, &place), -EAGAIN);
    assert_int_equal(descriptor_claim(&ring, 4, &place), 0);
    assert_int_equal(descriptor_claim(&ring, 1, &place), -EAGAIN);
    assert_non_null(descriptor_peek(&ring, 0));
    descriptor_done(&ring, 63);
    assert_int_equal(descriptor_claim(&ring, 1, &place), -EAGAIN);
    descriptor_done(&ring, 1);
    assert_int_equal(descriptor_claim(&ring, 64, &place), 0);
    assert_int_equal(place, 256);
    descriptor_ring_close(&ring);
}

/* ---- operations ----------------------------------------------------------------------------- */

enum { WORDS = 512, QUEUE_PAIRS = 3 };

struct trial {
    int callers, proxies;
    uint32_t operations; /* of each caller */
    struct sstar_links *links;
    struct sstar_link *link;
    struct sstar_region *region;
    uint64_t *memory; /* a piece of WORDS for each caller, to be got into another, and a sum */
    struct sstar_remote_region remote;
};

struct caller {
    pthread_t thread;
    struct trial *t;
    uint32_t id;
    int err;
    struct sstar_completion completion;
};

/* Put numbers inline and from memory, told now and then; each word's last put is by its position in
 * the order of one queue pair. */
static int caller_puts(struct caller *c)
{
    struct trial *t = c->t;
    uint64_t random = seed + c->id, *mine = t->memory + (size_t)c->id * WORDS;
    for (uint32_t i = 0; i < t->operations;) {
        struct sstar_one_sided ops[SSTAR_POST_MOST];
        uint64_t values[SSTAR_POST_MOST];
        uint32_t n = 1 + (uint32_t)(random_next(&random) % 8);
        if (n > t->operations - i)
            n = t->operations - i;
        for (uint32_t j = 0; j < n; j++) {
            uint32_t word = (i + j) % WORDS, told = (i + j) % 16 == 15;
            bool in_memory = word % 3 == 0; /* its source never changes */
            values[j] = in_memory ? mine[word] : (uint64_t)c->id << 32 | (i + j);
            ops[j] = (struct sstar_one_sided){.kind = SSTAR_PUT,
                                              .flags = (in_memory ? 0 : SSTAR_INLINE) |
                                                       (told ? SSTAR_TELL : 0) |
                                                       (j + 1 < n ? SSTAR_MORE : 0),
                                              .queue_pair = c->id % QUEUE_PAIRS,
                                              .bytes = 8,
                                              .local = in_memory ? &mine[word] : &values[j],
                                              .region = in_memory ? t->region : NULL,
                                              .remote = &t->remote,
                                              .offset = ((size_t)c->id * WORDS + word) * 8,
                                              .completion = &c->completion};
        }
        int err = sstar_post(t->link, ops, (int)n);
        if (err && err != -EAGAIN)
            return err;
        if (err)
            sched_yield();
        i += err ? 0 : n;
        pause_sometimes(&random);
    }
    return 0;
}

/* Get a word back through the same queue pair, behind the puts, and add to the common sum. */
static int caller_gets(struct caller *c)
{
    struct trial *t = c->t;
    uint64_t *got = t->memory + (size_t)CALLERS * WORDS + c->id * 2;
    struct sstar_one_sided ops[2] = {{.kind = SSTAR_GET,
                                      .flags = SSTAR_MORE,
                                      .queue_pair = c->id % QUEUE_PAIRS,
                                      .bytes = 8,
                                      .local = &got[0],
                                      .region = t->region,
                                      .remote = &t->remote,
                                      .offset = ((size_t)c->id * WORDS + 1) * 8,
                                      .completion = &c->completion},
                                     {.kind = SSTAR_ADD,
                                      .flags = SSTAR_TELL,
                                      .queue_pair = c->id % QUEUE_PAIRS,
                                      .bytes = 8,
                                      .local = &got[1],
                                      .region = t->region,
                                      .remote = &t->remote,
                                      .offset = (size_t)CALLERS * WORDS * 8,
                                      .add = c->id + 1,
                                      .completion = &c->completion}};
    int err;
    while ((err = sstar_post(t->link, ops, 2)) == -EAGAIN)
        sched_yield();
    return err ? err : sstar_post_wait(t->link, &c->completion, t->operations + 2ull, 30);
}

static void *caller_main(void *arg)
{
    struct caller *c = arg;
    c->err = caller_puts(c);
    if (!c->err)
        c->err = caller_gets(c);
    return NULL;
}

static int callers_run(struct sstar_world *world, struct trial *t)
{
    struct caller callers[CALLERS];
    memset(callers, 0, sizeof callers);
    for (int i = 0; i < t->callers; i++) {
        callers[i].t = t;
        callers[i].id = (uint32_t)i;
        if (world->config.control == SSTAR_CONTROL_DIRECT)
            caller_main(&callers[i]); /* the world's thread, one after the other */
        else
            CHECK(pthread_create(&callers[i].thread, NULL, caller_main, &callers[i]) == 0);
    }
    for (int i = 0; i < t->callers; i++) {
        if (world->config.control == SSTAR_CONTROL_PROXY)
            pthread_join(callers[i].thread, NULL);
        CHECK(callers[i].err == 0);
        CHECK(callers[i].completion.error == 0);
        CHECK(sstar_completed(&callers[i].completion) == t->operations + 2ull);
        uint32_t last = (t->operations - 2) / WORDS * WORDS + 1;
        CHECK(t->memory[(size_t)CALLERS * WORDS + (size_t)i * 2] == ((uint64_t)i << 32 | last));
    }
    return 0;
}

static int trial_open(struct sstar_world *world, struct trial *t)
{
    int peer = !sstar_rank(world);
    const struct sstar_link_attr attr = {.queue_pairs = QUEUE_PAIRS, .puts = 128, .posts = true};
    struct sstar_remote_region mine, all[2];
    size_t bytes = ((size_t)CALLERS * WORDS + 2 * CALLERS) * 8;
    CHECK(sstar_alloc(world, bytes, (void **)&t->memory) == 0);
    CHECK(sstar_links_open(world, &peer, 1, &attr, &t->links) == 0);
    t->link = sstar_links_to(t->links, peer);
    CHECK(sstar_register(world, t->memory, bytes, &t->region) == 0);
    sstar_region_describe(t->region, &mine);
    CHECK(sstar_allgather(world, &mine, sizeof mine, all) == 0);
    t->remote = all[peer];
    return 0;
}

static int trial_close(struct sstar_world *world, struct trial *t)
{
    sstar_links_close(t->links);
    sstar_deregister(t->region);
    CHECK(sstar_free(world, t->memory) == 0);
    return 0;
}

static uint64_t expected_word(uint32_t caller, uint32_t word, uint32_t operations)
{
    if (word % 3 == 0)
        return 7000000ull + caller * WORDS + word;
    uint32_t last = (operations - 1 - word) / WORDS * WORDS + word;
    return (uint64_t)caller << 32 | last;
}

static int body_operations(struct sstar_world *world, void *arg)
{
    struct trial t = *(struct trial *)arg;
    CHECK(trial_open(world, &t) == 0);
    bool sends = sstar_rank(world) == 0;
    for (uint32_t i = 0; sends && i < (uint32_t)CALLERS * WORDS; i++)
        t.memory[i] = 7000000ull + i;
    if (sends)
        CHECK(callers_run(world, &t) == 0);
    CHECK(sstar_barrier(world) == 0);
    for (uint32_t i = 0; !sends && i < (uint32_t)t.callers * WORDS; i++)
        CHECK(t.memory[i] == expected_word(i / WORDS, i % WORDS, t.operations));
    if (!sends)
        CHECK(t.memory[CALLERS * WORDS] == (uint64_t)t.callers * (uint64_t)(t.callers + 1) / 2);
    return trial_close(world, &t);
}

static void operations(const char *control, const struct sstar_wire *wire, uint32_t n)
{
    struct trial t = {.callers = CALLERS, .operations = n};
    setenv("SSTAR_CONTROL", control, 1);
    ranks_expect_both((struct ranks){.size = 2,
                                     .ranks_per_node = 1,
                                     .wire = wire ? *wire : (struct sstar_wire){0},
                                     .body = body_operations,
                                     .arg = &t});
    unsetenv("SSTAR_CONTROL");
}

static void test_operations(void **state)
{
    (void)state;
    operations("proxy", NULL, full() ? 10000000 : 20000);
    operations("proxy,2", NULL, 5000);
    operations("direct", NULL, 5000);
}

static void test_operations_shaped(void **state)
{
    (void)state;
    const struct sstar_wire quick = {20, 0.2, 1};
    operations("proxy", ranks_can_shape() ? &quick : NULL, 2000);
    operations("direct", ranks_can_shape() ? &quick : NULL, 1000);
}

/* ---- what is refused, and what fails -------------------------------------------------------- */

static int body_refused(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct trial t = {0};
    struct sstar_completion completion = {0};
    int peer = !sstar_rank(world);
    struct sstar_links *links;
    const struct sstar_link_attr both = {.slot_bytes = 8, .posts = true};
    CHECK(sstar_links_open(world, &peer, 1, &both, &links) == -EINVAL);
    CHECK(strstr(sstar_last_error(world), "two sets"));
    CHECK(trial_open(world, &t) == 0);
    const struct sstar_one_sided good = {.bytes = 8,
                                         .local = t.memory,
                                         .region = t.region,
                                         .remote = &t.remote,
                                         .completion = &completion};
    struct sstar_one_sided bad = good;
    bad.offset = t.remote.size_bytes - 7;
    CHECK(sstar_post(t.link, &bad, 1) == -EINVAL);
    bad = good;
    bad.queue_pair = QUEUE_PAIRS;
    CHECK(sstar_post(t.link, &bad, 1) == -EINVAL);
    bad = good;
    bad.region = NULL;
    CHECK(sstar_post(t.link, &bad, 1) == -EINVAL);
    bad = good;
    bad.flags = SSTAR_INLINE;
    bad.bytes = 17;
    CHECK(sstar_post(t.link, &bad, 1) == -EINVAL);
    bad = good;
    bad.kind = SSTAR_ADD;
    bad.offset = 4;
    CHECK(sstar_post(t.link, &bad, 1) == -EINVAL);
    CHECK(sstar_post(t.link, &good, SSTAR_POST_MOST + 1) == -EINVAL);
    CHECK(sstar_post(t.link, &good, 0) == 0);
    CHECK(sstar_completed(&completion) == 0);
    CHECK(sstar_post_wait(t.link, &completion, 1, 0.01) == -ETIMEDOUT);
    return trial_close(world, &t);
}

/* A proxy that has long been asleep is there for the next one. */
static int body_sleep(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct trial t = {0};
    CHECK(trial_open(world, &t) == 0);
    for (int i = 0; i < 3; i++) {
        struct sstar_completion completion = {0};
        uint64_t value = 1000 + (uint64_t)i;
        usleep(100000);
        const struct sstar_one_sided op = {.flags = SSTAR_INLINE | SSTAR_TELL,
                                           .bytes = 8,
                                           .local = &value,
                                           .remote = &t.remote,
                                           .completion = &completion};
        CHECK(sstar_post(t.link, &op, 1) == 0);
        CHECK(sstar_post_wait(t.link, &completion, 1, (double)INFINITY) == 0);
    }
    CHECK(sstar_barrier(world) == 0);
    CHECK(t.memory[0] == 1002);
    return trial_close(world, &t);
}

/* The peer is killed: whoever waits for a completion is told, and the world fails, naming it. */
static int body_death(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct trial t = {0};
    struct sstar_completion completion = {0};
    CHECK(trial_open(world, &t) == 0);
    if (sstar_rank(world) == 1)
        raise(SIGKILL);
    uint64_t begun = clock_ns(), posted = 0, value = 1;
    const struct sstar_one_sided op = {.flags = SSTAR_INLINE | SSTAR_TELL,
                                       .bytes = 8,
                                       .local = &value,
                                       .remote = &t.remote,
                                       .completion = &completion};
    int err = 0;
    while (!err && clock_ns() - begun < 10000000000ull) {
        err = sstar_post(t.link, &op, 1);
        posted += err == 0;
        if (!err || err == -EAGAIN)
            err = sstar_post_wait(t.link, &completion, posted, 10);
    }
    CHECK(err == -EIO);
    CHECK(clock_ns() - begun < 5000000000ull);
    struct waiter w = wait_begin(world, "the news", 1, 0);
    while (sstar_links_progress(t.links) >= 0)
        CHECK(wait_step(&w) <= 0);
    CHECK(strncmp(sstar_last_error(world), "rank 1 ", 7) == 0);
    trial_close(world, &t);
    return 0;
}

static void test_refused(void **state)
{
    (void)state;
    ranks_expect_both((struct ranks){.size = 2, .ranks_per_node = 1, .body = body_refused});
}

static void test_sleep(void **state)
{
    (void)state;
    setenv("SSTAR_CONTROL", "proxy", 1);
    ranks_expect_both((struct ranks){.size = 2, .ranks_per_node = 1, .body = body_sleep});
    unsetenv("SSTAR_CONTROL");
}

static void test_death(void **state)
{
    (void)state;
    setenv("SSTAR_CONTROL", "proxy", 1);
    assert_int_equal(ranks_run(&(struct ranks){
                         .size = 2, .ranks_per_node = 1, .processes = true, .body = body_death}),
                     1);
    unsetenv("SSTAR_CONTROL");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring),       cmocka_unit_test(test_ring_full),
        cmocka_unit_test(test_operations), cmocka_unit_test(test_operations_shaped),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_sleep),
        cmocka_unit_test(test_death),
    };
    printf("# seed %llu\n", (unsigned long long)seed);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
