/* SPDX-License-Identifier: MIT */
/*
 * The entries of a sparse matrix through the aggregator, one message each.
 *
 *   transpose   the rank of row i sends entry (i, j) to the rank of row j of the transpose
 *   spmv        y = A x: the rank that has x_j sends the product a_ij x_j to the rank that has y_i
 *
 * Every rank reads the whole file, so each can compute what it must have received. Of a sum it
 * knows how far rounding may take it: products come in any order, and k of them summed in double
 * are off by at most k eps times the sum of their magnitudes (N. J. Higham, Accuracy and Stability
 * of Numerical Algorithms, 2002, section 4.2).
 */
#include "collectives/wire_cost.h"
#include "tools/matrix.h"
#include "tools/record.h"
#include "tools/stream.h"
#include "transport/world.h"
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What travels: of a transpose an entry, of a product its row and itself. */
struct product {
    uint32_t row;
    uint32_t value[2]; /* a double, where 12 bytes need not be 16 */
};

struct run {
    struct sstar_world *world;
    const struct matrix_arguments *arguments;
    struct matrix matrix;
    struct sstar_cost cost;
    char device_class[24];
    uint32_t rank, ranks;
    /* What this rank sends, in the order of rows, and where that has got to. */
    size_t n_send, sent;
    uint16_t *to;
    union {
        struct matrix_entry *entries;
        struct product *products;
    } send;
    size_t n_due, n_got;
    struct matrix_entry *got; /* [n_due]: of a transpose */
    double *y;                /* [matrix rows]: of a product, those of this rank */
    uint64_t *messages;       /* [ranks][ranks] */
    struct round_time *times;
    json_t *rows; /* rank 0 */
    uint64_t wrong;
};

static const struct column columns[] = {
    {"strategy", "strategy", "%s", 9},
    {"items", "items", "%d", 10},
    {"time_us", "time(us)", "%.1f", 11},
    {"predicted_us", "predicted", "%.1f", 11},
    {"items_per_s", "items/s", "%.4g", 10},
    {"wire_messages", "wire msgs", "%d", 9},
    {"wire_bytes_mean", "mean(B)", "%.0f", 8},
    {"percent_past_s_star", "B>S*%", "%.1f", 7},
    {"percent_past_s_star_rate", "B>S*rate%", "%.1f", 9},
    {"wrong", "wrong", "%d", 6},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

static bool transposes(const struct run *run)
{
    return run->arguments->command == MATRIX_TRANSPOSE;
}

/* ---- who has and gets what ----------------------------------------------------------------------
 */

static uint32_t owner(const struct run *run, uint32_t row, uint32_t rows)
{
    return run->arguments->blocks ? (uint32_t)((uint64_t)row * run->ranks / rows)
                                  : row % run->ranks;
}
static uint32_t sender(const struct run *run, const struct matrix_entry *e)
{
    return transposes(run) ? owner(run, e->row, run->matrix.rows)
                           : owner(run, e->column, run->matrix.columns);
}
static uint32_t receiver(const struct run *run, const struct matrix_entry *e)
{
    return transposes(run) ? owner(run, e->column, run->matrix.columns)
                           : owner(run, e->row, run->matrix.rows);
}

static double x_of(uint32_t column)
{
    return 1 + (double)(column % 1021) / 1024;
}

static uint32_t item_bytes(const struct run *run)
{
    return transposes(run) ? sizeof(struct matrix_entry) : sizeof(struct product);
}

static void make_item(struct run *run, const struct matrix_entry *e)
{
    if (transposes(run)) {
        run->send.entries[run->n_send] = (struct matrix_entry){e->column, e->row, e->value};
    } else {
        double product = e->value * x_of(e->column);
        struct product *item = &run->send.products[run->n_send];
        item->row = e->row;
        memcpy(item->value, &product, sizeof product);
    }
    run->to[run->n_send++] = (uint16_t)receiver(run, e);
}

static int distribute(struct run *run)
{
    const struct matrix *m = &run->matrix;
    size_t n_send = 0;
    run->messages = calloc((size_t)run->ranks * run->ranks, sizeof *run->messages);
    run->times = calloc(run->arguments->repeat, sizeof *run->times);
    if (!run->messages || !run->times)
        return -ENOMEM;
    for (size_t i = 0; i < m->n; i++) {
        uint32_t from = sender(run, &m->entries[i]), to = receiver(run, &m->entries[i]);
        run->messages[(size_t)from * run->ranks + to]++;
        n_send += from == run->rank;
        run->n_due += to == run->rank;
    }
    run->to = calloc(n_send + 1, sizeof *run->to);
    run->send.entries = calloc(n_send + 1, sizeof *run->send.entries);
    run->got = calloc(run->n_due + 1, sizeof *run->got);
    run->y = calloc(m->rows, sizeof *run->y);
    if (!run->to || !run->send.entries || !run->got || !run->y)
        return -ENOMEM;
    for (size_t i = 0; i < m->n; i++)
        if (sender(run, &m->entries[i]) == run->rank)
            make_item(run, &m->entries[i]);
    return 0;
}

/* ---- a round ------------------------------------------------------------------------------------
 */

enum { PUSHES_PER_TURN = 256 }; /* then arrivals have their turn */

static int push(void *context, struct sstar_aggregator *aggregator)
{
    struct run *run = context;
    uint32_t bytes = item_bytes(run);
    const char *items =
        transposes(run) ? (const char *)run->send.entries : (const char *)run->send.products;
    size_t end =
        run->n_send - run->sent > PUSHES_PER_TURN ? run->sent + PUSHES_PER_TURN : run->n_send;
    for (; run->sent < end; run->sent++) {
        int err = sstar_push(aggregator, run->to[run->sent], items + run->sent * bytes, bytes);
        if (err)
            return err;
    }
    return run->sent == run->n_send ? 0 : -EAGAIN;
}

static int pull(void *context, const struct sstar_item *item)
{
    struct run *run = context;
    if (run->n_got++ >= run->n_due)
        return 0; /* counted as wrong */
    if (transposes(run)) {
        memcpy(&run->got[run->n_got - 1], item->data, sizeof *run->got);
        return 0;
    }
    struct product product;
    double value;
    memcpy(&product, item->data, sizeof product);
    memcpy(&value, product.value, sizeof value);
    if (product.row >= run->matrix.rows)
        return world_fail(run->world, -EIO, "a product for row %u of %u came from rank %d",
                          product.row, run->matrix.rows, item->source);
    run->y[product.row] += value;
    return 0;
}

static const struct stream_ops ops = {push, pull};

static int one_round(struct run *run, struct stream *stream, struct round_time *time)
{
    run->sent = run->n_got = 0;
    memset(run->y, 0, run->matrix.rows * sizeof *run->y);
    return stream_round(stream, time);
}

/* ---- checking -----------------------------------------------------------------------------------
 */

static int by_place(const void *a, const void *b)
{
    const struct matrix_entry *x = a, *y = b;
    if (x->row != y->row)
        return x->row < y->row ? -1 : 1;
    return (x->column > y->column) - (x->column < y->column);
}

static uint64_t wrong_entries(struct run *run)
{
    struct matrix_entry *due = calloc(run->n_due + 1, sizeof *due);
    size_t n = 0, at = 0;
    if (!due)
        return run->n_due;
    for (size_t i = 0; i < run->matrix.n; i++) {
        const struct matrix_entry *e = &run->matrix.entries[i];
        if (receiver(run, e) == run->rank)
            due[n++] = (struct matrix_entry){e->column, e->row, e->value};
    }
    qsort(due, n, sizeof *due, by_place);
    n = run->n_got < run->n_due ? run->n_got : run->n_due;
    qsort(run->got, n, sizeof *run->got, by_place);
    uint64_t right = 0;
    for (size_t i = 0; i < n && at < run->n_due;) {
        int order = by_place(&run->got[i], &due[at]);
        right += order == 0 && !memcmp(&run->got[i].value, &due[at].value, sizeof(double));
        i += order <= 0;
        at += order >= 0;
    }
    free(due);
    return run->n_due > run->n_got ? run->n_due - right : run->n_got - right;
}

/* Rows of this rank whose sum is further off than rounding can take it. */
static uint64_t wrong_sums(const struct run *run)
{
    const struct matrix *m = &run->matrix;
    uint64_t wrong = run->n_got != run->n_due;
    for (size_t i = 0; i < m->n;) {
        uint32_t row = m->entries[i].row;
        long double sum = 0, magnitude = 0;
        size_t k = 0;
        for (; i < m->n && m->entries[i].row == row; i++, k++) {
            double product = m->entries[i].value * x_of(m->entries[i].column);
            sum += product;
            magnitude += fabs(product);
        }
        if (owner(run, row, m->rows) == run->rank)
            wrong += fabsl(run->y[row] - sum) > (long double)k * DBL_EPSILON * magnitude;
    }
    return wrong;
}

static int sum_over_ranks(struct run *run, uint64_t mine, uint64_t *sum)
{
    uint64_t *all = calloc(run->ranks, sizeof *all);
    int err = all ? sstar_allgather(run->world, &mine, sizeof mine, all) : -ENOMEM;
    *sum = 0;
    for (uint32_t r = 0; !err && r < run->ranks; r++)
        *sum += all[r];
    free(all);
    return err;
}

/* ---- a strategy ---------------------------------------------------------------------------------
 */

static void set_share(json_t *row, const char *key, uint64_t part, uint64_t whole)
{
    json_object_set_new(row, key,
                        whole ? record_real(100 * (double)part / (double)whole) : json_null());
}

static void add_row(struct run *run, enum sstar_strategy strategy, double us, double predicted_us,
                    uint64_t wrong, const struct sstar_ledger *l)
{
    json_t *row = json_object();
    json_object_set_new(row, "strategy", json_string(sstar_strategy_name(strategy)));
    json_object_set_new(row, "items", json_integer((json_int_t)run->matrix.n));
    json_object_set_new(row, "item_bytes", json_integer(item_bytes(run)));
    json_object_set_new(row, "time_us", record_real(us));
    json_object_set_new(row, "predicted_us",
                        predicted_us > 0 ? record_real(predicted_us) : json_null());
    json_object_set_new(row, "items_per_s", record_real((double)run->matrix.n / us * 1e6));
    json_object_set_new(row, "cross_items", json_integer((json_int_t)l->cross_messages));
    json_object_set_new(row, "wire_messages", json_integer((json_int_t)l->wire_messages));
    json_object_set_new(
        row, "wire_bytes_mean",
        record_real(l->wire_messages ? (double)l->wire_bytes / (double)l->wire_messages : 0));
    set_share(row, "percent_past_s_star", l->past[SSTAR_PAST_S_STAR].message_bytes, l->cross_bytes);
    set_share(row, "percent_past_s_star_rate", l->past[SSTAR_PAST_S_STAR_RATE].message_bytes,
              l->cross_bytes);
    json_object_set_new(row, "wrong", json_integer((json_int_t)wrong));
    json_object_set_new(row, "device", json_string(run->device_class));
    json_array_append_new(run->rows, row);
    table_row(stdout, columns, COLUMNS, row);
}

static int rounds(struct run *run, struct stream *stream, uint64_t *wrong)
{
    struct round_time warm;
    int err = one_round(run, stream, &warm);
    if (err)
        return err;
    uint64_t mine = transposes(run) ? wrong_entries(run) : wrong_sums(run);
    for (uint32_t i = 0; i < run->arguments->repeat && !err; i++)
        err = one_round(run, stream, &run->times[i]);
    return err ? err : sum_over_ranks(run, mine, wrong);
}

static int measure(struct run *run, enum sstar_strategy strategy)
{
    const struct sstar_aggregator_attr attr = {.strategy = strategy,
                                               .item_bytes = item_bytes(run),
                                               .flush_bytes = run->arguments->flush_bytes};
    struct stream stream = {.ops = &ops, .context = run};
    struct sstar_ledger ledger;
    uint64_t wrong = 0;
    double us = 0, predicted_us = 0;
    int err = stream_open(&stream, run->world, &run->cost, &attr);
    if (!err)
        err = rounds(run, &stream, &wrong);
    if (!err)
        err = rounds_median(run->world, run->times, run->arguments->repeat, &us);
    if (!err)
        err = stream_ledger(&stream, &ledger);
    if (!err)
        err = stream_predict(&stream, run->messages, NULL, &predicted_us);
    stream_close(&stream);
    if (err)
        return err;
    run->wrong += wrong;
    if (run->rows)
        add_row(run, strategy, us, predicted_us, wrong, &ledger);
    return 0;
}

/* ---- all ----------------------------------------------------------------------------------------
 */

static const char *command_name(const struct run *run)
{
    return transposes(run) ? "transpose" : "spmv";
}

static int learn(struct run *run)
{
    struct sstar_device_info device;
    strcpy(run->device_class, "memory");
    if (sstar_node_count(run->world) == 1)
        return 0;
    int err = wire_cost(run->world, &run->cost);
    if (!err)
        err = sstar_device_info(run->world, &device);
    if (!err)
        strcpy(run->device_class, device.device_class);
    return err;
}

static void print_head(const struct run *run)
{
    const struct matrix *m = &run->matrix;
    const struct sstar_cost *c = &run->cost;
    printf("# sstar %s: %s, %u x %u, %zu entries, rows %s over %u ranks on %s, %s\n",
           command_name(run), run->arguments->path, m->rows, m->columns, m->n,
           run->arguments->blocks ? "in blocks" : "in turn", run->ranks,
           nodes_text(sstar_node_count(run->world)).text, run->device_class);
    if (m->repeated)
        printf("# %zu entries of the file had a place before; they are summed\n", m->repeated);
    if (c->beta_gbps > 0)
        printf("# alpha %.4g us, g %.4g us, beta %.4g GB/s: S* = %.0f B, S*rate = %.0f B; an item "
               "is %u B\n",
               c->alpha_us, c->gap_us, c->beta_gbps, sstar_s_star_bytes(c),
               sstar_s_star_rate_bytes(c), item_bytes(run));
    table_head(stdout, columns, COLUMNS);
}

static int write_record(const struct run *run)
{
    const struct matrix_arguments *a = run->arguments;
    const char *name = command_name(run);
    json_t *record = record_new(run->world, name);
    json_object_set_new(record, "file", record_string(a->path));
    json_object_set_new(record, "rows", json_integer(run->matrix.rows));
    json_object_set_new(record, "columns", json_integer(run->matrix.columns));
    json_object_set_new(record, "entries", json_integer((json_int_t)run->matrix.n));
    json_object_set_new(record, "distribution", json_string(a->blocks ? "block" : "cyclic"));
    json_object_set(record, name, run->rows);
    int status =
        record_write_json(record, a->common.json) || record_write_csv(record, name, a->common.csv);
    json_decref(record);
    return status;
}

static int all_strategies(struct run *run, int *status)
{
    int err = distribute(run);
    if (err)
        return world_fail(run->world, err, "no memory for the entries of a matrix");
    err = learn(run);
    if (!err && run->rows)
        print_head(run);
    for (int s = 0; s < SSTAR_STRATEGIES && !err; s++)
        if (run->arguments->strategies[s])
            err = measure(run, (enum sstar_strategy)s);
    if (err)
        return err;
    if (run->rows)
        *status = write_record(run);
    if (run->wrong) {
        *status = EXIT_FAILURE;
        if (run->rows)
            fprintf(stderr, "sstar %s: %llu values are wrong\n", command_name(run),
                    (unsigned long long)run->wrong);
    }
    return 0;
}

int matrix_run(struct sstar_world *world, void *arguments, int *status)
{
    struct run run = {.world = world,
                      .arguments = arguments,
                      .rank = (uint32_t)sstar_rank(world),
                      .ranks = (uint32_t)sstar_size(world)};
    char error[512];
    run.rows = run.rank == 0 ? json_array() : NULL;
    int err = matrix_read(run.arguments->path, &run.matrix, error, sizeof error);
    err = err ? world_fail(world, err, "%s", error) : all_strategies(&run, status);
    free(run.times);
    free(run.messages);
    free(run.y);
    free(run.got);
    free(run.send.entries);
    free(run.to);
    matrix_free(&run.matrix);
    json_decref(run.rows);
    return err;
}
