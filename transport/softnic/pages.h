/* SPDX-License-Identifier: MIT */
/* What the files of shared pages have of each other. */
#ifndef SOFTNIC_PAGES_H
#define SOFTNIC_PAGES_H

#include "transport/softnic/nic.h"

enum { PAGE_BYTES = 4096 };
#define PAGES_NAME "softnic-pages" /* of the memfd, by which a mapping of ours is known */
#define PAGES_PATH "/memfd:" PAGES_NAME " (deleted)"

/* Private pages of the same content in place of [at, at + bytes). 0 or an errno. */
int pages_to_private(void *at, size_t bytes);

/* pages_check.c: all of [start, end) is private memory like any other, and no stack; is mapped from
 * a memfd of ours; nobody runs but the caller. */
bool pages_plain(uint64_t start, uint64_t end);
bool pages_made_here(uint64_t start, uint64_t end);
bool pages_single_thread(void);

/* pages_fork.c: none forks between the two. */
void pages_lock(void);
void pages_unlock(void);
/* Between the two: a child of a fork will find what it needs to have pages of its own. */
bool pages_may_fork(void);

#endif
