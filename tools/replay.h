/* SPDX-License-Identifier: MIT */
/*
 * sstar replay: a list of collectives that some program made, played again. The file
 * (replay_file.c), one all-to-all (replay_alltoall.c), the run (replay_run.c), what it says
 * (replay_report.c). Private to tools.
 *
 * A file, plain or gzip, begins with the line
 *
 *     rank,seq,coll,elem_bytes,bytes,in_splits_elems,out_splits_elems
 *
 * and has one line for each rank and collective; `seq` orders them. bytes are what the rank hands
 * in: of an all-to-all all its blocks, of allgather its block, of reducescatter the whole vector,
 * of broadcast and reduce (root 0) and allreduce the vector. The last two fields are for
 * all_to_allv: how many elements go to each rank and come from each, separated by spaces. # begins
 * a comment.
 */
#ifndef SSTAR_TOOLS_REPLAY_H
#define SSTAR_TOOLS_REPLAY_H

#include "collectives/collectives.h"
#include "tools/tool.h"
#include <jansson.h>

/* A kind is an enum sstar_operation, or one of these. */
enum { REPLAY_ALL_TO_ALL = SSTAR_OPERATIONS, REPLAY_ALL_TO_ALLV, REPLAY_KINDS };
const char *replay_kind_name(unsigned kind);
static inline bool replay_is_alltoall(unsigned kind)
{
    return kind >= REPLAY_ALL_TO_ALL;
}

struct replay_entry {
    long seq;
    unsigned kind;
    uint32_t element_bytes; /* 1, 2, 4 or 8 */
    uint64_t bytes;         /* of the rank that hands in most */
    uint64_t *blocks;       /* of an all-to-all: [ranks][ranks], bytes from and to; else NULL */
};
struct replay {
    int ranks;
    size_t n;
    struct replay_entry *entries; /* by seq */
};
/* 0, or a negative errno with a sentence (file, line) in `error`. */
int replay_read(const char *path, struct replay *out, char *error, size_t error_size);
void replay_free(struct replay *replay);

struct replay_arguments {
    struct common_options common;
    const char *path;
    bool strategies[SSTAR_STRATEGIES];
    uint32_t repeat, message_bytes;
    bool check;
};

/* What a strategy, or an algorithm, did with an entry; the same on all ranks. */
struct replay_outcome {
    double us, predicted_us; /* median of the rounds; 0: no price */
    uint64_t wrong;          /* elements, or bytes of an all-to-all, over all ranks */
    uint64_t wire_messages, cross_bytes, past_bytes; /* of an all-to-all: past S* */
};

/* One strategy, for all entries that are an all-to-all. */
struct replay_alltoall;
/* Collective. 0 or a negative errno. */
int replay_alltoall_open(struct sstar_world *world, const struct replay_arguments *arguments,
                         const struct replay *replay, const struct sstar_cost *cost,
                         enum sstar_strategy strategy, struct replay_alltoall **out);
void replay_alltoall_close(struct replay_alltoall *alltoall);
int replay_alltoall_play(struct replay_alltoall *alltoall, const struct replay_entry *entry,
                         struct replay_outcome *out);

/* Play all; rank 0 prints and writes. `arguments`: struct replay_arguments. */
int replay_run(struct sstar_world *world, void *arguments, int *status);

/* A row of the record; `by`: the strategy or algorithm. Then the sums, by kind and for the whole.
 */
json_t *replay_row(const struct replay_entry *entry, const char *by, const char *device_class,
                   const struct replay_outcome *outcome);
void replay_print_head(struct sstar_world *world, const struct replay_arguments *arguments,
                       const struct replay *replay, const struct sstar_cost *cost,
                       const char *device_class);
void replay_print_row(const json_t *row);
json_t *replay_sums(const json_t *rows);
void replay_print_sums(const json_t *sums);

#endif
