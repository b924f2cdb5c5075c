/* SPDX-License-Identifier: MIT */
/*
 * Worlds whose devices misbehave: what can be borne is borne, with right results; what cannot is
 * told in a sentence by every rank. Runs on any device (SSTAR_TEST_DEVICE).
 */
#include "collectives/collectives.h"
#include "tests/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
/* CMocka needs the ones above first. */
#include <cmocka.h>

enum { COUNT = 3000, ROUNDS = 12 };

/* A failure is returned, and not complained of. */
static int reduce_rounds(struct sstar_world *world)
{
    static _Thread_local int32_t send[COUNT], recv[COUNT];
    int rank = sstar_rank(world), size = sstar_size(world);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < COUNT; i++)
            send[i] = (rank + 1) * (i + round);
        int err = sstar_allreduce(world, send, recv, COUNT, SSTAR_INT32, SSTAR_SUM);
        if (err)
            return err;
        for (int i = 0; i < COUNT; i++)
            CHECK(recv[i] == size * (size + 1) / 2 * (i + round));
    }
    return sstar_fast_barrier(world);
}

static int body_well(struct sstar_world *world, void *arg)
{
    (void)arg;
    CHECK(reduce_rounds(world) == 0);
    return 0;
}

static int body_fails(struct sstar_world *world, void *arg)
{
    const char *says = arg;
    CHECK(reduce_rounds(world) < -1);
    if (!strstr(sstar_last_error(world), says)) {
        ranks_complain(world, __FILE__, __LINE__, says);
        return -1;
    }
    return 0;
}

static void well(const char *plan)
{
    ranks_expect_both(
        (struct ranks){.size = 4, .ranks_per_node = 2, .body = body_well, .faults = plan});
}

static void fails(const char *plan, const char *says)
{
    ranks_expect_both((struct ranks){.size = 4,
                                     .ranks_per_node = 2,
                                     .body = body_fails,
                                     .arg = (void *)(uintptr_t)says,
                                     .faults = plan});
}

/* On a device that is named what takes long is left out, unless the test is a full one: faults are
 * made above the device, and how it gives up by itself is tried by pulling cables (tests/lab). */
static bool sample(void)
{
    const char *full = getenv("SSTAR_TEST_FULL");
    return getenv("SSTAR_TEST_DEVICE") && !(full && strcmp(full, "1") == 0);
}

static void test_borne(void **state)
{
    (void)state;
    well("seed=4; rnr p=0.02 tries=2 timer=50us; delay p=0.05 by=200us");
    if (sample())
        return;
    well("seed=3; drop p=0.002");
    well("seed=5; late p=0.2 by=300us");
    well("slow rank=1 gap=20us gbps=0.5");
    well("down nth=2 qp=1 for=50ms");
}

static void test_not_borne(void **state)
{
    (void)state;
    fails("rnr rank=1 nth=2 tries=all timer=1ms", "receiver not ready after all retries");
    fails("fatal rank=0 nth=2", "flushed");
    fails("fail call=post_send rank=0 nth=3 errno=EIO", "Input/output error");
    if (sample())
        return;
    fails("drop rank=2 nth=2 tries=all", "no answer after all retries (about ");
    fails("error rank=3 nth=2 status=REM_ACCESS_ERR", "remote access error");
    fails("down rank=0 nth=2", "no answer after all retries");
    fails("fail call=create_qp rank=1-2", "Cannot allocate memory");
    fails("fail call=reg_mr errno=ENOSPC", "No space left on device");
    fails("fail call=create_cq", "Cannot allocate memory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_borne),
                                       cmocka_unit_test(test_not_borne)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
