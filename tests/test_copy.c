/* SPDX-License-Identifier: MIT */
/* Copying by words: every length and alignment around a step of it, beside and over each other. */
#include "transport/copy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

enum { MOST = 150, ROOM = 400, SHIFTS = 9 };

static void fill(unsigned char *memory)
{
    for (int i = 0; i < ROOM; i++)
        memory[i] = (unsigned char)(i * 7 + 3);
}

/* From one place to another of the same memory, against memmove. */
static void check(size_t to, size_t from, size_t bytes)
{
    unsigned char memory[ROOM], expected[ROOM];
    fill(memory);
    fill(expected);
    memmove(expected + to, expected + from, bytes);
    assert_ptr_equal(copy_by_words(memory + to, memory + from, bytes), memory + to);
    assert_memory_equal(memory, expected, ROOM);
}

static void test_apart(void **state)
{
    (void)state;
    for (size_t bytes = 0; bytes <= MOST; bytes++)
        for (size_t shift = 0; shift < SHIFTS; shift++) {
            check(200 + shift, 16, bytes);
            check(16, 200 + shift, bytes);
        }
}

static void test_overlapping(void **state)
{
    (void)state;
    for (size_t bytes = 1; bytes <= MOST; bytes++)
        for (size_t apart = 0; apart <= bytes; apart += 1 + apart / 8) {
            check(32 + apart, 32, bytes);
            check(32, 32 + apart, bytes);
        }
}

static void test_choice(void **state)
{
    (void)state;
    struct sstar_world world = {.emulated = true};
    assert_ptr_equal(copy_best(&world), copy_by_words);
    world.emulated = false;
    assert_ptr_equal(copy_best(&world), memmove);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_apart),
        cmocka_unit_test(test_overlapping),
        cmocka_unit_test(test_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
