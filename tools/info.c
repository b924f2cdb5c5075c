/* SPDX-License-Identifier: MIT */
/* sstar info: every setting and where it came from, and what of this machine matters. */
#include "tools/devices.h"
#include "tools/record.h"
#include "tools/tool.h"
#include "transport/loop.h"
#include <errno.h>
#include <liburing.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

static const struct column setting_columns[] = {
    {"variable", "setting", "%s", -24},
    {"value", "value", "%s", -28},
    {"origin", "from", "%s", -24},
};
static const struct column machine_columns[] = {
    {"what", "machine", "%s", -24},
    {"value", "value", "%s", -28},
    {"remark", "remark", "%s", -1},
};

static json_t *settings_of(const struct sstar_config *config)
{
    json_t *list = json_array();
    for (int i = 0; i < sstar_config_count(); i++) {
        const char *variable, *origin;
        char value[512];
        sstar_config_describe(config, i, &variable, value, sizeof(value), &origin);
        json_t *row = json_object();
        json_object_set_new(row, "variable", json_string(variable));
        json_object_set_new(row, "value", record_string(value));
        json_object_set_new(row, "origin", json_string(origin));
        json_array_append_new(list, row);
    }
    return list;
}

static void add(json_t *list, const char *what, const char *value, const char *remark)
{
    json_t *row = json_object();
    json_object_set_new(row, "what", json_string(what));
    json_object_set_new(row, "value", record_string(value));
    json_object_set_new(row, "remark", json_string(remark));
    json_array_append_new(list, row);
}

static void size_text(char *text, size_t size, unsigned long long bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024 && unit < 6; unit++)
        value /= 1024;
    snprintf(text, size, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

/* The first line of a small file of the kernel; false if there is none. */
static bool read_line(const char *path, char *text, int size)
{
    FILE *file = fopen(path, "re");
    bool got = file && fgets(text, size, file);
    if (file)
        fclose(file);
    if (got)
        text[strcspn(text, "\n")] = '\0';
    return got;
}

static void add_launcher(json_t *list, const struct sstar_config *config)
{
    char remark[400];
    snprintf(remark, sizeof(remark), "rank %d of %d; rank 0 listens at %s:%d (from %s)",
             config->rank, config->size, config->root_host, config->root_port,
             config->root_host_origin[0] ? config->root_host_origin : "default");
    add(list, "launcher", config->launcher, config->size > 1 ? remark : "");
}

static void add_system(json_t *list)
{
    struct utsname name;
    if (!uname(&name))
        add(list, "kernel", name.release, name.machine);
    cpu_set_t set;
    char value[64], remark[128];
    int cores = sched_getaffinity(0, sizeof(set), &set) ? 0 : CPU_COUNT(&set);
    snprintf(value, sizeof(value), "%d", cores);
    snprintf(remark, sizeof(remark), "of %ld; with more ranks than cores, waiting yields at once",
             sysconf(_SC_NPROCESSORS_ONLN));
    add(list, "cores", value, remark);
}

static void add_loop(json_t *list)
{
    struct loop *loop;
    char remark[256] = "";
    int err = loop_open(&loop, LOOP_AUTOMATIC, NULL);
    if (err) {
        add(list, "event loop", "none", strerror(-err));
        return;
    }
    const char *backend = loop_backend(loop);
    if (!strcmp(backend, "io_uring")) {
        snprintf(remark, sizeof(remark), "the kernel allows it");
    } else {
        struct io_uring ring;
        err = io_uring_queue_init(4, &ring, 0);
        if (!err)
            io_uring_queue_exit(&ring);
        snprintf(remark, sizeof(remark),
                 "io_uring is refused (%s): a container's seccomp profile, "
                 "kernel.io_uring_disabled or an old kernel; all works without it",
                 err ? strerror(-err) : "a feature that it lacks");
    }
    add(list, "event loop", backend, remark);
    loop_close(loop);
}

static void add_limits(json_t *list)
{
    struct rlimit limit;
    char value[64];
    if (!getrlimit(RLIMIT_MEMLOCK, &limit)) {
        if (limit.rlim_cur == RLIM_INFINITY)
            snprintf(value, sizeof(value), "unlimited");
        else
            size_text(value, sizeof(value), limit.rlim_cur);
        add(list, "memlock limit", value,
            limit.rlim_cur == RLIM_INFINITY ? "" : "a real NIC registers no more (ulimit -l)");
    }
    if (!getrlimit(RLIMIT_NOFILE, &limit)) {
        snprintf(value, sizeof(value), "%llu", (unsigned long long)limit.rlim_cur);
        add(list, "open files limit", value, "");
    }
}

static void add_shared_memory(json_t *list)
{
    struct statvfs fs;
    char value[64];
    if (statvfs("/dev/shm", &fs)) {
        add(list, "/dev/shm free", "absent", "softnic's ports meet there; mount a tmpfs");
        return;
    }
    size_text(value, sizeof(value), (unsigned long long)fs.f_bavail * fs.f_frsize);
    add(list, "/dev/shm free", value,
        access("/dev/shm", W_OK) ? "may not be written to: softnic's ports cannot meet" : "");
}

static void add_memory(json_t *list)
{
    FILE *file = fopen("/proc/meminfo", "re");
    char line[128], value[64], remark[64] = "";
    unsigned long long number, available = 0, huge_free = 0, huge_kib = 0;
    while (file && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "MemAvailable: %llu", &number) == 1)
            available = number;
        else if (sscanf(line, "HugePages_Free: %llu", &number) == 1)
            huge_free = number;
        else if (sscanf(line, "Hugepagesize: %llu", &number) == 1)
            huge_kib = number;
    }
    if (file)
        fclose(file);
    size_text(value, sizeof(value), available * 1024);
    add(list, "memory available", value, "");
    snprintf(value, sizeof(value), "%llu", huge_free);
    size_text(remark, sizeof(remark), huge_kib * 1024);
    strcat(remark, " each");
    add(list, "huge pages free", value, remark);
}

static void add_kernel_rules(json_t *list)
{
    char value[64];
    if (!read_line("/proc/sys/kernel/yama/ptrace_scope", value, sizeof(value)))
        add(list, "ptrace_scope", "absent",
            "no Yama: processes of one user reach each other's memory");
    else
        add(list, "ptrace_scope", value,
            value[0] == '0' ? ""
            : value[0] == '1'
                ? "softnic asks for leave with PR_SET_PTRACER"
                : "softnic reaches only memory of sstar_alloc: sysctl kernel.yama.ptrace_scope=1");
    if (read_line("/proc/sys/kernel/io_uring_disabled", value, sizeof(value)))
        add(list, "io_uring_disabled", value, "");
}

static json_t *machine_of(const struct sstar_config *config)
{
    json_t *list = json_array();
    add_launcher(list, config);
    add_system(list);
    add_loop(list);
    add_limits(list);
    add_shared_memory(list);
    add_memory(list);
    add_kernel_rules(list);
    return list;
}

static void print_list(const json_t *list, const struct column *columns, int n)
{
    size_t i;
    json_t *row;
    table_head(stdout, columns, n);
    json_array_foreach(list, i, row) table_row(stdout, columns, n, row);
}

static void print_devices(const json_t *devices)
{
    size_t i;
    json_t *device;
    printf("# devices (more: sstar devices)\n");
    json_array_foreach(devices, i, device)
    {
        const char *why = json_string_value(json_object_get(device, "why"));
        printf("  %s (%s)%s%s\n", json_string_value(json_object_get(device, "device")),
               json_string_value(json_object_get(device, "class")), why ? ", chosen: " : "",
               why ? why : "");
    }
}

static const struct setting settings[] = {
    {"json", "FILE", "Write all of it as JSON (-: stdout)", .letter = 'j',
     SETS(struct common_options, json)},
    {0},
};
static const struct command_line line = {
    .settings = settings,
    .doc = "Show every setting with its value and where that came from, the launcher that was "
           "seen, and "
           "what of this machine matters to sstar.",
};

static int info_main(int argc, char **argv)
{
    struct common_options common;
    int status = common_init(&common);
    if (status)
        return status;
    if (command_line_parse(&line, NULL, &common, argc, argv, 0))
        return EXIT_USAGE;
    json_t *record = record_new(NULL, "info"), *settings = settings_of(&common.config);
    json_t *machine = machine_of(&common.config), *devices = devices_list(&common.config);
    json_object_set_new(record, "settings", settings);
    json_object_set_new(record, "machine", machine);
    json_object_set_new(record, "devices", devices);
    if (!common.json || strcmp(common.json, "-")) {
        printf("sstar %s\n", SSTAR_VERSION);
        print_list(settings, setting_columns, sizeof(setting_columns) / sizeof(struct column));
        print_list(machine, machine_columns, sizeof(machine_columns) / sizeof(struct column));
        print_devices(devices);
    }
    status = record_write_json(record, common.json);
    json_decref(record);
    return status;
}

const struct command command_info = {"info", info_main,
                                     "every setting and where it came from, and this machine"};
