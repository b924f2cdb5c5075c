/* SPDX-License-Identifier: MIT */
/* Files for the tests of readers. */
#ifndef SSTAR_TESTS_FILES_H
#define SSTAR_TESTS_FILES_H

#include <stddef.h>
#include <stdint.h>

/* Fixtures of a group: *state is the path of a file of its own. */
int file_make(void **state);
int file_remove(void **state);
void file_write(const char *path, const void *data, size_t bytes);
/* A text written to `path` is refused with -EINVAL, by a sentence that begins with the path and has
 * these words. `read` calls the reader, which leaves what it would fill in as it is. */
typedef int file_read(const char *path, char *error, size_t error_size);
void file_refused(file_read *read, const char *path, const char *text, const char *words);
/* A copy of a text in which one to four bytes are changed, dropped, or a stretch of it doubled or
 * cut off; `damaged` has room for twice as many bytes. How many there are. */
size_t file_damage(const char *text, size_t bytes, char *damaged, uint64_t *seed);

#endif
