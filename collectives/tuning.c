/* SPDX-License-Identifier: MIT */
/*
 * SSTAR_TUNING=FILE freezes what was chosen. The file is text, a line for each change of mind:
 *
 *     OPERATION RANKS NODES BYTES ALGORITHM SLICE
 *
 * (OPERATION+TYPE where float32 crosses nodes as a shorter type)
 *
 * says that vectors of at least BYTES, in a world of so many ranks on so many nodes, go by
 * ALGORITHM in slices of at most SLICE bytes; and
 *
 *     cores RANKS NODES CORES
 *
 * that in such a world the ranks of a node sum in groups as on so many cores, 1 for without groups:
 * the order of a sum depends on it. # begins a comment. Rank 0 reads it; what is not there is
 * measured and added.
 */
#include "collectives/collective_plan.h"
#include "transport/world.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_SIZE = 32, MOST_BYTES = 1 << 20, SLICE_LEAST = 8, SLICE_MOST = 1 << 26 };
static const char *operation_of(const struct sstar_collective *plan, char name[NAME_SIZE])
{
    bool is_short = plan->wire_type != SSTAR_FLOAT32;
    snprintf(name, NAME_SIZE, "%s%s%s", sstar_operation_name(plan->operation), is_short ? "+" : "",
             is_short ? sstar_type_name(plan->wire_type) : "");
    return name;
}

/* Is it a name that operation_of could give? */
static bool is_operation(const char *name)
{
    size_t length = strcspn(name, "+");
    for (int i = 0; i < SSTAR_OPERATIONS; i++) {
        const char *known = sstar_operation_name((enum sstar_operation)i);
        if (strlen(known) == length && strncmp(known, name, length) == 0)
            return true;
    }
    return false;
}

static enum sstar_algorithm algorithm_named(const char *name)
{
    int i = SSTAR_ALGORITHMS - 1;
    while (i > 0 && strcmp(name, sstar_algorithm_name((enum sstar_algorithm)i)) != 0)
        i--;
    return (enum sstar_algorithm)i;
}

/* 1: the line is about this plan, and was taken. */
typedef int take_fn(struct sstar_collective *plan, const char *path, int number, const char *line);

static bool is_about_cores(const char *line)
{
    char word[NAME_SIZE];
    return sscanf(line, "%31s", word) == 1 && strcmp(word, "cores") == 0;
}

static int take_cores(struct sstar_collective *plan, const char *path, int number, const char *line)
{
    int ranks, nodes, cores;
    if (!is_about_cores(line))
        return 0;
    char more[2];
    if (sscanf(line, " cores %d %d %d %1s", &ranks, &nodes, &cores, more) != 3 || cores < 1)
        return report_set(&plan->world->report, -EINVAL,
                          "SSTAR_TUNING: line %d of %s is not cores RANKS NODES CORES", number,
                          path);
    if (ranks != plan->map.size || nodes != plan->map.nodes)
        return 0;
    plan->cores = cores;
    return 1;
}

static int take_choice(struct sstar_collective *plan, const char *path, int number,
                       const char *line)
{
    char operation[NAME_SIZE], algorithm[24], ours[NAME_SIZE];
    int ranks, nodes;
    unsigned long long bytes;
    long slice;
    char more[2];
    if (line[strspn(line, " \t\r\n")] == '\0' || line[strspn(line, " \t")] == '#' ||
        is_about_cores(line))
        return 0;
    int n = sscanf(line, "%31s %d %d %llu %23s %ld %1s", operation, &ranks, &nodes, &bytes,
                   algorithm, &slice, more);
    enum sstar_algorithm named = n == 6 ? algorithm_named(algorithm) : SSTAR_AUTO;
    if (n != 6 || named == SSTAR_AUTO || !is_operation(operation) || slice < SLICE_LEAST ||
        slice > SLICE_MOST)
        return report_set(&plan->world->report, -EINVAL,
                          "SSTAR_TUNING: line %d of %s is not OPERATION RANKS NODES BYTES "
                          "ALGORITHM SLICE, with slices of %d to %d bytes",
                          number, path, SLICE_LEAST, SLICE_MOST);
    if (strcmp(operation, operation_of(plan, ours)) != 0 || ranks != plan->map.size ||
        nodes != plan->map.nodes)
        return 0;
    if (!plan->candidates[named])
        return report_set(&plan->world->report, -EINVAL,
                          "SSTAR_TUNING: line %d of %s: %s is not done by %s here", number, path,
                          operation, algorithm);
    struct plan_choice choice = {named, (uint32_t)slice < plan->slot_bytes ? (uint32_t)slice
                                                                           : plan->slot_bytes};
    for (unsigned c = plan_class_of(bytes); c < PLAN_SIZE_CLASSES; c++)
        plan->choices[c] = choice;
    return 1;
}

/* Not what would never end, or wait for somebody who writes: the others wait for us. */
static int open_file(struct sstar_collective *plan, const char *path, FILE **file)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *file = NULL;
    if (fd < 0 && errno == ENOENT)
        return 0;
    int err = fd < 0 || fstat(fd, &st) != 0 ? errno : 0;
    if (!err && (!S_ISREG(st.st_mode) || st.st_size > MOST_BYTES)) {
        close(fd);
        return report_set(
            &plan->world->report, -EINVAL,
            "SSTAR_TUNING: %s is not a file of at most %d bytes, as a tuning file is; "
            "name another",
            path, MOST_BYTES);
    }
    if (!err && !(*file = fdopen(fd, "r")))
        err = errno;
    if (!err)
        return 1;
    if (fd >= 0)
        close(fd);
    return report_set(&plan->world->report, -err, "SSTAR_TUNING: cannot read %s: %s", path,
                      strerror(err));
}

static int each_line(struct sstar_collective *plan, take_fn *take)
{
    const char *path = plan->world->config.tuning;
    FILE *file;
    int opened = *path ? open_file(plan, path, &file) : 0;
    if (opened <= 0)
        return opened;
    char *line = NULL; /* a comment may be of any length */
    size_t room = 0;
    int found = 0, taken = 0;
    for (int number = 1; taken >= 0 && getline(&line, &room, file) >= 0; number++) {
        taken = take(plan, path, number, line);
        found |= taken > 0;
    }
    if (taken >= 0 && ferror(file))
        taken = report_set(&plan->world->report, errno ? -errno : -EIO,
                           "SSTAR_TUNING: cannot read %s: %s", path, strerror(errno));
    free(line);
    fclose(file);
    return taken < 0 ? taken : found;
}

int tuning_read(struct sstar_collective *plan)
{
    return each_line(plan, take_choice);
}

int tuning_read_cores(struct sstar_collective *plan)
{
    return each_line(plan, take_cores);
}

static int end_writing(const struct sstar_collective *plan, FILE *file, bool failed)
{
    if (file && fclose(file) != 0)
        failed = true;
    return failed ? report_set(&plan->world->report, errno ? -errno : -EIO,
                               "SSTAR_TUNING: cannot write %s: %s", plan->world->config.tuning,
                               strerror(errno))
                  : 0;
}

int tuning_write_cores(const struct sstar_collective *plan)
{
    FILE *file = fopen(plan->world->config.tuning, "ae");
    bool failed = !file || fprintf(file, "cores %d %d %d\n", plan->map.size, plan->map.nodes,
                                   plan->cores) < 0;
    return end_writing(plan, file, failed);
}

int tuning_write(const struct sstar_collective *plan)
{
    const char *path = plan->world->config.tuning;
    if (!*path)
        return 0;
    FILE *file = fopen(path, "ae");
    bool failed = !file;
    char name[NAME_SIZE];
    struct plan_choice last = {0};
    for (unsigned c = 0; file && c < PLAN_SIZE_CLASSES; c++) {
        struct plan_choice it = plan->choices[c];
        if (it.algorithm == last.algorithm && it.slice_bytes == last.slice_bytes)
            continue;
        failed |=
            fprintf(file, "%s %d %d %zu %s %u\n", operation_of(plan, name), plan->map.size,
                    plan->map.nodes, plan_class_bytes(c),
                    sstar_algorithm_name((enum sstar_algorithm)it.algorithm), it.slice_bytes) < 0;
        last = it;
    }
    return end_writing(plan, file, failed);
}
