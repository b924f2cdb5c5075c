/* SPDX-License-Identifier: MIT */
/* Routing files: what is read, what is refused and in which words; the skew of made-up ones. */
#include "tests/files.h"
#include "tools/routing.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

static const char *path;

static int make_path(void **state)
{
    int err = file_make(state);
    path = *state;
    return err;
}

static const char good[] = "# a trace; top-2 of 16 experts\n"
                           "# seq,token,layer,e0,e1\n"
                           "0,0,0,3,15\n"
                           "0,0,1,7,0\r\n"
                           "\n"
                           "5,1,0,1,2\n";

static void check_good(const struct routing *r)
{
    assert_int_equal(r->lines, 3);
    assert_int_equal(r->top, 2);
    assert_int_equal(r->experts, 16);
    assert_int_equal(r->layers, 2);
    assert_int_equal(r->sequences, 6);
    assert_int_equal(r->sequence[2], 5);
    assert_int_equal(r->token[2], 1);
    assert_int_equal(r->layer[1], 1);
    assert_int_equal(r->expert[1], 15);
    assert_int_equal(r->expert[2], 7);
    assert_int_equal(r->expert[5], 2);
}

static void plain_and_compressed_files_are_read(void **state)
{
    (void)state;
    struct routing r;
    char error[256];
    file_write(path, good, sizeof good - 1);
    assert_int_equal(routing_read(path, 0, &r, error, sizeof error), 0);
    check_good(&r);
    routing_free(&r);
    gzFile f = gzopen(path, "wb");
    assert_int_equal(gzwrite(f, good, sizeof good - 1), sizeof good - 1);
    assert_int_equal(gzclose(f), Z_OK);
    assert_int_equal(routing_read(path, 0, &r, error, sizeof error), 0);
    check_good(&r);
    routing_free(&r);
    assert_null(r.expert);
}

static void the_number_of_experts_can_be_told(void **state)
{
    (void)state;
    struct routing r;
    char error[256];
    file_write(path, "0,0,0,3\n", 8);
    assert_int_equal(routing_read(path, 0, &r, error, sizeof error), 0);
    assert_int_equal(r.experts, 4);
    routing_free(&r);
    assert_int_equal(routing_read(path, 64, &r, error, sizeof error), 0);
    assert_int_equal(r.experts, 64);
    routing_free(&r);
}

/* `words` must stand in the sentence, behind the path. */
static void refused(const void *data, size_t bytes, uint32_t experts, const char *words)
{
    struct routing r = {.lines = 99};
    char error[256] = "";
    file_write(path, data, bytes);
    assert_int_equal(routing_read(path, experts, &r, error, sizeof error), -EINVAL);
    if (strncmp(error, path, strlen(path)) || !strstr(error, words))
        fail_msg("'%s' does not say '%s'", error, words);
    assert_int_equal(r.lines, 99); /* outputs only on success */
}

static void what_is_no_routing_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "holds no routing line"},
        {"# only words\n", "holds no routing line"},
        {"0,0,0,1,2\n0,0,1,1\n", ":2: 4 fields, but the lines before have 5"},
        {"0,0,0,1,2\n0,0,1,1,1", ":2: the last line has no end"},
        {"0,0,0,1,2\n0,0,1,1,-1\n", ":2: expert -1: there are 0 to"},
        {"0,0,0,1,2\n-3,0,1,1,1\n", ":2: sequence -3"},
        {"0,0,0\n", ":1: 3 fields"},
        {"0,0,0,\n", ":1: expert is missing"},
        {"0,,0,1\n", ":1: token is missing"},
        {"0,0,0,1x\n", ":1: 'x' at column 8"},
        {"0,0,0,--1\n", ":1: expert is missing"},
        {"0,0,0,1-1\n", ":1: '-1' where a comma"},
        {"0,0,99999,1\n", ":1: layer 99999"},
        {"0,0,0,99999999999999999999\n", ":1: expert 99999999999999999999"},
        {"# top-1 of 4 experts\n0,0,0,4\n", ":2: expert 4: there are 0 to 3"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refused(bad[i].text, strlen(bad[i].text), 0, bad[i].words);
    refused("0,0,0,8\n", 8, 8, ":1: expert 8: there are 0 to 7");
    refused("0,0,0,1\n\x7f"
            "ELF\0\1",
            14, 0, ":2: byte 0x7f at column 1");
    refused("0,0,0,\0001\n", 9, 0, ":1: byte 0x00 at column 7");
}

static void a_line_without_end_is_refused(void **state)
{
    (void)state;
    static char digits[100000];
    memset(digits, '1', sizeof digits);
    refused(digits, sizeof digits, 0, ":1: a line of more than");
}

static void a_cut_off_compressed_file_is_refused(void **state)
{
    (void)state;
    struct routing_shape shape = {1, 50, 2, 32, 4, 7};
    struct routing r;
    static uint8_t bytes[1 << 16];
    assert_int_equal(routing_make(&shape, &r), 0);
    gzFile f = gzopen(path, "wb");
    for (size_t i = 0; i < r.lines; i++)
        gzprintf(f, "%u,%u,%u,%u\n", r.sequence[i], r.token[i], r.layer[i], r.expert[4 * i]);
    assert_int_equal(gzclose(f), Z_OK);
    routing_free(&r);
    FILE *whole = fopen(path, "r");
    size_t n = fread(bytes, 1, sizeof bytes, whole);
    fclose(whole);
    refused(bytes, n / 2, 0, "the compressed file ends too early");
    refused(bytes, n - 3, 0, "the compressed file ends too early");
    bytes[n / 2] ^= 0x55;
    bytes[n / 2 + 1] ^= 0x55;
    refused(bytes, n, 0, "");
}

static void what_cannot_be_opened_is_named(void **state)
{
    (void)state;
    struct routing r;
    char error[256];
    assert_int_equal(routing_read("/nowhere/routing.csv", 0, &r, error, sizeof error), -ENOENT);
    assert_string_equal(error, "/nowhere/routing.csv: cannot open it: No such file or directory");
    assert_int_equal(routing_read("/tmp", 0, &r, error, sizeof error), -EISDIR);
    assert_string_equal(error, "/tmp: cannot read it: Is a directory");
    if (geteuid() == 0)
        return; /* root may read everything */
    file_write(path, good, sizeof good - 1);
    chmod(path, 0);
    assert_int_equal(routing_read(path, 0, &r, error, sizeof error), -EACCES);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void a_made_up_routing_is_as_skewed_as_a_real_one(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct routing_shape shape = {8, 511, 24, 32, 4, seed};
        struct routing r;
        double skew[8 * 24];
        int n = 0;
        assert_int_equal(routing_make(&shape, &r), 0);
        assert_int_equal(r.lines, 8 * 511 * 24);
        for (uint32_t q = 0; q < 8; q++) {
            for (uint32_t l = 0; l < 24; l++) {
                double ranks = routing_skew(&r, q, l, 8);
                skew[n] = routing_skew(&r, q, l, 32);
                assert_true(skew[n] >= 2.07 && skew[n] <= 4.51);
                assert_true(ranks >= 1.18 && ranks <= 1.90);
                n++;
            }
        }
        qsort(skew, (size_t)n, sizeof *skew, compare);
        /* Of 192 draws: the median within what chance allows, the ends nearly reached. */
        assert_true(skew[n / 2] > 2.83 - 0.25 && skew[n / 2] < 2.83 + 0.25);
        assert_true(skew[0] < 2.15 && skew[n - 1] > 4.2);
        routing_free(&r);
    }
}

static void no_token_chooses_an_expert_twice(void **state)
{
    (void)state;
    static const struct routing_shape shapes[] = {
        {2, 100, 3, 32, 4, 1}, {1, 1, 1, 1, 1, 1},    {1, 7, 2, 4, 4, 2},
        {3, 64, 1, 8, 6, 3},   {1, 1000, 1, 3, 1, 4}, {2, 5, 2, 256, 8, 5},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct routing r;
        assert_int_equal(routing_make(&shapes[i], &r), 0);
        for (size_t l = 0; l < r.lines; l++) {
            const uint16_t *e = r.expert + l * r.top;
            for (uint32_t a = 0; a < r.top; a++) {
                assert_true(e[a] < r.experts);
                for (uint32_t b = 0; b < a; b++)
                    assert_int_not_equal(e[a], e[b]);
            }
        }
        routing_free(&r);
    }
    struct routing r;
    static const struct routing_shape none = {1, 1, 1, 2, 3, 1};
    assert_int_equal(routing_make(&none, &r), -EINVAL);
}

static void the_same_seed_makes_the_same_and_it_reads_back(void **state)
{
    (void)state;
    struct routing_shape shape = {2, 30, 4, 16, 2, 42};
    struct routing a, b;
    char error[256];
    assert_int_equal(routing_make(&shape, &a), 0);
    FILE *f = fopen(path, "w");
    assert_int_equal(routing_write(&a, &shape, f), 0);
    fclose(f);
    assert_int_equal(routing_read(path, 0, &b, error, sizeof error), 0);
    assert_int_equal(b.lines, a.lines);
    assert_int_equal(b.experts, 16);
    assert_memory_equal(a.expert, b.expert, a.lines * a.top * sizeof *a.expert);
    assert_memory_equal(a.sequence, b.sequence, a.lines * sizeof *a.sequence);
    assert_memory_equal(a.layer, b.layer, a.lines * sizeof *a.layer);
    routing_free(&b);
    assert_int_equal(routing_make(&shape, &b), 0);
    assert_memory_equal(a.expert, b.expert, a.lines * a.top * sizeof *a.expert);
    routing_free(&b);
    shape.seed = 43;
    assert_int_equal(routing_make(&shape, &b), 0);
    assert_memory_not_equal(a.expert, b.expert, a.lines * a.top * sizeof *a.expert);
    routing_free(&a);
    routing_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_and_compressed_files_are_read),
        cmocka_unit_test(the_number_of_experts_can_be_told),
        cmocka_unit_test(what_is_no_routing_is_refused),
        cmocka_unit_test(a_line_without_end_is_refused),
        cmocka_unit_test(a_cut_off_compressed_file_is_refused),
        cmocka_unit_test(what_cannot_be_opened_is_named),
        cmocka_unit_test(a_made_up_routing_is_as_skewed_as_a_real_one),
        cmocka_unit_test(no_token_chooses_an_expert_twice),
        cmocka_unit_test(the_same_seed_makes_the_same_and_it_reads_back),
    };
    return cmocka_run_group_tests(tests, make_path, file_remove);
}
