/* SPDX-License-Identifier: MIT */
/* SOFTNIC_FAULTS: a plan by which the ports of the program misbehave (sstar-faults(5)).
 * SOFTNIC_CHECK_VERBS: what the program does wrong is said. */
#include "transport/softnic/dropin/dropin.h"
#include "transport/softnic/environment.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The rank of the process, where a launcher has given it one. */
static int rank(void)
{
    static const char *const variables[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                            "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *text = getenv(variables[i]);
        if (text != NULL && *text != '\0')
            return atoi(text);
    }
    return 0;
}

static void say(void *arg, const char *line)
{
    (void)arg;
    fprintf(stderr, "softnic: %s\n", line);
}

/* A plan may strike every work request: the first ones are told. */
static void say_first(void *arg, const char *line)
{
    enum { TOLD = 20 };
    static atomic_uint struck;
    unsigned before = atomic_fetch_add_explicit(&struck, 1, memory_order_relaxed);
    if (before < TOLD)
        say(arg, line);
    else if (before == TOLD)
        fprintf(stderr, "softnic: more faults follow, which are not told\n");
}

static int attach(struct ibv_context *context, const char *text)
{
    struct fault_plan *plan;
    char error[256];
    int err = fault_plan_parse(text, 1, &plan, error, sizeof error);
    if (err != 0) {
        fprintf(stderr, "softnic: SOFTNIC_FAULTS: %s\n", error);
        return -err;
    }
    struct faults_attr attr = {
        .inner = table(context), .plan = plan, .rank = rank(), .say = say_first};
    err = faults_attach(context, &attr);
    if (err == 0)
        fprintf(stderr, "softnic: %s misbehaves as SOFTNIC_FAULTS says, seed %llu replays it\n",
                context->device->name, (unsigned long long)fault_plan_seed(plan));
    fault_plan_free(plan);
    return err;
}

/* Where misuse is looked for, ibv_wr_* must become lists: a plan that never strikes does that. */
static int attach_nothing(struct ibv_context *context)
{
    struct fault_plan *plan;
    char error[256];
    int err = fault_plan_parse("drop nth=1000000000000", 1, &plan, error, sizeof error);
    if (err != 0)
        return -err;
    struct faults_attr attr = {.inner = check_table(context), .plan = plan};
    err = faults_attach(context, &attr);
    fault_plan_free(plan);
    return err;
}

struct ibv_context *dropin_decorate(struct ibv_context *context)
{
    const char *text = nic_env_text("SOFTNIC_FAULTS");
    struct check_attr check = {.inner = &verbs_softnic, .say = say, .leftovers_pass = true};
    bool checking;
    int err = nic_env_flag("SOFTNIC_CHECK_VERBS", &checking);
    if (err != 0)
        fprintf(stderr, "softnic: SOFTNIC_CHECK_VERBS takes 0 or 1, not '%.80s'\n",
                nic_env_text("SOFTNIC_CHECK_VERBS"));
    if (err == 0 && checking)
        err = check_attach(context, &check);
    if (err == 0 && text != NULL)
        err = attach(context, text);
    else if (err == 0 && checking)
        err = attach_nothing(context);
    if (err == 0)
        return context;
    table(context)->close_device(context);
    errno = err;
    return NULL;
}

/* After all else that ends: the program did well otherwise, and shall not seem to. */
__attribute__((destructor(101))) static void end_with_findings(void)
{
    unsigned n = check_findings();
    if (n == 0)
        return;
    fprintf(stderr, "softnic: %u misuse%s of verbs, so this ends with status %d\n", n,
            n == 1 ? "" : "s", EXIT_FAILURE);
    fflush(NULL);
    _exit(EXIT_FAILURE);
}
