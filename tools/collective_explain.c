/* SPDX-License-Identifier: MIT */
/* --explain: what each algorithm should take and did take, and from where on auto takes which. */
#include "tools/collective.h"
#include "tools/record.h"

#include <stdio.h>
#include <string.h>

static const struct column columns[] = {
    {"size_bytes", "size(B)", "%d", 12},
    {"algorithm", "algorithm", "%s", 21},
    {"predicted_us", "predicted", "%.2f", 11},
    {"alpha_us", "alpha", "%.2f", 10},
    {"gap_us", "g", "%.2f", 10},
    {"beta_us", "beta", "%.2f", 11},
    {"work_us", "gamma, o", "%.2f", 10},
    {"time_us", "time(us)", "%.2f", 11},
    {"ratio", "time/price", "%.3f", 11},
    {"note", "", "%s", 5},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

static bool is_auto(const json_t *row)
{
    const char *asked = json_string_value(json_object_get(row, "asked"));
    return asked && strcmp(asked, "auto") == 0;
}

static json_int_t size_of(const json_t *row)
{
    return json_integer_value(json_object_get(row, "size_bytes"));
}

static void print_row(const json_t *row, const char *note)
{
    json_t *line = json_copy((json_t *)row);
    double price = json_number_value(json_object_get(row, "predicted_us"));
    double us = json_number_value(json_object_get(row, "time_us"));
    if (price > 0)
        json_object_set_new(line, "ratio", json_real(us / price));
    json_object_set_new(line, "note", json_string(note));
    table_row(stdout, columns, N_COLUMNS, line);
    json_decref(line);
}

/* All algorithms at one size, as measured out of place, then auto. */
static void print_size(const json_t *rows, json_int_t bytes)
{
    for (int autos = 0; autos < 2; autos++)
        for (size_t i = 0; i < json_array_size(rows); i++) {
            const json_t *row = json_array_get(rows, i);
            if (size_of(row) == bytes && !json_is_true(json_object_get(row, "in_place")) &&
                is_auto(row) == autos)
                print_row(row, autos ? "auto" : "");
        }
}

static void print_crossovers(const struct sstar_collective *chosen,
                             const struct collective_arguments *a, size_t element_bytes,
                             enum sstar_type type)
{
    enum sstar_algorithm last = SSTAR_AUTO;
    printf("# auto takes:");
    for (uint64_t bytes = a->begin_bytes; bytes <= a->end_bytes; bytes += bytes / 8 + 1) {
        enum sstar_algorithm it = sstar_collective_choice(chosen, bytes / element_bytes, type);
        if (it != last)
            printf("%s %s from %llu B", last == SSTAR_AUTO ? "" : ",", sstar_algorithm_name(it),
                   (unsigned long long)bytes);
        last = it;
    }
    printf("\n");
}

void collective_explain(const json_t *rows, const struct sstar_collective *chosen,
                        const struct collective_arguments *arguments, int ranks,
                        enum sstar_type type)
{
    bool blocks =
        arguments->operation == SSTAR_ALL_GATHER || arguments->operation == SSTAR_REDUCE_SCATTER;
    printf("#\n# prices, and what they are made of, beside the times; all in us\n");
    table_head(stdout, columns, N_COLUMNS);
    json_int_t last = -1;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (!is_auto(row) || size_of(row) <= last)
            continue;
        last = size_of(row);
        print_size(rows, last);
    }
    print_crossovers(chosen, arguments, sstar_type_bytes(type) * (blocks ? (size_t)ranks : 1),
                     type);
}
