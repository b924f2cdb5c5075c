/* SPDX-License-Identifier: MIT */
/* The ledger of `sstar alltoall`, as a record and in words. */
#include "collectives/ledger.h"
#include "tools/alltoall.h"
#include "transport/world.h"

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* By powers of two: four classes of the ledger each. */
static json_t *powers(const uint64_t *classes, int n, double unit)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i += 4) {
        uint64_t count = 0;
        for (int k = 0; k < 4; k++)
            count += classes[i + k];
        if (!count)
            continue;
        json_t *bin = json_object();
        record_number(bin, "from", ledger_class_begin((unsigned)i) * unit);
        record_number(bin, "below", ledger_class_begin((unsigned)i + 4) * unit);
        record_count(bin, "count", count);
        json_array_append_new(list, bin);
    }
    return list;
}

static json_t *links_of(const struct outcome *o)
{
    json_t *list = json_array();
    for (int from = 0; from < o->ranks; from++)
        for (int to = 0; to < o->ranks; to++) {
            const struct sstar_link_ledger *l = &o->links[from * o->ranks + to];
            if (!l->wire_messages && !l->copying_ns)
                continue;
            json_t *link = json_object();
            record_count(link, "from", (uint64_t)from);
            record_count(link, "to", (uint64_t)to);
            record_count(link, "wire_messages", l->wire_messages);
            record_count(link, "wire_bytes", l->wire_bytes);
            record_count(link, "messages", l->messages);
            record_count(link, "message_bytes", l->message_bytes);
            record_number(link, "share_bytes_past_s_star",
                          share((double)l->past_bytes, (double)l->message_bytes));
            record_number(link, "pushing_us", (double)l->pushing_ns * 1e-3);
            record_number(link, "copying_us", (double)l->copying_ns * 1e-3);
            record_number(link, "refused_us", (double)l->refused_ns * 1e-3);
            record_count(link, "pool_peak_bytes", l->pool_peak_bytes);
            json_array_append_new(list, link);
        }
    return list;
}

/* What waits and works is the sum over ranks; here the part of their time. */
static double of_time(const struct outcome *o, uint64_t ns)
{
    return share((double)ns * 1e-9, o->seconds * o->ranks);
}

static double busiest(const struct outcome *o)
{
    return share((double)o->busiest_wire_bytes * o->ranks, (double)o->ledger.wire_bytes);
}

void ledger_record(json_t *row, const struct outcome *o)
{
    const struct sstar_ledger *l = &o->ledger;
    json_object_set_new(row, "message_sizes", powers(l->message_class, LEDGER_WIRE_CLASSES, 1));
    json_object_set_new(row, "wire_message_sizes", powers(l->wire_class, LEDGER_WIRE_CLASSES, 1));
    json_object_set_new(row, "ages_us", powers(l->age_class, LEDGER_AGE_CLASSES, 1e-3));
    record_number(row, "age_greatest_us", (double)l->age_greatest_ns * 1e-3);
    record_number(row, "share_time_pushing", of_time(o, l->pushing_ns));
    record_number(row, "share_time_copying", of_time(o, l->copying_ns));
    record_number(row, "share_time_moving", of_time(o, l->moving_ns));
    record_number(row, "share_time_waiting", of_time(o, l->waiting_ns));
    record_number(row, "copied_per_byte", share((double)l->copied_bytes, (double)l->message_bytes));
    record_count(row, "memory_bytes", l->memory_bytes);
    record_count(row, "memory_taken_bytes", o->taken_bytes);
    record_count(row, "pool_bound_bytes", l->pool_bound_bytes);
    record_number(row, "busiest_rank_load", busiest(o));
    record_number(row, "hottest_node_share", o->hottest_share);
    record_count(row, "merged_messages", l->merged_messages);
    if (o->links)
        json_object_set_new(row, "links", links_of(o));
}

static void print_sizes(const char *what, const uint64_t *classes, int n, double unit)
{
    printf("#   %s:", what);
    for (int i = 0; i < n; i += 4) {
        uint64_t count = 0;
        for (int k = 0; k < 4; k++)
            count += classes[i + k];
        if (count)
            printf(" %.4g:%llu", ledger_class_begin((unsigned)i) * unit, (unsigned long long)count);
    }
    printf("\n");
}

static uint64_t hottest_peak(const struct outcome *o)
{
    uint64_t most = 0;
    for (int i = 0; o->links && i < o->ranks * o->ranks; i++)
        most = o->links[i].pool_peak_bytes > most ? o->links[i].pool_peak_bytes : most;
    return most;
}

void ledger_print(const struct outcome *o)
{
    const struct sstar_ledger *l = &o->ledger;
    printf("# ledger of %s\n", sstar_strategy_name(o->strategy));
    print_sizes("messages by size, from B", l->message_class, LEDGER_WIRE_CLASSES, 1);
    print_sizes("wire messages by size, from B", l->wire_class, LEDGER_WIRE_CLASSES, 1);
    print_sizes("age of a buffer's first message, from us", l->age_class, LEDGER_AGE_CLASSES, 1e-3);
    printf("#   age: p50 %.1f us, p99 %.1f us, greatest %.1f us\n", ledger_age_quantile_us(l, 0.5),
           ledger_age_quantile_us(l, 0.99), (double)l->age_greatest_ns * 1e-3);
    if (l->past[SSTAR_PAST_S_STAR].bytes > 0)
        printf(
            "#   of the bytes that cross nodes, in wire messages past S* %.2f %%, 4*S* %.2f %%, "
            "9*S* %.2f %%\n",
            100 * share((double)l->past[SSTAR_PAST_S_STAR].message_bytes, (double)l->cross_bytes),
            100 * share((double)l->past[SSTAR_PAST_4_S_STAR].message_bytes, (double)l->cross_bytes),
            100 *
                share((double)l->past[SSTAR_PAST_9_S_STAR].message_bytes, (double)l->cross_bytes));
    printf("#   time of the ranks: %.1f %% copying messages, %.1f %% else pushing (of samples), "
           "%.1f %% gathering, ringing and looking for arrivals, %.1f %% waiting, the rest pulling "
           "and the caller's own\n",
           100 * of_time(o, l->copying_ns), 100 * of_time(o, l->pushing_ns),
           100 * of_time(o, l->moving_ns), 100 * of_time(o, l->waiting_ns));
    printf("#   copied %.2f B for each byte delivered; memory for messages under way at most %.3f "
           "MB a rank, %.3f MB taken with what the device and the tables need\n",
           share((double)l->copied_bytes, (double)l->message_bytes), (double)l->memory_bytes * 1e-6,
           (double)o->taken_bytes * 1e-6);
    if (l->pool_bound_bytes)
        printf("#   one hot destination had %.3f MB of the pool at most, of %.3f MB allowed\n",
               (double)hottest_peak(o) * 1e-6, (double)l->pool_bound_bytes * 1e-6);
    printf("#   the busiest rank sent %.2f times its share of what crossed; the node that gets "
           "most got %.0f %%\n",
           busiest(o), 100 * o->hottest_share);
}

/* ---- where it does not pay ----------------------------------------------------------------------
 */

/* Wire messages that hold more than their ends. */
static double mean_fill(const struct sstar_ledger *l)
{
    return share((double)l->wire_bytes, (double)l->wire_messages);
}

void ledger_explain(struct sstar_world *world, const struct plan *plan,
                    const struct sstar_cost *cost, const struct outcome *o)
{
    double rate_bytes = sstar_s_star_rate_bytes(cost), s_star = sstar_s_star_bytes(cost);
    const char *name = sstar_strategy_name(o->strategy);
    int nodes = sstar_node_count(world);
    if (s_star <= 0 || !o->ledger.cross_messages || o->strategy == SSTAR_NONE)
        return;
    if ((double)plan->mean_bytes >= s_star)
        printf("# %s: messages are %llu B long already, past S* = %.0f B: gathering saves at most "
               "a start-up in %.0f.\n",
               name, (unsigned long long)plan->mean_bytes, s_star,
               1 + (double)plan->mean_bytes / s_star);
    else if ((double)plan->mean_bytes >= 4 * rate_bytes && rate_bytes > 0)
        printf("# %s: messages of %llu B are past 4*S*rate = %.0f B: in a stream their bytes are "
               "what they cost, and gathering saves at most a fifth.\n",
               name, (unsigned long long)plan->mean_bytes, 4 * rate_bytes);
    if (nodes > 2 && o->hottest_share > 0.5)
        printf("# %s: one hot destination: %.0f %% of what crosses goes to one node, whose port "
               "receives at beta however it is gathered.\n",
               name, 100 * o->hottest_share);
    if (o->point.max_age_us > 0 && mean_fill(&o->ledger) < s_star &&
        mean_fill(&o->ledger) < o->point.flush_bytes / 2.0)
        printf("# %s: the deadline of %.4g us is too short to gather S*: wire messages held %.0f B "
               "on the average.\n",
               name, o->point.max_age_us, mean_fill(&o->ledger));
}
