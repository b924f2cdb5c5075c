/* SPDX-License-Identifier: MIT */
/*
 * Misuse of verbs, found: a decorator of the verbs seam that looks at what is asked of a device
 * before the device does, and says what is wrong with it in a sentence. It works on every device.
 *
 * Refused with EINVAL: posting to a queue pair that is not ready for it; a segment beyond its
 * region, or that its region does not grant; a send queue that nothing would ever free, since none
 * of its requests asks for a completion; an object that was destroyed before. Said, and let
 * through: a buffer that is sent from while an RDMA READ or an atomic operation fills it, with no
 * fence between them; more completions under way than their queue holds; what is left when the
 * device is closed. Receives may share a buffer, with each other and with sends: when they are
 * filled is between the program and its peer.
 *
 * ibv_wr_* are seen only where a decorator above this one makes lists for ibv_post_send of them
 * (faults.h does).
 */
#ifndef SSTAR_DECORATORS_CHECK_H
#define SSTAR_DECORATORS_CHECK_H

#include "transport/verbs.h"

struct check_attr {
    const struct verbs *inner; /* the table that `context` was opened through */
    /* Hears each finding, in a line without its end. Any thread. */
    void (*say)(void *arg, const char *line);
    void *arg;
    /* What is left when the device is closed is said, but is no finding: the process's end frees
     * it, and benchmarks rely on that. */
    bool leftovers_pass;
};

/* From now on the context is looked at: it and all that is made from it are used through
 * check_table, or the inline calls of <infiniband/verbs.h>. Right after opening. 0 or an errno. */
int check_attach(struct ibv_context *context, const struct check_attr *attr);
/* NULL: it is not looked at. Valid until the context is closed through it. */
const struct verbs *check_table(const struct ibv_context *context);
/* Whether the object was destroyed while it was looked at, and nothing was made in its place. Its
 * memory is not touched. */
bool check_is_gone(const void *object);
/* A sentence about that, counted as a finding. EINVAL. */
int check_gone(const void *object, const char *call);
/* Of all contexts of the process, so far. */
unsigned check_findings(void);

#endif
