/* SPDX-License-Identifier: MIT */
/* What the checking decorator says, and which objects were destroyed. */
#include "transport/decorators/check_private.h"
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

/* An object that was destroyed has no context by which to find what is known of it: this is
 * the process's. The oldest are forgotten. */
enum { GONE_MAX = 4096 };
static pthread_mutex_t gone_lock = PTHREAD_MUTEX_INITIALIZER;
static const void *gone[GONE_MAX];
static unsigned next_gone;
static _Atomic unsigned findings;

void check_mark_gone(const void *object, bool is_gone)
{
    pthread_mutex_lock(&gone_lock);
    for (unsigned i = 0; i < GONE_MAX && !is_gone; i++)
        if (gone[i] == object)
            gone[i] = NULL;
    if (is_gone)
        gone[next_gone++ % GONE_MAX] = object;
    pthread_mutex_unlock(&gone_lock);
}

bool check_is_gone(const void *object)
{
    bool found = false;
    pthread_mutex_lock(&gone_lock);
    for (unsigned i = 0; i < GONE_MAX && !found && next_gone > 0; i++)
        found = gone[i] == object && object;
    pthread_mutex_unlock(&gone_lock);
    return found;
}

int check_gone(const void *object, const char *call)
{
    atomic_fetch_add(&findings, 1);
    fprintf(stderr, "misuse of verbs: %s: %p was destroyed before\n", call, object);
    return EINVAL;
}

unsigned check_findings(void)
{
    return atomic_load(&findings);
}

static void say(struct check *c, const char *format, va_list arguments)
{
    char line[512];
    int n = snprintf(line, sizeof line,
                     "misuse of verbs on %s: ", c->inner->get_device_name(c->context->device));
    vsnprintf(line + n, sizeof line - (size_t)n, format, arguments);
    c->say(c->arg, line);
}

void check_found(struct check *c, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(c, format, arguments);
    va_end(arguments);
    atomic_fetch_add(&findings, 1);
}

void check_say(struct check *c, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(c, format, arguments);
    va_end(arguments);
}
