/* SPDX-License-Identifier: MIT */
/* The aggregator's ledger: counts by class, and exact ones past S* and its multiples. */
#include "collectives/ledger.h"
#include <math.h>
#include <string.h>

unsigned ledger_class(uint64_t value, unsigned classes)
{
    if (value < 2)
        return 0;
    unsigned exponent = 63u - (unsigned)__builtin_clzll(value);
    /* The mantissa in [1, 2), as 32.32, against the fourth roots of two. */
    uint64_t mantissa = exponent <= 32 ? value << (32 - exponent) : value >> (exponent - 32);
    unsigned quarter =
        (mantissa >= 5107605668u) + (mantissa >= 6074001000u) + (mantissa >= 7223245206u);
    unsigned i = exponent * 4 + quarter;
    return i < classes ? i : classes - 1;
}

double ledger_class_begin(unsigned i)
{
    return exp2(i / 4.0);
}

void ledger_reset(struct sstar_ledger *ledger, double s_star_bytes, double s_star_rate_bytes)
{
    memset(ledger, 0, sizeof *ledger);
    ledger->past[SSTAR_PAST_S_STAR].bytes = s_star_bytes;
    ledger->past[SSTAR_PAST_4_S_STAR].bytes = 4 * s_star_bytes;
    ledger->past[SSTAR_PAST_9_S_STAR].bytes = 9 * s_star_bytes;
    ledger->past[SSTAR_PAST_S_STAR_RATE].bytes = s_star_rate_bytes;
}

void ledger_wire(struct sstar_ledger *ledger, uint64_t wire_bytes, uint64_t messages,
                 uint64_t message_bytes)
{
    unsigned i = ledger_class(wire_bytes, LEDGER_WIRE_CLASSES);
    ledger->wire_messages++;
    ledger->wire_bytes += wire_bytes;
    ledger->wire_class[i]++;
    ledger->wire_class_messages[i] += messages;
    ledger->wire_class_bytes[i] += message_bytes;
    ledger->wire_class_total[i] += wire_bytes;
    for (int p = 0; p < SSTAR_PASTS; p++) {
        struct sstar_past *past = &ledger->past[p];
        if (past->bytes > 0 && (double)wire_bytes >= past->bytes) {
            past->wire_messages++;
            past->messages += messages;
            past->message_bytes += message_bytes;
        }
    }
}

void ledger_age(struct sstar_ledger *ledger, uint64_t age_ns, uint64_t buffers)
{
    ledger->age_class[ledger_class(age_ns, LEDGER_AGE_CLASSES)] += buffers;
    if (age_ns > ledger->age_greatest_ns)
        ledger->age_greatest_ns = age_ns;
}

void ledger_add(struct sstar_ledger *sum, const struct sstar_ledger *one)
{
    sum->messages += one->messages;
    sum->message_bytes += one->message_bytes;
    sum->cross_messages += one->cross_messages;
    sum->cross_bytes += one->cross_bytes;
    sum->wire_messages += one->wire_messages;
    sum->wire_bytes += one->wire_bytes;
    sum->copied_bytes += one->copied_bytes;
    sum->full += one->full;
    sum->merged_messages += one->merged_messages;
    sum->merged_bytes += one->merged_bytes;
    sum->pushing_ns += one->pushing_ns;
    sum->copying_ns += one->copying_ns;
    sum->moving_ns += one->moving_ns;
    sum->waiting_ns += one->waiting_ns;
    if (one->age_greatest_ns > sum->age_greatest_ns)
        sum->age_greatest_ns = one->age_greatest_ns;
    if (one->memory_bytes > sum->memory_bytes)
        sum->memory_bytes = one->memory_bytes;
    if (one->pool_bound_bytes > sum->pool_bound_bytes)
        sum->pool_bound_bytes = one->pool_bound_bytes;
    for (int i = 0; i < LEDGER_WIRE_CLASSES; i++) {
        sum->wire_class[i] += one->wire_class[i];
        sum->wire_class_messages[i] += one->wire_class_messages[i];
        sum->wire_class_bytes[i] += one->wire_class_bytes[i];
        sum->wire_class_total[i] += one->wire_class_total[i];
        sum->message_class[i] += one->message_class[i];
    }
    for (int i = 0; i < LEDGER_AGE_CLASSES; i++)
        sum->age_class[i] += one->age_class[i];
    for (int p = 0; p < SSTAR_PASTS; p++) {
        sum->past[p].bytes = one->past[p].bytes;
        sum->past[p].wire_messages += one->past[p].wire_messages;
        sum->past[p].messages += one->past[p].messages;
        sum->past[p].message_bytes += one->past[p].message_bytes;
    }
}

/* The class in which the given share of the counts is reached; -1 if all are 0. */
static int quantile_class(const uint64_t *counts, int classes, double share)
{
    uint64_t total = 0, seen = 0;
    for (int i = 0; i < classes; i++)
        total += counts[i];
    uint64_t wanted = (uint64_t)ceil(share * (double)total);
    for (int i = 0; total && i < classes; i++) {
        seen += counts[i];
        if (seen && seen >= wanted)
            return i;
    }
    return -1;
}

double ledger_wire_quantile(const struct sstar_ledger *ledger, double share)
{
    int i = quantile_class(ledger->wire_class, LEDGER_WIRE_CLASSES, share);
    return i < 0 ? 0 : (double)ledger->wire_class_total[i] / (double)ledger->wire_class[i];
}

double ledger_age_quantile_us(const struct sstar_ledger *ledger, double share)
{
    int i = quantile_class(ledger->age_class, LEDGER_AGE_CLASSES, share);
    double middle_ns = exp2((i + 0.5) / 4.0), greatest_ns = (double)ledger->age_greatest_ns;
    return i < 0 ? 0 : (middle_ns < greatest_ns ? middle_ns : greatest_ns) * 1e-3;
}
