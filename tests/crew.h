/* SPDX-License-Identifier: MIT */
/* Ranks of which some are meant to fail: each reports on its own, and processes can be stopped. */
#ifndef SSTAR_TESTS_CREW_H
#define SSTAR_TESTS_CREW_H

#include "transport/transport.h"
#include <sys/types.h>

enum { CREW_MAX = 16 };

/* A rank's work: 0 if all was as it should be, else 1 .. 99, after saying why with crew_complain.
 */
typedef int (*crew_fn)(const struct sstar_config *config, void *arg);

/* A configuration for rank 0 of `size` ranks at a port of 127.0.0.1 that is free now, with a token
 * of its own and a timeout of 30 s. Does not look at the environment. */
void crew_config(struct sstar_config *config, int size);

/* Run all ranks of `config` as threads; results[rank] is what the function returned. */
void crew_threads(const struct sstar_config *config, crew_fn fn, void *arg, int *results);

/* The same as processes; results[rank] is the exit status, or 128 + the signal that ended it. What
 * hangs is ended by SIGALRM after 60 s. */
void crew_start(const struct sstar_config *config, crew_fn fn, void *arg, pid_t *pids);
void crew_join(const pid_t *pids, int size, int *results);
void crew_processes(const struct sstar_config *config, crew_fn fn, void *arg, int *results);

/* The same, and the test fails unless every rank's work returned 0. */
void crew_threads_pass(const struct sstar_config *config, crew_fn fn, void *arg);
void crew_processes_pass(const struct sstar_config *config, crew_fn fn, void *arg);

/* Print "rank R: text" to stderr and return 1. */
int crew_complain(int rank, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
