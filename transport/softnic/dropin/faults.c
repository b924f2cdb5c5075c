/* SPDX-License-Identifier: MIT */
/* SOFTNIC_FAULTS: a plan by which the ports of the program misbehave (sstar-faults(5)). */
#include "transport/softnic/dropin/dropin.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static int attach(struct ibv_context *context, const char *text)
{
    struct fault_plan *plan;
    char error[256];
    int err = fault_plan_parse(text, 1, &plan, error, sizeof error);
    if (err != 0) {
        fprintf(stderr, "softnic: SOFTNIC_FAULTS: %s\n", error);
        return -err;
    }
    struct faults_attr attr = {.inner = &verbs_softnic, .plan = plan, .rank = rank(), .say = say};
    err = faults_attach(context, &attr);
    if (err == 0)
        fprintf(stderr, "softnic: %s misbehaves as SOFTNIC_FAULTS says, seed %llu replays it\n",
                context->device->name, (unsigned long long)fault_plan_seed(plan));
    fault_plan_free(plan);
    return err;
}

struct ibv_context *dropin_put_faults_on(struct ibv_context *context)
{
    const char *text = getenv("SOFTNIC_FAULTS");
    int err = text != NULL && *text != '\0' ? attach(context, text) : 0;
    if (err == 0)
        return context;
    softnic_close_device(context);
    errno = err;
    return NULL;
}
