/* SPDX-License-Identifier: MIT */
#include "tests/files.h"
#include "tests/ranks.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

int file_make(void **state)
{
    char *path = strdup("/tmp/sstar-test-file-XXXXXX");
    int fd = path ? mkstemp(path) : -1;
    if (fd < 0) {
        free(path);
        return -1;
    }
    close(fd);
    *state = path;
    return 0;
}

int file_remove(void **state)
{
    int err = unlink(*state);
    free(*state);
    return err;
}

void file_write(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

void file_refused(file_read *read, const char *path, const char *text, const char *words)
{
    char error[512] = "";
    file_write(path, text, strlen(text));
    assert_int_equal(read(path, error, sizeof error), -EINVAL);
    if (strncmp(error, path, strlen(path)) != 0 || !strstr(error, words))
        fail_msg("'%s' does not say '%s'", error, words);
}

/* What a hand, a tool or a bad disk puts into a file of numbers. */
static char a_byte(uint64_t *seed)
{
    static const char likely[] = "0123456789-+.,eE \t\n\r#%nainfx";
    uint64_t r = random_next(seed) >> 33;
    return r % 8 ? likely[r / 8 % (sizeof likely - 1)] : (char)(r / 8);
}

size_t file_damage(const char *text, size_t bytes, char *damaged, uint64_t *seed)
{
    size_t n = bytes;
    memcpy(damaged, text, bytes);
    for (uint64_t times = 1 + (random_next(seed) >> 60) % 4; times && n; times--) {
        size_t at = (size_t)(random_next(seed) >> 20) % n;
        size_t stretch = 1 + (size_t)(random_next(seed) >> 20) % (n - at);
        switch ((random_next(seed) >> 40) % 8) {
        case 0:
            n = at; /* cut off */
            break;
        case 1:
            memmove(damaged + at, damaged + at + 1, n - at - 1);
            n--;
            break;
        case 2:
            if (n + stretch > 2 * bytes)
                break;
            memmove(damaged + at + stretch, damaged + at, n - at);
            n += stretch;
            break;
        default:
            damaged[at] = a_byte(seed);
        }
    }
    return n;
}
