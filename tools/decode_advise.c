/* SPDX-License-Identifier: MIT */
/* What the rows of sstar decode say, in words: where the time goes and what would help. */
#include "tools/decode.h"
#include "tools/record.h"
#include <stdio.h>

static double real(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

static long long whole(const json_t *row, const char *key)
{
    return json_integer_value(json_object_get(row, key));
}

static double saved_percent(double before, double after)
{
    return 100 * (1 - after / before);
}

/* The row of this batch with the most bandwidth, and of this bandwidth with the largest batch. */
static const json_t *best(const json_t *rows, const json_t *of, const char *same, const char *most)
{
    const json_t *found = of, *row;
    size_t i;
    json_array_foreach(rows, i, row) if (real(row, same) == real(of, same) &&
                                         real(row, most) > real(found, most)) found = row;
    return found;
}

static void say_bandwidth(const json_t *rows, const json_t *row)
{
    const json_t *fast = best(rows, row, "batch", "beta_GBps");
    if (fast == row)
        return;
    printf("#   %.3g times the bandwidth saves %.1f %% of a token (the model says %.1f %%)\n",
           real(fast, "beta_GBps") / real(row, "beta_GBps"),
           saved_percent(real(row, "token_us"), real(fast, "token_us")),
           saved_percent(real(row, "predicted_us"), real(fast, "predicted_us")));
}

static void say_batch(const json_t *rows, const json_t *row)
{
    const json_t *large = best(rows, row, "beta_GBps", "batch");
    if (large == row)
        return;
    double factor = real(large, "batch") / real(row, "batch");
    printf("#   a batch %.3g times as large makes the token of a sequence %.1f times cheaper (the "
           "model says %.1f)\n",
           factor, real(row, "sequence_token_us") / real(large, "sequence_token_us"),
           factor * real(row, "predicted_us") / real(large, "predicted_us"));
}

/* What is measured on cores that others use can be anything. */
static void say_disturbed(const json_t *rows)
{
    const double far = 1.5;
    double most = 0;
    const json_t *row;
    size_t i;
    json_array_foreach(rows, i, row) if (real(row, "ratio") > most) most = real(row, "ratio");
    if (most > far)
        printf("# measured up to %.1f times the price: others use the cores, or the price does not "
               "hold "
               "on this device; trust the model more than the savings measured\n",
               most);
}

void decode_advise(const json_t *rows)
{
    const json_t *first = json_array_get(rows, 0), *row;
    size_t i;
    say_disturbed(rows);
    json_array_foreach(rows, i, row)
    {
        if (real(row, "beta_GBps") != real(first, "beta_GBps"))
            continue;
        double alpha = real(row, "alpha_us"), all = real(row, "predicted_us");
        if (!(all > 0)) {
            printf("# one rank has nothing to reduce\n");
            return;
        }
        printf("# batch %lld, messages of %lld B: %.0f %% of an AllReduce is start-up, %.0f %% "
               "bytes\n",
               whole(row, "batch"), whole(row, "stands_for_bytes"), 100 * alpha / all,
               100 * (1 - alpha / all));
        say_bandwidth(rows, row);
        printf("#   half the alpha, or half as many AllReduces of twice the length, would save "
               "%.1f %%\n",
               100 * alpha / all / 2);
        say_batch(rows, row);
    }
}
