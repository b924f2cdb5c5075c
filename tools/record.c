/* SPDX-License-Identifier: MIT */
/* One record: the table on stdout, the JSON file, the CSV file. */
#include "tools/record.h"
#include "tools/tool.h"
#include "transport/world.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* 15 digits give a decimal number of that many or fewer back unchanged. */
enum { DIGITS = 15, MAX_CELL = 512, MAX_LINE = 2048 };

/* ---- the table --------------------------------------------------------------------------------
 */

/* Appends one cell, padded; a line that is too long is cut. */
static void add_cell(char *line, int width, const char *text)
{
    size_t used = strlen(line);
    snprintf(line + used, MAX_LINE - used, " %*s", width, text);
}

static void put_line(FILE *out, char *line)
{
    size_t used = strlen(line);
    while (used && line[used - 1] == ' ')
        used--;
    fprintf(out, "%.*s\n", (int)used, line);
    fflush(out);
}

void table_head(FILE *out, const struct column *columns, int n)
{
    char line[MAX_LINE] = "#";
    for (int i = 0; i < n; i++)
        add_cell(line, columns[i].width, columns[i].heading);
    put_line(out, line);
}

/* printf of one number by a column's format, whichever of whole and real it asks for. */
static void format_number(char *cell, size_t size, const char *format, const json_t *value)
{
    size_t length = strlen(format);
    char kind = length ? format[length - 1] : 's';
    if (strchr("diuxX", kind)) {
        char wide[32];
        size_t start = strcspn(format, "lhjzdiuxX");
        snprintf(wide, sizeof(wide), "%.*sll%c", (int)start, format, kind);
        long long whole =
            json_is_integer(value) ? json_integer_value(value) : llround(json_real_value(value));
        snprintf(cell, size, wide, whole);
    } else if (strchr("fFeEgG", kind)) {
        snprintf(cell, size, format, json_number_value(value));
    } else if (json_is_integer(value)) {
        snprintf(cell, size, "%lld", (long long)json_integer_value(value));
    } else {
        snprintf(cell, size, "%.6g", json_real_value(value));
    }
}

static void format_cell(char *cell, size_t size, const char *format, const json_t *value)
{
    if (json_is_string(value))
        snprintf(cell, size, "%s", json_string_value(value));
    else if (json_is_boolean(value))
        snprintf(cell, size, "%s", json_is_true(value) ? "yes" : "no");
    else if (json_is_number(value))
        format_number(cell, size, format, value);
    else
        snprintf(cell, size, "-");
}

void table_row(FILE *out, const struct column *columns, int n, const json_t *row)
{
    char line[MAX_LINE] = " ";
    for (int i = 0; i < n; i++) {
        char cell[MAX_CELL];
        format_cell(cell, sizeof(cell), columns[i].format, json_object_get(row, columns[i].key));
        add_cell(line, columns[i].width, cell);
    }
    put_line(out, line);
}

/* ---- the record -------------------------------------------------------------------------------
 */

json_t *record_real(double value)
{
    if (!isfinite(value))
        return json_null();
    char text[32];
    snprintf(text, sizeof(text), "%.6g", value);
    return json_real(strtod(text, NULL));
}

json_t *record_string(const char *text)
{
    json_t *string = json_string(text);
    char *plain = string || !text ? NULL : malloc(4 * strlen(text) + 1), *at = plain;
    if (!plain)
        return string; /* NULL sets nothing */
    *at = '\0';
    for (; *text; text++)
        at += sprintf(at, (unsigned char)*text < 0x80 ? "%c" : "\\x%02x", (unsigned char)*text);
    string = json_string(plain);
    free(plain);
    return string;
}

static json_t *command_line(void)
{
    char text[4096] = "";
    size_t length = 0;
    FILE *file = fopen("/proc/self/cmdline", "re");
    if (file) {
        length = fread(text, 1, sizeof(text) - 1, file);
        fclose(file);
    }
    while (length && !text[length - 1])
        length--;
    for (size_t i = 0; i < length; i++)
        if (!text[i])
            text[i] = ' ';
    text[length] = '\0';
    return record_string(text);
}

static void add_device(json_t *record, struct sstar_world *world)
{
    struct sstar_device_info info;
    if (sstar_device_info(world, &info))
        return;
    json_object_set_new(record, "device", json_string(info.name));
    json_object_set_new(record, "device_class", json_string(info.device_class));
    json_object_set_new(record, "gid", json_string(info.gid));
    json_object_set_new(record, "gid_index", json_integer(info.gid_index));
    json_t *wire = json_object();
    json_object_set_new(wire, "alpha_us", record_real(info.wire.alpha_us));
    json_object_set_new(wire, "gap_us", record_real(info.wire.gap_us));
    json_object_set_new(wire, "beta_GBps", record_real(info.wire.beta_gbps));
    json_object_set_new(record, "wire", wire);
}

static void add_world(json_t *record, struct sstar_world *world)
{
    int per_node = world->config.ranks_per_node;
    for (int node = 0; !world->config.ranks_per_node && node < sstar_node_count(world); node++)
        if (sstar_local_size_of(world, node) > per_node)
            per_node = sstar_local_size_of(world, node);
    json_object_set_new(record, "ranks", json_integer(sstar_size(world)));
    json_object_set_new(record, "nodes", json_integer(sstar_node_count(world)));
    json_object_set_new(record, "ranks_per_node", json_integer(per_node));
    json_object_set_new(record, "launcher", json_string(world->config.launcher));
    add_device(record, world);
}

void record_number(json_t *row, const char *key, double value)
{
    json_object_set_new(row, key, record_real(value));
}

void record_count(json_t *row, const char *key, uint64_t value)
{
    json_object_set_new(row, key, json_integer((json_int_t)value));
}

void record_text(json_t *row, const char *key, const char *text)
{
    json_object_set_new(row, key, record_string(text));
}

json_t *record_new(struct sstar_world *world, const char *command)
{
    json_t *record = json_object();
    char host[65] = "", date[32];
    time_t now = time(NULL);
    struct tm utc;
    if (!strncmp(command, "sstar ", 6))
        command += 6;
    gethostname(host, sizeof(host) - 1);
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_object_set_new(record, "program", json_string("sstar"));
    json_object_set_new(record, "version", json_string(SSTAR_VERSION));
    json_object_set_new(record, "command", json_string(command));
    json_object_set_new(record, "command_line", command_line());
    json_object_set_new(record, "host", json_string(host));
    json_object_set_new(record, "date", json_string(date));
    if (world)
        add_world(record, world);
    return record;
}

/* ---- files ------------------------------------------------------------------------------------
 */

/* A file that appears under its name only when it is whole. Devices, pipes and stdout are written
 * as they are. */
struct output {
    FILE *file;
    char target[PATH_MAX], temporary[PATH_MAX + 16];
    bool renamed;
};

static FILE *real_stdout; /* where stdout is no longer */

int record_claim_stdout(const char *json, const char *csv)
{
    if ((!json || strcmp(json, "-")) && (!csv || strcmp(csv, "-")))
        return 0;
    fflush(stdout);
    int fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (fd < 0 || !(real_stdout = fdopen(fd, "w")) || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        return -errno;
    return 0;
}

static int output_open(struct output *o, const char *path)
{
    struct stat status;
    *o = (struct output){0};
    if (!strcmp(path, "-")) {
        o->file = real_stdout ? real_stdout : stdout;
        return 0;
    }
    bool exists = !stat(path, &status);
    if (exists && S_ISDIR(status.st_mode))
        return -EISDIR;
    if (exists && !S_ISREG(status.st_mode)) {
        o->file = fopen(path, "we");
        return o->file ? 0 : -errno;
    }
    if (exists && access(path, W_OK))
        return -errno;
    /* Through a link: the file it points to is replaced, not the link. */
    if (!(exists && realpath(path, o->target)) &&
        (size_t)snprintf(o->target, sizeof(o->target), "%s", path) >= sizeof(o->target))
        return -ENAMETOOLONG;
    snprintf(o->temporary, sizeof(o->temporary), "%s.%d", o->target, (int)getpid());
    int fd = open(o->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return -errno;
    o->file = fdopen(fd, "w");
    o->renamed = true;
    return 0;
}

static void output_drop(struct output *o)
{
    if (o->renamed)
        unlink(o->temporary);
}

static int output_close(struct output *o)
{
    errno = 0;
    bool bad = fflush(o->file) || ferror(o->file);
    int err = bad ? -(errno ? errno : EIO) : 0;
    if (o->file != stdout && o->file != real_stdout && fclose(o->file) && !err)
        err = -errno;
    if (!err && o->renamed && rename(o->temporary, o->target))
        err = -errno;
    if (err)
        output_drop(o);
    return err;
}

static int complain(const char *command, const char *option, const char *path, int err)
{
    fprintf(stderr,
            "sstar %s: cannot write %s %s: %s; give a file in a directory that may be written to\n",
            command ? command : "", option, path, strerror(-err));
    return 1;
}

static const char *command_of(const json_t *report)
{
    return json_string_value(json_object_get(report, "command"));
}

static int check_path(const char *command, const char *option, const char *path)
{
    struct output o;
    if (!path || !strcmp(path, "-"))
        return 0;
    struct stat status;
    if (!stat(path, &status) && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
        return 0; /* opening a pipe would wait for its reader */
    int err = output_open(&o, path);
    if (err)
        return complain(command, option, path, err);
    fclose(o.file);
    output_drop(&o);
    return 0;
}

int record_can_write(const char *command, const char *json, const char *csv)
{
    if (!strncmp(command, "sstar ", 6))
        command += 6;
    if (json && csv && !strcmp(json, csv)) {
        fprintf(stderr, "sstar %s: --json and --csv would both write to %s; give each its own\n",
                command, strcmp(json, "-") ? json : "standard output");
        return EXIT_USAGE;
    }
    return check_path(command, "--json", json) || check_path(command, "--csv", csv);
}

int record_write_json(const json_t *report, const char *path)
{
    struct output o;
    if (!path)
        return 0;
    int err = output_open(&o, path);
    if (!err) {
        bool bad = json_dumpf(report, o.file, JSON_INDENT(2) | JSON_REAL_PRECISION(DIGITS)) ||
                   fputc('\n', o.file) == EOF;
        err = output_close(&o);
        if (bad && !err)
            err = -EIO;
    }
    return err ? complain(command_of(report), "--json", path, err) : 0;
}

/* ---- CSV (RFC 4180, lines ended by \n) --------------------------------------------------------
 */

static void csv_text(FILE *out, const char *text)
{
    if (!text[strcspn(text, ",\"\r\n")]) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

static void csv_value(FILE *out, const json_t *value)
{
    if (!value || json_is_null(value))
        return;
    if (json_is_string(value)) {
        csv_text(out, json_string_value(value));
        return;
    }
    if (json_is_real(value)) {
        fprintf(out, "%.*g", DIGITS, json_real_value(value));
        return;
    }
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(DIGITS));
    if (text)
        csv_text(out, text);
    free(text);
}

/* All keys that any row has, in the order in which they first occur. */
static json_t *csv_columns(const json_t *rows)
{
    json_t *columns = json_object(), *row, *value;
    size_t i;
    const char *key;
    json_array_foreach(rows, i, row)
        json_object_foreach(row, key, value) if (!json_object_get(columns, key))
            json_object_set_new(columns, key, json_true());
    return columns;
}

static void csv_write(FILE *out, const json_t *rows)
{
    json_t *columns = csv_columns(rows), *row, *value;
    const char *key, *separator = "";
    size_t i;
    json_object_foreach(columns, key, value)
    {
        fputs(separator, out);
        csv_text(out, key);
        separator = ",";
    }
    fputc('\n', out);
    json_array_foreach(rows, i, row)
    {
        separator = "";
        json_object_foreach(columns, key, value)
        {
            fputs(separator, out);
            csv_value(out, json_object_get(row, key));
            separator = ",";
        }
        fputc('\n', out);
    }
    json_decref(columns);
}

int record_write_csv(const json_t *report, const char *key, const char *path)
{
    struct output o;
    if (!path)
        return 0;
    int err = output_open(&o, path);
    if (!err) {
        csv_write(o.file, json_object_get(report, key));
        err = output_close(&o);
    }
    return err ? complain(command_of(report), "--csv", path, err) : 0;
}

struct nodes_text nodes_text(int nodes)
{
    struct nodes_text words = {"1 node (--ranks-per-node R makes more)"};
    if (nodes != 1)
        snprintf(words.text, sizeof words.text, "%d nodes", nodes);
    return words;
}
