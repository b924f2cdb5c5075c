/* SPDX-License-Identifier: MIT */
/*
 * Who decides that something is an error says so once: log and the sentence of the last failure.
 */
#ifndef SSTAR_TRANSPORT_REPORT_H
#define SSTAR_TRANSPORT_REPORT_H

#include "transport/transport.h"
#include <stdarg.h>

/* Where lines go; made from the config, closed by log_close. Lines carry "sstar rank R host: ". */
struct log {
    enum sstar_log_level level;
    int fd;
    int rank;
    char host[64];
};
int log_open(struct log *log, const struct sstar_config *config, char *error, size_t error_size);
void log_close(struct log *log);
void log_line(struct log *log, enum sstar_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The sentence of a failure, filled by report_set. Returns `code` (a negative errno), so that a
 * caller can write: return report_set(&world->report, -EINVAL, "..."); */
struct report {
    char text[512];
};
/* Of every failure for want of file descriptors it says which limit to raise. */
int report_set(struct report *report, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void report_format(struct report *report, int code, const char *format, va_list arguments)
    __attribute__((format(printf, 3, 0)));

#endif
