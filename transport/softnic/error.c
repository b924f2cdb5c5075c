/* SPDX-License-Identifier: MIT */
/* The sentence about the last failure. */
#include "transport/softnic/nic.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Keep the sentence. True: it is another one than the last. */
static bool keep(struct ctx *ctx, char *text, size_t size, const char *format, va_list args)
{
    enum { TRIES = 10000 };
    unsigned turn = 0;
    vsnprintf(text, size, format, args);
    /* In a child after fork the holder may be a thread that is not there: do not wait for ever. */
    while (!spin_trylock(&ctx->error_lock) && turn < TRIES)
        spin_wait(&turn);
    bool new = strcmp(ctx->error, text) != 0;
    if (new)
        memcpy(ctx->error, text, size);
    spin_unlock(&ctx->error_lock);
    return new;
}

void nic_error(struct ctx *ctx, const char *format, ...)
{
    char text[sizeof ctx->error] = "";
    va_list args;
    va_start(args, format);
    keep(ctx, text, sizeof text, format, args);
    va_end(args);
}

/* As nic_error, and on stderr, once for one sentence. */
void nic_say(struct ctx *ctx, const char *format, ...)
{
    char text[sizeof ctx->error] = "";
    va_list args;
    va_start(args, format);
    bool new = keep(ctx, text, sizeof text, format, args);
    va_end(args);
    if (new)
        fprintf(stderr, "softnic: %s\n", text);
}

const char *softnic_last_error(struct ibv_context *context)
{
    return to_ctx(context)->error;
}
