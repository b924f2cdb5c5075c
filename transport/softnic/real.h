/* SPDX-License-Identifier: MIT */
/*
 * Real numbers as they stand in settings: with a point. strtod reads them as the program's locale
 * has it, and the program is not ours: where that is a comma, "120,10,0.1" would begin with 120.1.
 */
#ifndef SOFTNIC_REAL_H
#define SOFTNIC_REAL_H

#include <locale.h>
#include <stdlib.h>

/* As strtod in the C locale. */
static inline double real_from(const char *text, char **end)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0)
        return strtod(text, end);
    double value = strtod_l(text, end, plain);
    freelocale(plain);
    return value;
}

#endif
