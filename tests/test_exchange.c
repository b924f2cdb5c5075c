/* SPDX-License-Identifier: MIT */
/*
 * Questions and answers: every question is answered once, with the right answer, in the order in
 * which that rank was asked, by every strategy, to all and to one, long and short, with room for
 * next to nothing, on nodes of unequal size, on devices that keep the order of bytes and that do
 * not.
 */
#include "tests/ranks.h"
#include "tests/traffic.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct talk {
    const char *name;
    enum pattern pattern;
    uint32_t questions, question_bytes, answer_bytes, flush_bytes, buffer_bytes, outstanding;
    double max_age_us;
};
static const struct talk talks[] = {
    {"words", UNIFORM, 600, 8, 8, 1024, 0, 0, 0},
    {"all to one", ALL_TO_ONE, 400, 8, 24, 2048, 1, 0, 0},
    {"room for next to nothing", UNIFORM, 150, 12, 100, 64, 1, 2, 0},
    {"long answers to one", ALL_TO_ONE, 60, 8, 5000, 3000, 1, 16, 50},
    {"long questions", UNIFORM, 80, 3000, 9, 4096, 1, 0, 0},
    {"far from full", SKEWED, 300, 8, 8, 1 << 20, 0, 8, 50},
    {"from one", ONE_TO_ALL, 300, 16, 32, 1000, 0, 0, 0},
    {"nothing", NOTHING, 0, 8, 8, 1024, 0, 0, 0},
};
enum { TALKS = sizeof talks / sizeof *talks, LONGEST = 5000, ROUNDS = 2 };

/* What is answered by `rank`: follows from who asks and what, and all bytes of both are used. */
static void question_of(const struct talk *t, int asker, uint32_t number, uint8_t *out)
{
    memset(out, (int)(number + (uint32_t)asker), t->question_bytes);
    memcpy(out, &number, sizeof number);
}
static void answer_of(const struct talk *t, int rank, int asker, uint32_t number, uint8_t *out)
{
    for (uint32_t i = 0; i < t->answer_bytes; i++)
        out[i] = (uint8_t)(number * 7 + (uint32_t)rank * 31 + (uint32_t)asker * 3 + i);
}

struct answering {
    struct sstar_world *world;
    const struct talk *t;
    uint64_t answered, wrong;
};

static void answer(void *context, int asker, const void *questions, void *answers, uint32_t n)
{
    struct answering *a = context;
    const struct talk *t = a->t;
    uint8_t expected[LONGEST];
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *question = (const uint8_t *)questions + (size_t)i * t->question_bytes;
        uint32_t number;
        memcpy(&number, question, sizeof number);
        question_of(t, asker, number, expected);
        a->wrong += memcmp(expected, question, t->question_bytes) != 0;
        answer_of(t, sstar_rank(a->world), asker, number,
                  (uint8_t *)answers + (size_t)i * t->answer_bytes);
    }
    a->answered += n;
}

static int to_whom(const struct talk *t, int size, int from, uint32_t i)
{
    struct traffic traffic = {.pattern = t->pattern};
    return traffic_destination(&traffic, size, from, i);
}

struct asking {
    uint32_t asked, answered, last[RANKS_MOST]; /* last: 1 + the last tag that each rank answered */
};

static int ask_some(struct sstar_world *world, struct sstar_exchange *x, const struct talk *t,
                    uint32_t n, struct asking *s)
{
    int me = sstar_rank(world), err = 0;
    uint8_t question[LONGEST];
    for (; s->asked < n && !err; s->asked += !err) {
        question_of(t, me, s->asked, question);
        err = sstar_ask(x, to_whom(t, sstar_size(world), me, s->asked), question, t->question_bytes,
                        s->asked);
        CHECK(err == 0 || err == -EAGAIN);
    }
    return 0;
}

static int pull_answers(struct sstar_world *world, struct sstar_exchange *x, const struct talk *t,
                        struct asking *s)
{
    int me = sstar_rank(world), got;
    uint8_t expected[LONGEST];
    struct sstar_answer a;
    while ((got = sstar_pull_answer(x, &a)) == 1) {
        CHECK(a.source >= 0 && a.source < sstar_size(world));
        CHECK(a.tag < s->asked && a.tag + 1 > s->last[a.source]);
        CHECK(to_whom(t, sstar_size(world), me, (uint32_t)a.tag) == a.source);
        answer_of(t, a.source, me, (uint32_t)a.tag, expected);
        CHECK(memcmp(expected, a.data, t->answer_bytes) == 0);
        s->last[a.source] = (uint32_t)a.tag + 1;
        s->answered++;
    }
    CHECK(got == 0);
    return 0;
}

static int talk(struct sstar_world *world, const struct talk *t, enum sstar_strategy strategy)
{
    struct answering answering = {.world = world, .t = t};
    struct sstar_exchange_attr attr = {.way = {.strategy = strategy,
                                               .flush_bytes = t->flush_bytes,
                                               .buffer_bytes = t->buffer_bytes,
                                               .max_age_us = t->max_age_us},
                                       .question_bytes = t->question_bytes,
                                       .answer_bytes = t->answer_bytes,
                                       .outstanding = t->outstanding,
                                       .answer = answer,
                                       .context = &answering};
    bool asks = t->pattern != ONE_TO_ALL || sstar_rank(world) == 0;
    uint32_t n = asks ? t->questions : 0;
    uint64_t all[RANKS_MOST], answered = 0, asked = 0;
    struct sstar_exchange *x;
    CHECK(sstar_exchange_open(world, &attr, &x) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct asking s = {0};
        int left;
        CHECK(round == 0 || sstar_exchange_reset(x) == 0);
        do {
            if (ask_some(world, x, t, n, &s) || pull_answers(world, x, t, &s))
                return -1;
            left = sstar_exchange_advance(x, s.asked == n);
            CHECK(left >= 0);
        } while (left);
        CHECK(s.answered == n && sstar_exchange_advance(x, true) == 0);
        asked += n;
    }
    CHECK(answering.wrong == 0);
    CHECK(sstar_allgather(world, &answering.answered, sizeof *all, all) == 0);
    for (int r = 0; r < sstar_size(world); r++)
        answered += all[r];
    CHECK(sstar_allgather(world, &asked, sizeof *all, all) == 0);
    for (int r = 0; r < sstar_size(world); r++)
        answered -= all[r];
    CHECK(answered == 0);
    sstar_exchange_close(x);
    return 0;
}

/* A third of them in each world, all with SSTAR_TEST_FULL=1. */
static int all_talks(struct sstar_world *world, void *arg)
{
    const char *full = getenv("SSTAR_TEST_FULL");
    int which = *(const int *)arg;
    for (int i = 0; i < TALKS; i++)
        for (enum sstar_strategy s = SSTAR_NONE; s < SSTAR_STRATEGIES; s++) {
            if ((i + (int)s + which) % 3 && !(full && strcmp(full, "0") != 0))
                continue;
            if (talk(world, &talks[i], s)) {
                fprintf(stderr, "(%s, strategy %s)\n", talks[i].name, sstar_strategy_name(s));
                return -1;
            }
        }
    return 0;
}

static void every_question_is_answered_once(void **state)
{
    (void)state;
    static const struct {
        int ranks, per_node;
        bool relaxed;
    } worlds[] = {{1, 1, false}, {2, 2, false}, {5, 5, false}, {4, 2, true}, {4, 2, false},
                  {5, 2, true},  {5, 2, false}, {4, 1, true},  {7, 3, false}};
    for (int i = 0; i < (int)(sizeof worlds / sizeof *worlds); i++)
        ranks_expect(&(struct ranks){
            .size = worlds[i].ranks,
            .ranks_per_node = worlds[i].per_node,
            .order = {.relaxed = worlds[i].relaxed, .seed = TRAFFIC_SEED + (unsigned)i},
            .body = all_talks,
            .arg = &i});
}

static void as_processes_on_a_shaped_wire(void **state)
{
    (void)state;
    int which = 1;
    ranks_expect(&(struct ranks){.size = 4,
                                 .ranks_per_node = 2,
                                 .processes = true,
                                 .wire = {.alpha_us = 20, .gap_us = 1, .beta_gbps = 1},
                                 .body = all_talks,
                                 .arg = &which});
}

/* Nobody asks before the last answer has come. */
static int one_after_the_other(struct sstar_world *world, void *arg)
{
    static const struct talk t = {
        .pattern = NEIGHBOUR, .questions = 20, .question_bytes = 8, .answer_bytes = 8};
    struct answering answering = {.world = world, .t = &t};
    struct sstar_exchange_attr attr = {
        .way = {.strategy = *(enum sstar_strategy *)arg, .flush_bytes = 1 << 20},
        .question_bytes = 8,
        .answer_bytes = 8,
        .answer = answer,
        .context = &answering};
    struct sstar_exchange *x;
    struct asking s = {0};
    int left = 1;
    CHECK(sstar_exchange_open(world, &attr, &x) == 0);
    while (left > 0) {
        if (s.answered == s.asked && s.asked < t.questions &&
            ask_some(world, x, &t, s.asked + 1, &s))
            return -1;
        if (pull_answers(world, x, &t, &s))
            return -1;
        left = sstar_exchange_advance(x, s.asked == t.questions);
    }
    CHECK(left == 0 && s.answered == t.questions);
    sstar_exchange_close(x);
    return 0;
}

static void who_waits_for_an_answer_gets_it(void **state)
{
    (void)state;
    for (enum sstar_strategy s = SSTAR_NONE; s < SSTAR_STRATEGIES; s++)
        ranks_expect(&(struct ranks){
            .size = 4, .ranks_per_node = 2, .body = one_after_the_other, .arg = &s});
}

static int mistakes(struct sstar_world *world, void *arg)
{
    (void)arg;
    struct answering answering = {.world = world, .t = &talks[0]};
    struct sstar_exchange_attr bad, attr = {.way = {.flush_bytes = 1000},
                                            .question_bytes = 8,
                                            .answer_bytes = 8,
                                            .answer = answer,
                                            .context = &answering};
    struct sstar_exchange *x = NULL;
    uint8_t question[16] = {0};
    int left;
    bad = attr;
    bad.answer = NULL;
    CHECK(sstar_exchange_open(world, &bad, &x) == -EINVAL && !x);
    bad = attr;
    bad.answer_bytes = 0;
    CHECK(sstar_exchange_open(world, &bad, &x) == -EINVAL && !x);
    bad = attr;
    bad.outstanding = UINT32_MAX;
    CHECK(sstar_exchange_open(world, &bad, &x) == -EINVAL && !x);
    CHECK(sstar_exchange_open(world, &attr, &x) == 0);
    CHECK(sstar_ask(x, sstar_size(world), question, 8, 0) == -EINVAL);
    CHECK(sstar_ask(x, -1, question, 8, 0) == -EINVAL);
    CHECK(sstar_ask(x, 0, question, 9, 0) == -EMSGSIZE);
    while ((left = sstar_exchange_advance(x, true)) == 1)
        CHECK(sstar_ask(x, 0, question, 8, 0) == -EINVAL);
    CHECK(left == 0);
    sstar_exchange_close(x);
    sstar_exchange_close(NULL);
    return 0;
}

static void mistakes_are_refused(void **state)
{
    (void)state;
    ranks_expect(&(struct ranks){.size = 3, .ranks_per_node = 2, .body = mistakes});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_question_is_answered_once),
        cmocka_unit_test(as_processes_on_a_shaped_wire),
        cmocka_unit_test(who_waits_for_an_answer_gets_it),
        cmocka_unit_test(mistakes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
