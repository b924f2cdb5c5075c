/* SPDX-License-Identifier: MIT */
/*
 * Log lines and the sentence of the last failure. A line is one write(), so lines of several ranks
 * do not mix.
 */
#include "transport/report.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Our host's name up to the first dot. */
static void short_host_name(char *host, size_t size)
{
    if (gethostname(host, size) < 0)
        snprintf(host, size, "unknown");
    host[size - 1] = '\0';
    host[strcspn(host, ".")] = '\0';
}

/* %h host, %p pid, %r rank, %% itself; any other %x stays as it is. False if it does not fit. */
static bool expand_path(const char *pattern, const struct log *log, char *path, size_t size)
{
    size_t used = 0;
    for (const char *p = pattern; *p; p++) {
        int n;
        if (p[0] == '%' && p[1] == 'h')
            n = snprintf(path + used, size - used, "%s", log->host);
        else if (p[0] == '%' && p[1] == 'p')
            n = snprintf(path + used, size - used, "%ld", (long)getpid());
        else if (p[0] == '%' && p[1] == 'r')
            n = snprintf(path + used, size - used, "%d", log->rank);
        else
            n = snprintf(path + used, size - used, "%c", *p);
        if (*p == '%' && p[1] != '\0' && strchr("hpr%", p[1]))
            p++;
        used += (size_t)n;
        if (used >= size)
            return false;
    }
    path[used] = '\0';
    return true;
}

int log_open(struct log *log, const struct sstar_config *config, char *error, size_t error_size)
{
    struct log new_log = {.level = config->log_level, .fd = STDERR_FILENO, .rank = config->rank};
    short_host_name(new_log.host, sizeof(new_log.host));
    if (config->log_file[0]) {
        char path[512];
        if (!expand_path(config->log_file, &new_log, path, sizeof(path))) {
            snprintf(error, error_size, "SSTAR_LOG_FILE: the path is too long once expanded: %s",
                     config->log_file);
            return -ENAMETOOLONG;
        }
        new_log.fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (new_log.fd < 0) {
            int code = errno;
            snprintf(error, error_size, "SSTAR_LOG_FILE: cannot open %s: %s", path, strerror(code));
            return -code;
        }
    }
    *log = new_log;
    return 0;
}

void log_close(struct log *log)
{
    if (log->fd > STDERR_FILENO)
        close(log->fd);
    log->fd = -1;
    log->level = SSTAR_LOG_NONE;
}

void log_line(struct log *log, enum sstar_log_level level, const char *format, ...)
{
    if (level > log->level || log->fd < 0)
        return;
    char line[1024];
    int used = snprintf(line, sizeof(line), "sstar rank %d %s: ", log->rank, log->host);
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line + used, sizeof(line) - (size_t)used - 1, format, arguments);
    va_end(arguments);
    if (n < 0)
        return;
    used += n;
    if (used > (int)sizeof(line) - 2)
        used = (int)sizeof(line) - 2;
    line[used++] = '\n';
    ssize_t written = write(log->fd, line, (size_t)used);
    (void)written; /* a log that cannot be written is nothing that anybody could be told */
}

void report_format(struct report *report, int code, const char *format, va_list arguments)
{
    static const char remedy[] = "raise the limit of open files (ulimit -n)";
    vsnprintf(report->text, sizeof(report->text), format, arguments);
    if ((code == -EMFILE || code == -ENFILE) && !strstr(report->text, "ulimit -n")) {
        size_t used = strlen(report->text);
        snprintf(report->text + used, sizeof(report->text) - used, "; %s", remedy);
    }
}

int report_set(struct report *report, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    report_format(report, code, format, arguments);
    va_end(arguments);
    return code;
}
