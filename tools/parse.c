/* SPDX-License-Identifier: MIT */
/* Numbers on a command line. The whole text must be used up, so that "8x" is not 8. */
#include "tools/tool.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

int parse_size(const char *text, uint64_t *value)
{
    if (!isdigit((unsigned char)text[0]))
        return -EINVAL;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno)
        return -EINVAL;
    int shift = 0;
    switch (*end) {
    case 'G':
    case 'g':
        shift += 10; /* fall through */
    case 'M':
    case 'm':
        shift += 10; /* fall through */
    case 'K':
    case 'k':
        shift += 10;
        end++;
    }
    if (*end || number > (UINT64_MAX >> shift))
        return -EINVAL;
    *value = (uint64_t)number << shift;
    return 0;
}

int parse_whole(const char *text, long low, long high, long *value)
{
    if (!isdigit((unsigned char)text[0]) && !(text[0] == '-' && isdigit((unsigned char)text[1])))
        return -EINVAL;
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (errno || *end || number < low || number > high)
        return -EINVAL;
    *value = number;
    return 0;
}

/* A real number at the start of the text, and where it ends. */
static int real_prefix(const char *text, double low, double high, double *value, const char **end)
{
    if (!isdigit((unsigned char)text[0]) && text[0] != '.' && text[0] != '-')
        return -EINVAL;
    char *stop;
    double number = strtod(text, &stop);
    if (stop == text || !isfinite(number) || number < low || number > high)
        return -EINVAL;
    *value = number;
    *end = stop;
    return 0;
}

int parse_real(const char *text, double low, double high, double *value)
{
    double number;
    const char *end;
    int err = real_prefix(text, low, high, &number, &end);
    if (err)
        return err;
    if (*end)
        return -EINVAL;
    *value = number;
    return 0;
}

int parse_wire(const char *text, struct sstar_wire *wire)
{
    double part[3];
    for (int i = 0; i < 3; i++) {
        int err = real_prefix(text, 0, 1e9, &part[i], &text);
        if (err)
            return err;
        if (*text != (i < 2 ? ',' : '\0'))
            return -EINVAL;
        if (i < 2)
            text++;
    }
    if (part[2] == 0 && (part[0] > 0 || part[1] > 0))
        return -EINVAL;
    *wire = (struct sstar_wire){part[0], part[1], part[2]};
    return 0;
}
