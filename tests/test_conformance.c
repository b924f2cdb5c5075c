/* SPDX-License-Identifier: MIT */
/*
 * Runs the conformance suite on every enrolled device, or on the one that SSTAR_TEST_DEVICE names:
 * an enrolled one, or else a device of libibverbs. SSTAR_TEST_SEED sets the seed of the payloads,
 * SSTAR_TEST_FILTER chooses checks by a pattern of names (* and ?).
 */
#include "tests/conformance.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
/* CMocka needs the ones above first. */
#include <cmocka.h>

static const struct check_group *const groups[] = {
    &objects_checks,  &states_checks,  &transfer_checks,  &calls_checks,      &gather_checks,
    &keys_checks,     &atomics_checks, &receive_checks,   &failure_checks,    &queues_checks,
    &order_checks,    &events_checks,  &async_checks,     &memory_checks,     &thread_checks,
    &death_checks,    &process_checks, &transport_checks, &unreliable_checks, &losses_checks,
    &datagram_checks, &address_checks, &srq_checks,       &cq_ex_checks,      &limits_checks,
    &queries_checks,  &regions_checks,
};

/* What a CMocka test is given. */
struct run {
    const struct device *device;
    const struct check *check;
    uint64_t seed;
};

static const struct exception *exception_of(const struct run *run)
{
    const struct exception *e = run->device->exceptions;
    for (; e && e->check; e++)
        if (!strcmp(e->check, run->check->name))
            return e;
    return NULL;
}

/* Runs one step of a trial; what setjmp answered: 0, 1 for a failure, 2 for a skip. */
static int attempt(struct trial *t, void (*step)(struct trial *t))
{
    int outcome = setjmp(t->out);
    if (outcome == 0)
        step(t);
    return outcome;
}

static void open_and_run(struct trial *t)
{
    if (!t->check->unopened) {
        side_open(t, &t->a, 0);
        side_open(t, &t->b, 1);
    }
    t->check->run(t);
}

static void undo_all(struct trial *t)
{
    if (!trial_undo(t))
        longjmp(t->out, 1);
}

static void close_a(struct trial *t)
{
    side_close(t, &t->a);
}

static void close_b(struct trial *t)
{
    side_close(t, &t->b);
}

/* Whatever came before, all of it is tried. True: nothing refused. */
static bool finish(struct trial *t)
{
    peers_end(t);
    int refused = attempt(t, undo_all);
    refused |= attempt(t, close_a);
    refused |= attempt(t, close_b);
    return !refused;
}

static void run_check(void **state)
{
    const struct run *run = *state;
    struct trial *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->device = run->device;
    t->verbs = run->device->verbs;
    t->check = run->check;
    t->root = getpid();
    t->random = run->seed;
    t->next_id = 1000;
    const struct exception *e = exception_of(run);
    t->deadline_ms = e && e->silent ? SILENCE_MS : DEADLINE_MS;
    int outcome = attempt(t, open_and_run);
    char message[sizeof t->message + sizeof t->where + 4];
    snprintf(message, sizeof message, "%s %s", t->where, t->message);
    if (!finish(t) && outcome == 0) {
        snprintf(message, sizeof message, "%s", t->message);
        outcome = 1;
    }
    free(t);

    if (outcome == 2) {
        print_message("[  REASON  ] %s\n", message);
        skip();
    }
    if (!e && outcome)
        fail_msg("%s: %s", run->device->name, message);
    if (!e)
        return;
    if (!outcome)
        fail_msg("%s: listed as an exception (%s), but it passes: strike it off the list",
                 run->device->name, e->reason);
    if (!strstr(message, e->how))
        fail_msg("%s: an exception, but fails otherwise than listed ('%s'): %s", run->device->name,
                 e->how, message);
    print_message("[EXCEPTION ] %s: %s\n", e->reason, message);
}

static int run_group(const struct device *device, const struct check_group *group, uint64_t seed)
{
    struct CMUnitTest *tests = calloc(group->count, sizeof *tests);
    struct run *runs = calloc(group->count, sizeof *runs);
    int failed = 1;
    if (tests && runs) {
        for (size_t i = 0; i < group->count; i++) {
            runs[i] = (struct run){device, &group->checks[i], seed};
            tests[i] = (struct CMUnitTest){
                .name = group->checks[i].name, .test_func = run_check, .initial_state = &runs[i]};
        }
        char name[128];
        snprintf(name, sizeof name, "%s: %s", device->name, group->name);
        failed = _cmocka_run_group_tests(name, tests, group->count, NULL, NULL);
    }
    free(tests);
    free(runs);
    return failed;
}

static bool is_check(const char *name)
{
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        for (size_t j = 0; j < groups[i]->count; j++)
            if (!strcmp(groups[i]->checks[j].name, name))
                return true;
    return false;
}

static int run_device(const struct device *device, uint64_t seed)
{
    int failed = 0;
    for (const struct exception *e = device->exceptions; e && e->check; e++)
        if (!is_check(e->check)) {
            fprintf(stderr, "%s: the exception '%s' names no check\n", device->name, e->check);
            failed++;
        }
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        failed += run_group(device, groups[i], seed) != 0;
    return failed;
}

int main(void)
{
    const char *name = getenv("SSTAR_TEST_DEVICE");
    const char *seed_text = getenv("SSTAR_TEST_SEED");
    const char *filter = getenv("SSTAR_TEST_FILTER");
    uint64_t seed = seed_text ? strtoull(seed_text, NULL, 0) : 20260713;
    int failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("# seed %llu\n", (unsigned long long)seed);
    if (filter)
        cmocka_set_test_filter(filter);
    if (name && *name) {
        struct device device;
        if (device_named(name, &device)) {
            fprintf(stderr,
                    "SSTAR_TEST_DEVICE=%s: neither a device of this suite nor of libibverbs\n",
                    name);
            return 1;
        }
        return run_device(&device, seed) != 0;
    }
    for (size_t i = 0; device_enrolled(i); i++)
        failed += run_device(device_enrolled(i), seed);
    return failed != 0;
}
