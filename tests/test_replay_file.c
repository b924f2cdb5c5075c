/* SPDX-License-Identifier: MIT */
/* Lists of collectives: what is read, what is refused and in which words, and that no damage to a
 * good one makes the reader stumble. */
#include "tests/files.h"
#include "tests/ranks.h"
#include "tools/replay.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HEAD "rank,seq,coll,elem_bytes,bytes,in_splits_elems,out_splits_elems\n"
static const char good[] = "# two ranks\n" HEAD "0,0,all_to_allv,4,20,2 3,2 1\n"
                           "0,7,all_reduce,4,400,,\n"
                           "\n"
                           "1,7,allreduce,4,400\n"
                           "1,0,alltoallv,4,4,1 0,3 0\n"
                           "0,9,all_to_all,8,32,,\n"
                           "1,9,all_to_all,8,32,,\n";

static void a_list_is_read_in_order_of_seq(void **state)
{
    const char *path = *state;
    struct replay r;
    char error[256];
    file_write(path, good, sizeof good - 1);
    assert_int_equal(replay_read(path, &r, error, sizeof error), 0);
    assert_int_equal(r.ranks, 2);
    assert_int_equal(r.n, 3);
    const struct replay_entry *e = r.entries;
    assert_int_equal(e[0].kind, REPLAY_ALL_TO_ALLV);
    assert_int_equal(e[0].bytes, 20);
    static const uint64_t varied[] = {8, 12, 4, 0}, alike[] = {16, 16, 16, 16};
    assert_memory_equal(e[0].blocks, varied, sizeof varied);
    assert_int_equal(e[1].seq, 7);
    assert_int_equal(e[1].kind, SSTAR_ALL_REDUCE);
    assert_null(e[1].blocks);
    assert_int_equal(e[2].element_bytes, 8);
    assert_memory_equal(e[2].blocks, alike, sizeof alike);
    replay_free(&r);
    assert_null(r.entries);
}

static int read_nothing(const char *path, char *error, size_t error_size)
{
    struct replay r = {.ranks = 99};
    int err = replay_read(path, &r, error, error_size);
    assert_int_equal(r.ranks, 99); /* outputs only on success */
    return err;
}

static void what_is_no_list_is_refused(void **state)
{
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "it holds no collective"},
        {HEAD, "it holds no collective"},
        {"0,0,allreduce,4,400,,\n", ":1: the first line must be 'rank,seq,"},
        {HEAD "0,0,allreduce,4,400", ":2: the last line has no end"},
        {HEAD "0,0,allreduce,4\n", ":2: 4 fields"},
        {HEAD "0,0,allreduce,4,400,,,\n", ":2: 8 fields"},
        {HEAD "-1,0,allreduce,4,400,,\n", ":2: rank is '-1'; it is a whole number from 0"},
        {HEAD "1024,0,allreduce,4,400,,\n", ":2: rank is '1024'"},
        {HEAD "0,x,allreduce,4,400,,\n", ":2: seq is 'x'"},
        {HEAD "0,0,alltoone,4,400,,\n", ":2: no collective is called 'alltoone'"},
        {HEAD "0,0,allreduce,3,300,,\n", ":2: elem_bytes is 3"},
        {HEAD "0,0,allreduce,4,99999999999999999999,,\n", ":2: bytes is '99999"},
        {HEAD "0,0,allreduce,4,401,,\n", ":2: 401 bytes are not a whole number"},
        {HEAD "0,0,all_to_allv,4,4\n", ":2: all_to_allv needs in_splits"},
        {HEAD "0,0,all_to_allv,4,4,,\n", ":2: 0 in_splits and 0 out_splits"},
        {HEAD "0,0,all_to_allv,4,4,1 2,1\n", ":2: 2 in_splits and 1 out_splits"},
        {HEAD "0,0,all_to_allv,4,8,1,1\n", ":2: the in_splits add up to 1 elements"},
        {HEAD "0,0,all_to_allv,4,4,1;,1\n", ":2: in_splits is '1;'"},
        {HEAD "0,0,all_to_allv,4,4,1,-1\n", ":2: out_splits is '-1'"},
        {HEAD "0,0,all_to_allv,4,8,1 1,1 1\n", ":2: 2 splits, but there are 1 ranks"},
        {HEAD "0,0,all_to_allv,4,4,1,2\n", ":2: what ranks 0 and 0 send"},
        {HEAD "0,0,all_to_allv,4,8,1 1,1 1\n1,0,all_to_allv,4,8,1 1,2 0\n",
         ":3: what ranks 1 and 0 send and what they expect of each other (line 2) differ"},
        {HEAD "0,0,allreduce,4,8,,\n0,0,allreduce,4,8,,\n", ":3: rank 0 has seq 0 twice"},
        {HEAD "1,0,allreduce,4,8,,\n", ":2: seq 0 has no line of rank 0, and there are 2"},
        {HEAD "0,0,barrier,1,0,,\n1,0,barrier,1,0,,\n0,3,barrier,1,0,,\n",
         "seq 3 has no line of rank 1"},
        {HEAD "0,0,allreduce,4,8,,\n1,0,allreduce,4,12,,\n",
         ":3: rank 1 hands in 12 bytes, but rank 0 (line 2) 8"},
        {HEAD "0,0,allreduce,4,8,,\n1,0,allreduce,8,8,,\n",
         ":3: rank 1 does allreduce of elements of 8 bytes, but rank 0 (line 2) allreduce of 4"},
        {HEAD "0,0,all_to_all,4,12,,\n1,0,all_to_all,4,12,,\n",
         ":2: 12 bytes cannot be cut into a block for each of 2 ranks"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        file_refused(read_nothing, *state, bad[i].text, bad[i].words);
}

/* Bytes changed, lost and doubled at random: read or refused with a sentence, and if it was read it
 * holds together. */
static void damage_is_refused_or_harmless(void **state)
{
    const char *path = *state;
    uint64_t seed = 20261130;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 3000; i++) {
        char text[2 * sizeof good], error[512] = "";
        size_t n = file_damage(good, sizeof good - 1, text, &seed);
        struct replay r = {0};
        file_write(path, text, n);
        int err = replay_read(path, &r, error, sizeof error);
        assert_true(err == 0 || (err == -EINVAL && *error));
        for (size_t e = 0; e < r.n; e++)
            assert_true(r.ranks > 0 && r.entries[e].kind < REPLAY_KINDS &&
                        !r.entries[e].blocks == !replay_is_alltoall(r.entries[e].kind));
        replay_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_is_read_in_order_of_seq),
        cmocka_unit_test(what_is_no_list_is_refused),
        cmocka_unit_test(damage_is_refused_or_harmless),
    };
    return cmocka_run_group_tests(tests, file_make, file_remove);
}
