/* SPDX-License-Identifier: MIT */
/* What the files of `sstar moe` share. Private to tools/moe*.c. */
#ifndef SSTAR_TOOLS_MOE_H
#define SSTAR_TOOLS_MOE_H

#include "collectives/collectives.h"
#include "collectives/schedule.h"
#include "tools/routing.h"
#include "tools/tool.h"

struct moe_arguments {
    struct common_options common;
    bool strategies[SSTAR_STRATEGIES];
    const char *routing;
    uint32_t experts; /* 0: as the file says */
    uint32_t layers;  /* 0: all */
    uint32_t values;
    enum sstar_type token_type, result_type;
    uint32_t flush_bytes; /* 0: 4*S* */
    bool check;
};

/* The tokens of this rank in a layer. */
struct moe_batch {
    uint32_t n;
    uint32_t *experts; /* [n][top] */
    float *weights;
    uint8_t *tokens;
    float *out, *wanted; /* [n][values]; [values] */
    float *ramp;         /* what values are made of: [values + MOE_RAMP] */
    uint8_t *row;        /* one, of any type */
    float *share, *one;
};
enum { MOE_RAMP = 1021 };
/* What all ranks do in all layers. */
struct moe_work {
    const struct moe_arguments *arguments;
    struct routing routing;
    struct node_map map;
    int rank;
    uint32_t layers, most_tokens; /* of a rank in a layer */
    uint64_t *crossings; /* [layers][ranks][ranks]: source and landing rank of tokens that cross */
    uint64_t *copies;    /* [layers][ranks][ranks]: source and rank of an expert */
    uint64_t all_crossings, all_copies; /* across nodes */
    struct moe_batch batch;
};

/* moe_batch.c. 0 or a negative errno, with a sentence in `error` if it is the input's fault. */
int moe_work_open(struct moe_work *work, struct sstar_world *world, const struct moe_arguments *a,
                  char *error, size_t error_size);
void moe_work_close(struct moe_work *work);
void moe_batch_fill(struct moe_work *work, uint32_t layer);
/* What the experts make of their tokens. */
void moe_answer(struct moe_work *work, const struct sstar_moe_row *rows, size_t n);
/* Tokens of the batch whose sum is not, bit for bit, that of a plain computation. */
uint64_t moe_count_wrong(struct moe_work *work);

/* What a strategy did; sums over ranks, the same on all of them. */
struct moe_outcome {
    enum sstar_strategy strategy;
    uint32_t flush_bytes;
    double dispatch_seconds, combine_seconds, dispatch_predicted, combine_predicted;
    struct sstar_ledger dispatch, combine;
    uint64_t wrong, memory_bytes;  /* of the rank that has most */
    uint64_t copies_wire_bytes[2]; /* of messages of each token and expert, there and back */
};
/* moe_report.c: table and record, on rank 0. The exit status. */
int moe_report(struct sstar_world *world, const struct moe_work *work,
               const struct sstar_cost *cost, const struct moe_outcome *outcomes, int n);

#endif
