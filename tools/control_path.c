/* SPDX-License-Identifier: MIT */
/* sstar control-path: what it costs to build, ring and complete, directly and by a proxy. */
#include "tools/control_path.h"
#include "tools/record.h"
#include "tools/tool.h"
#include "transport/world.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 16, MOST_BYTES = 1 << 24, INLINE_UNASKED = 16 };

struct list {
    double value[MOST];
    int n;
};

struct arguments {
    struct common_options common;
    struct list paths, posts, batches, in_line, signals, qps, callers, sizes, budgets, betas;
    double seconds;
};

/* ---- arguments ------------------------------------------------------------------------------ */

/* One value of a list: a name's place, a size up to `high`, or, where that is 0, any number. */
static bool read_value(const struct setting *s, const char *word, double *value)
{
    uint64_t size;
    for (int i = 0; s->names && s->names[i]; i++)
        if (strcmp(s->names[i], word) == 0) {
            *value = i;
            return true;
        }
    if (s->names)
        return false;
    if (s->high == 0)
        return parse_real(word, 1e-3, 1e6, value) == 0;
    if (parse_size(word, &size) || size < 1 || (double)size > s->high)
        return false;
    *value = (double)size;
    return true;
}

static void take_list(const struct setting *s, void *member, const char *text,
                      struct argp_state *state)
{
    struct list *list = member;
    char copy[256], takes[128], *rest = copy, *word;
    bool right = strlen(text) < sizeof(copy);
    list->n = 0;
    snprintf(copy, sizeof(copy), "%s", text);
    while (right && (word = strsep(&rest, ",")))
        right = list->n < MOST && read_value(s, word, &list->value[list->n++]);
    if (right)
        return;
    if (s->names)
        snprintf(takes, sizeof(takes), "some of %s, %s%s%s, separated by commas", s->names[0],
                 s->names[1], s->names[2] ? ", " : "", s->names[2] ? s->names[2] : "");
    else
        snprintf(takes, sizeof(takes), "up to %d numbers%s%.0f, separated by commas", MOST,
                 s->high > 0 ? " from 1 to " : " above ", s->high);
    setting_refuse(s, takes, text, state);
}

static const char *const paths[] = {"direct", "proxy", NULL};
static const char *const posts[] = {"wr", "chain", "each", NULL};
static const char *const no_yes[] = {"no", "yes", NULL};

#define LIST(MEMBER) .take = take_list, .offset = offsetof(struct arguments, MEMBER)
#define A(MEMBER)    SETS(struct arguments, MEMBER)

static const struct setting settings[] = {
    {"path", "LIST", "direct, proxy (both)", LIST(paths), .names = paths},
    {"post", "LIST",
     "How to post: wr (ibv_wr_*), chain (one ibv_post_send for a batch), each (one for each "
     "message) (all)",
     LIST(posts), .names = posts},
    {"batch", "LIST", "Messages per doorbell, 1 to 64 (1,32)", LIST(batches),
     .high = SSTAR_POST_MOST},
    {"inline", "LIST", "yes, no (yes)", LIST(in_line), .names = no_yes},
    {"signal", "LIST", "A completion for every N messages, 1 to 64 (1,64)", LIST(signals),
     .high = SSTAR_POST_MOST},
    {"qps", "LIST", "Queue pairs, 1 to 16 (1)", LIST(qps), .high = PATH_MOST_QPS},
    {"callers", "LIST", "Calling threads, 1 to 16 (1)", LIST(callers), .high = PATH_MOST_CALLERS},
    {"size", "LIST", "Bytes of a message (8)", .letter = 's', LIST(sizes), .high = MOST_BYTES},
    {"seconds", "S", "Time for each measurement (0.1)", A(seconds), FROM_TO(0.001, 10)},
    {"budget", "LIST", "For messages of these sizes: what alpha may be for 50, 80, 90 % efficiency",
     LIST(budgets), .high = 1u << 30},
    {"beta", "LIST", "GB/s to compute the budget for (what is measured)", LIST(betas)},
    {0},
};

static const char doc[] =
    "What the control path of a message costs, directly and by a proxy, stage by stage.\v"
    "Two ranks on two nodes; rank 0 puts into the memory of rank 1, which is passive. Lone "
    "messages are stamped, one in 64, and their stages summed; streams are timed as they are, "
    "for every combination of the lists. A direct caller has queue pairs and a completion "
    "queue of its own, so what has fewer queue pairs than callers, or no whole number of them "
    "for each, is left out there; a proxy serves any number of callers with any number of "
    "queue pairs.";

/* ---- what is measured ----------------------------------------------------------------------- */

static const struct column rate_columns[] = {
    {"path", "path", "%s", 6},
    {"post", "post", "%s", 5},
    {"batch", "batch", "%d", 5},
    {"inline", "inline", "%s", 6},
    {"signal", "signal", "%d", 6},
    {"queue_pairs", "qps", "%d", 3},
    {"callers", "callers", "%d", 7},
    {"proxies", "proxies", "%d", 7},
    {"size_bytes", "bytes", "%d", 7},
    {"alpha_us", "alpha[us]", "%.3f", 9},
    {"rate_per_us", "Mmsg/s", "%.3f", 8},
    {"gap_us", "g[us]", "%.4f", 8},
    {"s_star_bytes", "S*[B]", "%.0f", 9},
    {"s_star_rate_bytes", "S*rate[B]", "%.0f", 9},
    {"wqes_per_doorbell", "WQE/bell", "%.1f", 8},
    {"doorbells_per_message", "bell/msg", "%.3f", 8},
    {"cqes_per_message", "CQE/msg", "%.3f", 7},
};
enum { RATE_COLUMNS = sizeof(rate_columns) / sizeof(*rate_columns) };

struct run {
    struct arguments *arguments;
    struct path_test test;
    bool tells;                 /* rank 0 */
    double measured_beta, beta; /* bytes per ns; of the wire where one is imposed */
    json_t *stages, *rates, *budget;
};

static bool way_possible(const struct run *run, const struct path_way *way,
                         const struct sstar_device_info *device)
{
    (void)run;
    if (way->in_line && way->bytes > INLINE_UNASKED && way->bytes > device->max_inline_bytes)
        return false;
    if (way->each && way->batch > 1 && way->control == SSTAR_CONTROL_PROXY)
        return true;
    return way->control == SSTAR_CONTROL_PROXY ||
           (way->qps >= way->callers && way->qps % way->callers == 0);
}

static json_t *way_row(const struct path_way *way)
{
    json_t *row = json_object();
    bool proxy = way->control == SSTAR_CONTROL_PROXY;
    json_object_set_new(row, "path", json_string(proxy ? "proxy" : "direct"));
    json_object_set_new(row, "post",
                        json_string(posts[way->each                   ? 2
                                          : way->method == POST_CHAIN ? 1
                                                                      : 0]));
    json_object_set_new(row, "inline", json_boolean(way->in_line));
    json_object_set_new(row, "size_bytes", json_integer((json_int_t)way->bytes));
    return row;
}

static int measure_rate(struct run *run, const struct path_way *way, double alpha_ns)
{
    struct path_rate rate;
    int err = path_rate(&run->test, way, &rate);
    if (err || !run->tells)
        return err == -ENODATA ? 0 : err;
    json_t *row = way_row(way);
    bool proxy = way->control == SSTAR_CONTROL_PROXY;
    json_object_set_new(row, "batch", json_integer(way->batch));
    json_object_set_new(row, "signal", json_integer(way->signal));
    json_object_set_new(row, "queue_pairs", json_integer(way->qps));
    json_object_set_new(row, "callers", json_integer(way->callers));
    json_object_set_new(row, "proxies", json_integer(proxy ? way->proxies : 0));
    json_object_set_new(row, "alpha_us", record_real(alpha_ns / 1e3));
    json_object_set_new(row, "rate_per_us", record_real(rate.per_us));
    json_object_set_new(row, "gap_us", record_real(1 / rate.per_us));
    json_object_set_new(row, "s_star_bytes", record_real(alpha_ns * run->beta));
    json_object_set_new(row, "s_star_rate_bytes", record_real(1e3 / rate.per_us * run->beta));
    json_object_set_new(row, "wqes_per_doorbell", record_real(rate.wqes_per_doorbell));
    json_object_set_new(row, "doorbells_per_message", record_real(rate.doorbells_per_message));
    json_object_set_new(row, "cqes_per_message", record_real(rate.cqes_per_message));
    progress_clear(&run->arguments->common, run->test.world);
    table_row(stdout, rate_columns, RATE_COLUMNS, row);
    json_array_append_new(run->rates, row);
    return 0;
}

/* Every batch, signal, queue pairs and callers of one way to post. */
static int measure_rates(struct run *run, struct path_way way, double alpha_ns,
                         const struct sstar_device_info *device)
{
    const struct arguments *a = run->arguments;
    int n = a->callers.n * a->qps.n * a->signals.n * a->batches.n, err = 0;
    for (int i = 0; i < n && !err; i++) {
        int j = i;
        way.batch = (uint32_t)a->batches.value[j % a->batches.n];
        way.signal = (uint32_t)a->signals.value[(j /= a->batches.n) % a->signals.n];
        way.qps = (uint32_t)a->qps.value[(j /= a->signals.n) % a->qps.n];
        way.callers = (uint32_t)a->callers.value[j / a->qps.n];
        if (way_possible(run, &way, device))
            err = measure_rate(run, &way, alpha_ns);
    }
    return err;
}

struct found {
    struct path_way way;
    double alpha_ns;
};

/* Way number i of path, post, inline, size. */
static struct path_way way_number(const struct arguments *a, int i)
{
    struct path_way way = {.batch = 1, .signal = 1, .qps = 1, .callers = 1};
    way.bytes = (uint64_t)a->sizes.value[i % a->sizes.n];
    i /= a->sizes.n;
    way.in_line = a->in_line.value[i % a->in_line.n] == 1;
    i /= a->in_line.n;
    int post = (int)a->posts.value[i % a->posts.n];
    way.method = post == 0 ? POST_WR : POST_CHAIN;
    way.each = post == 2;
    way.control = a->paths.value[i / a->posts.n] == 1 ? SSTAR_CONTROL_PROXY : SSTAR_CONTROL_DIRECT;
    way.proxies = (uint32_t)a->common.config.proxy_threads;
    return way;
}

static int measure_lone(struct run *run, const struct sstar_device_info *device,
                        struct found *found, int n)
{
    int err = 0;
    for (int i = 0; i < n && !err; i++) {
        struct path_lone lone;
        struct path_way way = found[i].way = way_number(run->arguments, i);
        if (!way_possible(run, &way, device))
            continue;
        progress_show(&run->arguments->common, run->test.world, "lone messages", (double)i / n);
        err = path_lone(&run->test, &way, &lone);
        if (err == -ENODATA) {
            err = 0;
            continue;
        }
        found[i].alpha_ns = 1;
        if (err || !run->tells)
            continue;
        found[i].alpha_ns = lone.alpha_ns;
        json_t *rows = path_stage_rows(&lone);
        for (size_t j = 0; j < json_array_size(rows); j++) {
            json_t *row = way_row(&way);
            json_object_update(row, json_array_get(rows, j));
            json_array_append_new(run->stages, row);
        }
        json_decref(rows);
    }
    progress_clear(&run->arguments->common, run->test.world);
    if (!err && run->tells)
        path_report_stages(run->stages);
    return err;
}

/* What alpha may be: a share e of the bandwidth is left when S/beta is e of the whole. */
static void budget_fill(struct run *run, const struct found *found, int n)
{
    static const double shares[] = {0.5, 0.8, 0.9};
    struct list betas = run->arguments->betas;
    if (betas.n == 0)
        betas = (struct list){.value = {run->beta}, .n = 1};
    for (int s = 0; s < run->arguments->budgets.n; s++)
        for (int b = 0; b < betas.n; b++)
            for (int i = 0; i < n; i++) {
                double bytes = run->arguments->budgets.value[s], ns = bytes / betas.value[b];
                if (found[i].alpha_ns <= 1)
                    continue;
                json_t *row = way_row(&found[i].way);
                json_object_set_new(row, "size_bytes", record_real(bytes));
                json_object_set_new(row, "beta_GBps", record_real(betas.value[b]));
                json_object_set_new(row, "bytes_us", record_real(ns / 1e3));
                for (int k = 0; k < 3; k++) {
                    char key[32];
                    snprintf(key, sizeof(key), "alpha_for_%.0f_us", shares[k] * 100);
                    json_object_set_new(row, key,
                                        record_real(ns * (1 - shares[k]) / shares[k] / 1e3));
                }
                json_object_set_new(row, "alpha_us", record_real(found[i].alpha_ns / 1e3));
                json_object_set_new(row, "efficiency_percent",
                                    record_real(100 * ns / (ns + found[i].alpha_ns)));
                json_array_append_new(run->budget, row);
            }
}

/* ---- the whole ------------------------------------------------------------------------------ */

static void print_head(const struct run *run, const struct sstar_device_info *device)
{
    const struct path_test *t = &run->test;
    printf("# sstar control-path: puts through %s (%s), long ones at %.3f GB/s; %d cores\n",
           device->name, device->device_class, run->beta, t->world->cores);
    if (device->wire.beta_gbps > 0)
        printf("# wire %g us, %g us, %g GB/s\n", device->wire.alpha_us, device->wire.gap_us,
               device->wire.beta_gbps);
    printf("# a stamp costs %.1f ns and is taken off; a cache line takes %.1f ns from core to "
           "core\n",
           t->clock.stamp_ns, t->line_ns);
}

static int write_record(const struct run *run)
{
    const struct common_options *common = &run->arguments->common;
    json_t *record = record_new(run->test.world, "control-path");
    json_object_set_new(record, "stamp_ns", record_real(run->test.clock.stamp_ns));
    json_object_set_new(record, "line_ns", record_real(run->test.line_ns));
    json_object_set_new(record, "beta_measured_GBps", record_real(run->measured_beta));
    json_object_set(record, "stages", run->stages);
    json_object_set(record, "control_path", run->rates);
    json_object_set(record, "budget", run->budget);
    int status = record_write_json(record, common->json) ||
                 record_write_csv(record, "control_path", common->csv);
    json_decref(record);
    return status;
}

static int measure(struct run *run, int *status)
{
    const struct arguments *a = run->arguments;
    struct sstar_device_info device;
    int n = a->sizes.n * a->in_line.n * a->posts.n * a->paths.n;
    struct found *found = calloc((size_t)n, sizeof(*found));
    int err = found ? path_open(&run->test) : -ENOMEM;
    if (!err)
        err = sstar_device_info(run->test.world, &device);
    if (!err)
        err = path_beta(&run->test, &run->measured_beta);
    run->beta = run->measured_beta;
    if (!err && run->tells)
        print_head(run, &device);
    if (!err && device.wire.beta_gbps > 0)
        run->beta = device.wire.beta_gbps; /* what was imposed is known */
    if (!err)
        err = measure_lone(run, &device, found, n);
    if (!err && run->tells)
        table_head(stdout, rate_columns, RATE_COLUMNS);
    for (int i = 0; i < n && !err; i++)
        if (found[i].alpha_ns > 0)
            err = measure_rates(run, found[i].way, found[i].alpha_ns, &device);
    if (!err && run->tells) {
        budget_fill(run, found, n);
        path_report_summary(run->rates);
        path_report_budget(run->budget, &device);
        *status = write_record(run);
        if (json_array_size(run->rates) == 0) {
            fprintf(
                stderr,
                "sstar control-path: none of the ways asked for is possible here: posting directly "
                "takes queue pairs in a multiple of the callers (--qps, --callers), and inline "
                "data ends at the device's limit (sstar devices)\n");
            *status = EXIT_FAILURE;
        }
    }
    path_close(&run->test);
    free(found);
    return err;
}

/* Unless it was said where, proxies have the last cores, and callers the others. */
static void place_proxies(struct sstar_world *world)
{
    struct sstar_config *config = &world->config;
    int cpu = CPU_SETSIZE, left = config->proxy_threads > 0 ? config->proxy_threads : 1;
    if (config->proxy_cpus[0] || CPU_COUNT(&world->allowed) < 2)
        return;
    for (size_t used = 0; left > 0 && cpu-- > 0;)
        if (CPU_ISSET(cpu, &world->allowed)) {
            used += (size_t)snprintf(config->proxy_cpus + used, sizeof(config->proxy_cpus) - used,
                                     "%s%d", used ? "," : "", cpu);
            left--;
            if (used + 8 > sizeof(config->proxy_cpus))
                return;
        }
}

static int control_path_run(struct sstar_world *world, void *arguments, int *status)
{
    struct arguments *a = arguments;
    struct run run = {.arguments = a,
                      .test = {.world = world, .seconds = a->seconds},
                      .tells = sstar_rank(world) == 0,
                      .stages = json_array(),
                      .rates = json_array(),
                      .budget = json_array()};
    if (sstar_size(world) != 2 || sstar_node_count(world) != 2)
        return report_set(&world->report, -EINVAL,
                          "the control path is measured between 2 ranks on 2 nodes, not %d on %d",
                          sstar_size(world), sstar_node_count(world));
    if (a->common.config.proxy_threads < 1)
        a->common.config.proxy_threads = 1;
    for (int i = 0; i < a->sizes.n; i++)
        if (a->sizes.value[i] > (double)run.test.max_bytes)
            run.test.max_bytes = (uint64_t)a->sizes.value[i];
    place_proxies(world);
    int err = measure(&run, status);
    json_decref(run.stages);
    json_decref(run.rates);
    json_decref(run.budget);
    return err;
}

static int control_path_main(int argc, char **argv)
{
    struct arguments a = {.paths = {{0, 1}, 2},
                          .posts = {{0, 1, 2}, 3},
                          .batches = {{1, 32}, 2},
                          .in_line = {{1}, 1},
                          .signals = {{1, 64}, 2},
                          .qps = {{1}, 1},
                          .callers = {{1}, 1},
                          .sizes = {{8}, 1},
                          .seconds = 0.1};
    static const struct measurement measurement = {.line = {.settings = settings, .doc = doc},
                                                   .default_ranks = 2,
                                                   .across_nodes = true,
                                                   .run = control_path_run};
    return measurement_main(&measurement, &a, argc, argv);
}

const struct command command_control_path = {
    "control-path", control_path_main,
    "what building, ringing and completing cost, directly and by a proxy"};
