/* SPDX-License-Identifier: MIT */
/* Matrix Market files: what is read, what is refused and in which words, and that no damage to a
 * good one makes the reader stumble. */
#include "tests/files.h"
#include "tests/ranks.h"
#include "tools/matrix.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include <cmocka.h>

#define HEAD "%%MatrixMarket matrix coordinate "

static void reads(const char *path, const char *text, const struct matrix_entry *due, size_t n)
{
    struct matrix m;
    char error[256];
    file_write(path, text, strlen(text));
    if (matrix_read(path, &m, error, sizeof error))
        fail_msg("%s", error);
    assert_int_equal(m.n, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(m.entries[i].row, due[i].row);
        assert_int_equal(m.entries[i].column, due[i].column);
        assert_true(m.entries[i].value == due[i].value);
    }
    matrix_free(&m);
}

static void entries_come_in_order_and_symmetry_is_filled_in(void **state)
{
    static const struct matrix_entry general[] = {{0, 2, -2.5}, {1, 0, 4000}};
    static const struct matrix_entry symmetric[] = {{0, 0, 1}, {0, 1, 1}, {1, 0, 1}};
    static const struct matrix_entry skew[] = {{0, 1, 7}, {1, 0, -7}};
    reads(*state, HEAD "real general\n% a comment\n\n2 3 2\n2 1 4e3\n 1\t3  -2.5\r\n", general, 2);
    reads(*state, HEAD "pattern symmetric\n2 2 2\n2 1\n1 1", symmetric, 3);
    reads(*state, "%%matrixmarket MATRIX Coordinate INTEGER Skew-Symmetric\n2 2 1\n2 1 -7\n", skew,
          2);
    reads(*state, HEAD "real general\n5 5 0\n", NULL, 0);
}

static void what_stands_there_twice_is_summed(void **state)
{
    static const struct matrix_entry due[] = {{0, 0, 3}, {1, 1, 4}};
    const char *path = *state;
    struct matrix m;
    char error[256];
    reads(path, HEAD "real general\n2 2 3\n1 1 1\n2 2 4\n1 1 2\n", due, 2);
    assert_int_equal(matrix_read(path, &m, error, sizeof error), 0);
    assert_int_equal(m.repeated, 1);
    matrix_free(&m);
}

static void compressed_files_are_read(void **state)
{
    const char *path = *state;
    struct matrix m;
    char error[256];
    gzFile f = gzopen(path, "wb");
    gzputs(f, HEAD "real general\n2 2 1\n1 1 1\n");
    assert_int_equal(gzclose(f), Z_OK);
    assert_int_equal(matrix_read(path, &m, error, sizeof error), 0);
    assert_int_equal(m.n, 1);
    matrix_free(&m);
}

static int read_nothing(const char *path, char *error, size_t error_size)
{
    struct matrix m = {.rows = 99};
    int err = matrix_read(path, &m, error, error_size);
    assert_int_equal(m.rows, 99); /* outputs only on success */
    return err;
}

static void what_is_no_matrix_is_refused(void **state)
{
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "'': read are '%%MatrixMarket matrix coordinate"},
        {"1 1 1\n", ":1: '1': read are"},
        {"%%MatrixMarket vector coordinate real general\n", ":1: 'vector': read are"},
        {"%%MatrixMarket matrix array real general\n", ":1: 'array': read are"},
        {HEAD "complex general\n", ":1: 'complex': read are"},
        {HEAD "real hermitian\n", ":1: 'hermitian': read are"},
        {HEAD "pattern skew-symmetric\n", ":1: 'skew-symmetric': read are"},
        {HEAD "real general x\n", ":1: the first line has more than five words"},
        {HEAD "real general\n% only\n", "it has no line with rows, columns and entries"},
        {HEAD "real general\n2 2\n", ":2: the number of entries is missing"},
        {HEAD "real general\n0 2 1\n", ":2: the number of rows is '0'"},
        {HEAD "real general\n2 2147483648 1\n", ":2: the number of columns is '2147483648'"},
        {HEAD "real general\n2 2 -1\n", ":2: the number of entries is '-1'"},
        {HEAD "real general\n2 2 1 1\n", ":2: more than rows, columns and entries"},
        {HEAD "real symmetric\n2 3 1\n", ":2: a symmetric matrix has as many rows as columns"},
        {HEAD "real general\n2 2 1\n0 1 1\n",
         ":3: the row is '0'; it is a whole number from 1 to 2"},
        {HEAD "real general\n2 2 1\n1 3 1\n", ":3: the column is '3'"},
        {HEAD "real general\n2 2 1\n1.0 1 1\n", ":3: the row is '1.0'"},
        {HEAD "real general\n2 2 1\n1\n", ":3: the column is missing"},
        {HEAD "real general\n2 2 1\n1 1\n", ":3: the value is missing"},
        {HEAD "real general\n2 2 1\n1 1 nan\n", ":3: the value 'nan' is no number"},
        {HEAD "real general\n2 2 1\n1 1 1e999\n", ":3: the value '1e999' is no number"},
        {HEAD "integer general\n2 2 1\n1 1 1.5\n", ":3: the value '1.5' is no whole number"},
        {HEAD "real general\n2 2 1\n1 1 1 1\n", ":3: '1' is more than an entry has"},
        {HEAD "pattern general\n2 2 1\n1 1 1\n", ":3: '1' is more than an entry has"},
        {HEAD "real symmetric\n2 2 1\n1 2 1\n", ":3: row 1, column 2: of a symmetric matrix only"},
        {HEAD "real skew-symmetric\n2 2 1\n1 1 1\n", ":3: row 1, column 1: of a skew-symmetric"},
        {HEAD "real general\n2 2 1\n1 1 1\n1 2 1\n", ":4: an entry more than the 1"},
        {HEAD "real general\n2 2 2\n1 1 1\n", "1 entries, but the size line says 2"},
        {HEAD "real general\n2 2 1\n1 1 1\1\n", ":3: byte 0x01 at column 6"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        file_refused(read_nothing, *state, bad[i].text, bad[i].words);
}

static void damage_is_refused_or_harmless(void **state)
{
    static const char good[] = HEAD "real symmetric\n% comment\n4 4 5\n1 1 2.5\n2 1 -1e-3\n"
                                    "3 3 4\n4 2 .5\n4 4 1E+2\n";
    const char *path = *state;
    uint64_t seed = 20261130;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 3000; i++) {
        char text[2 * sizeof good], error[512] = "";
        size_t n = file_damage(good, sizeof good - 1, text, &seed);
        struct matrix m = {0};
        file_write(path, text, n);
        int err = matrix_read(path, &m, error, sizeof error);
        assert_true(err == 0 || (err == -EINVAL && *error));
        for (size_t e = 0; e < m.n; e++)
            assert_true(m.entries[e].row < m.rows && m.entries[e].column < m.columns);
        matrix_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_come_in_order_and_symmetry_is_filled_in),
        cmocka_unit_test(what_stands_there_twice_is_summed),
        cmocka_unit_test(compressed_files_are_read),
        cmocka_unit_test(what_is_no_matrix_is_refused),
        cmocka_unit_test(damage_is_refused_or_harmless),
    };
    return cmocka_run_group_tests(tests, file_make, file_remove);
}
