/* SPDX-License-Identifier: MIT */
/* Offered load of `sstar alltoall`: where messages go by chance and when they are due; traces. */
#include "tools/alltoall.h"
#include "tools/alltoall_check.h"
#include "tools/random.h"
#include "tools/text_file.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TRACE_FIELDS = 4, TRACE_BYTES_MOST = 16 << 20 };

const char *const alltoall_pattern_names[PATTERNS] = {"uniform", "skewed", "to-one", "others"};

static double unit(uint64_t *state)
{
    return (double)(next_random(state) >> 11) * 0x1p-53;
}

static int destination(enum alltoall_pattern pattern, int rank, int ranks, uint64_t *state)
{
    if (pattern == PATTERN_TO_ONE)
        return ranks - 1;
    if (pattern == PATTERN_UNIFORM)
        return (int)((next_random(state) >> 32) * (uint64_t)ranks >> 32);
    if (pattern == PATTERN_OTHERS && ranks > 1) {
        int other = (int)((next_random(state) >> 32) * ((uint64_t)ranks - 1) >> 32);
        return other >= rank ? other + 1 : other;
    }
    double sum = 0, at;
    for (int r = 0; r < ranks; r++)
        sum += 1.0 / (r + 1);
    at = unit(state) * sum;
    for (int r = 0; r < ranks - 1; r++)
        if ((at -= 1.0 / (r + 1)) < 0)
            return r;
    return ranks - 1;
}

void load_by_chance(const struct alltoall_arguments *a, int rank, struct plan *plan)
{
    uint64_t state = a->common.seed * 1000003 + (uint64_t)rank;
    for (size_t i = 0; i < plan->begin[1]; i++)
        plan->to[i] = (uint16_t)destination(a->pattern, rank, plan->ranks, &state);
}

int load_offer(const struct alltoall_arguments *a, int rank, struct plan *plan)
{
    size_t n = plan->begin[plan->layers];
    uint64_t state = a->common.seed * 7000003 + (uint64_t)rank;
    double at_ns = 0, gap_ns = 1e9 / a->rate;
    plan->pause_seconds = (a->burst ? a->burst : 1) / a->rate;
    if (!(plan->due_ns = calloc(n + 1, sizeof *plan->due_ns)))
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        plan->due_ns[i] = (uint64_t)at_ns;
        if (a->poisson)
            at_ns -= log(1 - unit(&state)) * gap_ns;
        else if (a->burst == 0 || (i + 1) % a->burst == 0)
            at_ns += gap_ns * (a->burst ? a->burst : 1);
    }
    return 0;
}

/* ---- traces -------------------------------------------------------------------------------------
 */

struct trace_line {
    double time_us;
    long source, destination, bytes;
};

static int whole(const struct text_file *f, const char *what, const char *text, long low, long high,
                 long *value)
{
    if (!parse_whole(text, low, high, value))
        return 0;
    return text_refuse(f, -EINVAL, "%s is '%.40s'; it is a whole number from %ld to %ld", what,
                       text, low, high);
}

static int parse_line(const struct text_file *f, int ranks, struct trace_line *line)
{
    char *field[TRACE_FIELDS];
    if (text_check_end(f))
        return -EINVAL;
    if (text_fields(f->text, field, TRACE_FIELDS) != TRACE_FIELDS)
        return text_refuse(f, -EINVAL, "a line is time_us,source,destination,bytes");
    if (parse_real(field[0], 0, 1e12, &line->time_us))
        return text_refuse(f, -EINVAL, "time_us is '%.40s'; it is microseconds from 0 to 1e12",
                           field[0]);
    int err = whole(f, "source", field[1], 0, ranks - 1, &line->source);
    if (!err)
        err = whole(f, "destination", field[2], 0, ranks - 1, &line->destination);
    /* With room for what the check needs. */
    return err ? err
               : whole(f, "bytes", field[3], CHECK_BYTES_LEAST, TRACE_BYTES_MOST, &line->bytes);
}

/* Room for twice as many. */
static int grow(struct plan *plan, size_t *room)
{
    size_t more = *room ? 2 * *room : 1024;
    uint16_t *to = realloc(plan->to, more * sizeof *to);
    plan->to = to ? to : plan->to;
    uint64_t *due = realloc(plan->due_ns, more * sizeof *due);
    plan->due_ns = due ? due : plan->due_ns;
    uint32_t *bytes = realloc(plan->bytes, more * sizeof *bytes);
    plan->bytes = bytes ? bytes : plan->bytes;
    *room = more;
    return to && due && bytes ? 0 : -ENOMEM;
}

static int take_line(const struct trace_line *line, int rank, struct plan *plan, size_t *room)
{
    size_t i = plan->begin[1];
    if ((uint32_t)line->bytes > plan->most_bytes)
        plan->most_bytes = (uint32_t)line->bytes;
    if (line->source != rank)
        return 0;
    int err = i == *room ? grow(plan, room) : 0;
    if (err)
        return err;
    plan->to[i] = (uint16_t)line->destination;
    plan->due_ns[i] = (uint64_t)(line->time_us * 1e3);
    plan->bytes[i] = (uint32_t)line->bytes;
    plan->begin[1]++;
    return 0;
}

int load_trace(const struct alltoall_arguments *a, int rank, struct plan *plan, char *error,
               size_t error_size)
{
    struct text_file f;
    size_t room = 0;
    double before_us = 0;
    plan->layers = 1;
    if (!(plan->begin = calloc(2, sizeof *plan->begin)) || grow(plan, &room))
        return -ENOMEM;
    int got, err = text_open(&f, a->trace, "trace", error, error_size);
    while (!err && (got = text_next(&f)) != 0) {
        struct trace_line line;
        if (got < 0)
            err = got;
        else if (f.bytes == 0 || f.text[0] == '#' || (f.line == 1 && f.text[0] == 't'))
            continue; /* comments, and the names of the columns */
        else if (!(err = parse_line(&f, plan->ranks, &line)) && line.time_us < before_us)
            err = text_refuse(&f, -EINVAL, "time %g us after %g us; a trace is sorted by time",
                              line.time_us, before_us);
        else if (!err) {
            plan->pause_seconds = fmax(plan->pause_seconds, (line.time_us - before_us) * 1e-6);
            before_us = line.time_us;
            err = take_line(&line, rank, plan, &room);
        }
    }
    if (!err && plan->most_bytes == 0)
        err = text_refuse(&f, -EINVAL, "it holds no message");
    text_close(&f);
    return err;
}
