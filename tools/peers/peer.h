/* SPDX-License-Identifier: MIT */
/*
 * What tools/compare measures: one method (method.c) for every library, and what each library does
 * for it (peer_sstar.c, peer_mpi.c). A program reads commands on the standard input of rank 0 and
 * answers each with a line, so that several can be kept open and measured in turn.
 *
 *     OPERATION BYTES BUDGET_MS [in-place] [rotate] [shared] [trust]
 *         OPERATION: allreduce (float32, sum), alltoall (BYTES for each pair), barrier.
 *         rotate: other memory each time, so that it comes from beyond the caches. shared: memory
 * of the library's own. trust: the result was checked before. Answer: "= MEDIAN_US ITERATIONS", or
 * "! WHY". line                 "= NS": a cache line from one core to another stream BYTES "=
 * GBPS": two threads copy, past the caches; reads and writes counted quit
 *
 * The time of an iteration is that of the slowest rank, each on its own clock, after a barrier that
 * is not timed; the median counts. Each rank may be kept to a core (--pin: rank modulo cores).
 */
#ifndef SSTAR_TOOLS_PEERS_PEER_H
#define SSTAR_TOOLS_PEERS_PEER_H

#include <stdbool.h>
#include <stddef.h>

enum { PEER_COMMAND_BYTES = 128 };

/* All end the program with a sentence if they fail; all but peer_open are collective where the
 * library's own call is. */
void peer_open(int *argc, char ***argv);
void peer_close(void);
int peer_rank(void);
int peer_size(void);
/* Rank 0's command to all. Ranks that wait for it leave their cores to others. */
void peer_tell(char command[PEER_COMMAND_BYTES]);
void peer_barrier(void);
/* Of `count` float32; send == recv: in place. */
void peer_allreduce(const void *send, void *recv, size_t count);
void peer_alltoall(const void *send, void *recv, size_t bytes);
/* Before an alltoall that is timed: what must have been done since the one before. */
void peer_alltoall_prepare(size_t bytes);
/* Each of n values becomes the greatest of all ranks, on rank 0 at least. */
void peer_greatest(double *values, int n);
/* Of the library, reached by other ranks without a copy; NULL if it has no such memory. */
void *peer_alloc(size_t bytes);
void peer_free(void *memory);

/* machine.c: what the machine is like just now. */
double machine_line_ns(void);
double machine_stream_gbps(size_t bytes);

#endif
