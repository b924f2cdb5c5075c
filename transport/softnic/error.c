/* SPDX-License-Identifier: MIT */
/* The sentence about the last failure. */
#include "transport/softnic/nic.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void keep(struct ctx *ctx, const char *format, va_list args)
{
    char text[sizeof ctx->error];
    vsnprintf(text, sizeof text, format, args);
    spin_lock(&ctx->error_lock);
    memcpy(ctx->error, text, sizeof text);
    spin_unlock(&ctx->error_lock);
}

void nic_error(struct ctx *ctx, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    keep(ctx, format, args);
    va_end(args);
}

/* As nic_error, and on stderr, once for one sentence. */
void nic_say(struct ctx *ctx, const char *format, ...)
{
    char before[sizeof ctx->error];
    spin_lock(&ctx->error_lock);
    memcpy(before, ctx->error, sizeof before);
    spin_unlock(&ctx->error_lock);
    va_list args;
    va_start(args, format);
    keep(ctx, format, args);
    va_end(args);
    if (strcmp(before, ctx->error) != 0)
        fprintf(stderr, "softnic: %s\n", ctx->error);
}

const char *softnic_last_error(struct ibv_context *context)
{
    return to_ctx(context)->error;
}
