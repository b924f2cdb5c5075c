/* SPDX-License-Identifier: MIT */
/*
 * Faults on demand: a decorator of the verbs seam that lets a device misbehave as a plan says, and
 * not otherwise. It works on every device, since it needs nothing from it but verbs.
 *
 * A work request that is to be lost, delayed or failed is copied and held back here, and what
 * follows on its queue pair waits behind it, as on a reliable connection. When its time has come it
 * is posted; where its retries are used up the queue pair goes to ERR first, and the flushed
 * completion is shown with the status that the plan means.
 *
 * The plan's text is described in sstar-faults(5). What it decides depends on its seed, the rank
 * and counts per queue pair (or per context, for calls), never on addresses, and on time only where
 * the plan names one.
 */
#ifndef SSTAR_DECORATORS_FAULTS_H
#define SSTAR_DECORATORS_FAULTS_H

#include "transport/verbs.h"
#include <stdbool.h>
#include <stddef.h>

struct fault_plan;

/* Parse a plan, or with "@FILE" the contents of that file. `default_seed` holds where the plan
 * names none. 0, or -EINVAL (or what opening the file said) with a sentence that points at the
 * place. */
int fault_plan_parse(const char *text, uint64_t default_seed, struct fault_plan **plan, char *error,
                     size_t error_size);
void fault_plan_free(struct fault_plan *plan); /* accepts NULL */
uint64_t fault_plan_seed(const struct fault_plan *plan);

struct faults_attr {
    const struct verbs *inner;     /* the table that `context` was opened through */
    const struct fault_plan *plan; /* copied */
    int rank;                      /* for rank=; -1: none */
    const char *port;              /* for port=; NULL: the device's name */
    /* Hears each fault that strikes, in a line without its end. NULL: nobody. Any thread. */
    void (*say)(void *arg, const char *line);
    void *arg;
};

/* From now on the context misbehaves: it and all that is made from it are used through
 * verbs_faults, or the inline calls of <infiniband/verbs.h>. Right after opening. 0 or an errno.
 * Closing it through verbs_faults ends that. */
int faults_attach(struct ibv_context *context, const struct faults_attr *attr);
/* Has it a plan? */
bool faults_attached(const struct ibv_context *context);

/* Listing and opening are the inner table's. */
extern const struct verbs verbs_faults;

#endif
