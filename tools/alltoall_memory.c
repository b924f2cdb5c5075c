/* SPDX-License-Identifier: MIT */
/* sstar alltoall --memory: what a world of any size would take for messages, without having one. */
#include "tools/alltoall.h"
#include "tools/strategies.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Files in memory, of sstar_alloc and softnic, that this process has open, some twice; peers' are
 * mapped only. */
static uint64_t files_held(void)
{
    enum { FILES_MOST = 256 };
    uint64_t bytes = 0;
    ino_t seen[FILES_MOST];
    int n_seen = 0;
    DIR *fds = opendir("/proc/self/fd");
    const struct dirent *entry;
    while (fds && (entry = readdir(fds))) {
        char target[64] = "";
        struct stat st;
        ssize_t n = readlinkat(dirfd(fds), entry->d_name, target, sizeof target - 1);
        if (n <= 0 || strncmp(target, "/memfd:", 7) || fstat(atoi(entry->d_name), &st))
            continue;
        int i = 0;
        while (i < n_seen && seen[i] != st.st_ino)
            i++;
        if (i < n_seen || n_seen == FILES_MOST)
            continue;
        seen[n_seen++] = st.st_ino;
        bytes += (uint64_t)st.st_blocks * 512;
    }
    if (fds)
        closedir(fds);
    return bytes;
}

uint64_t memory_held(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    unsigned long long kib = 0;
    char line[128];
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "RssAnon: %llu", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return files_held() + kib * 1024;
}

static const struct column columns[] = {
    {"strategy", "strategy", "%s", 8},
    {"flush_bytes", "buffer(B)", "%llu", 10},
    {"memory_mb", "MB/rank", "%.2f", 10},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

int alltoall_memory(struct sstar_world *world, const struct alltoall_arguments *a)
{
    const struct sstar_wire *wire = &a->common.config.wire;
    struct sstar_cost cost = {
        .alpha_us = wire->alpha_us, .gap_us = wire->gap_us, .beta_gbps = wire->beta_gbps};
    struct sstar_aggregator_attr attr = {.item_bytes = a->message_bytes,
                                         .flush_bytes = a->flush_bytes ? a->flush_bytes
                                                                       : flush_bytes_of(&cost),
                                         .max_age_us = a->max_age_us,
                                         .flush = a->flush,
                                         .hops = a->hops};
    json_t *report = record_new(world, "alltoall-memory"), *rows = json_array();
    printf(
        "# sstar alltoall: %d ranks, %d per node, %u B per message: bytes for messages under way "
        "of the rank that needs most\n",
        a->memory_ranks, a->memory_per_node, a->message_bytes);
    table_head(stdout, columns, COLUMNS);
    for (int s = 0; s < SSTAR_STRATEGIES; s++) {
        uint64_t bytes = 0;
        attr.strategy = (enum sstar_strategy)s;
        if (!a->strategies[s])
            continue;
        int err = sstar_aggregator_memory(&attr, a->memory_ranks, a->memory_per_node, &bytes);
        if (err) {
            fprintf(stderr, "sstar alltoall: no figure for these: %s\n", strerror(-err));
            json_decref(rows);
            json_decref(report);
            return EXIT_FAILURE;
        }
        json_t *row = json_object();
        record_text(row, "strategy", sstar_strategy_name(attr.strategy));
        record_count(row, "flush_bytes", attr.flush_bytes);
        record_count(row, "memory_bytes", bytes);
        record_number(row, "memory_mb", (double)bytes * 1e-6);
        table_row(stdout, columns, COLUMNS, row);
        json_array_append_new(rows, row);
    }
    json_object_set_new(report, "alltoall_memory", rows);
    int status = record_write_json(report, a->common.json);
    status = record_write_csv(report, "alltoall_memory", a->common.csv) || status;
    json_decref(report);
    return status;
}
