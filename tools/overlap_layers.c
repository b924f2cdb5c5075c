/* SPDX-License-Identifier: MIT */
/* Reads lists of layers. Whatever is not one is refused with the line and what was expected. */
#include "tools/overlap.h"
#include "tools/text_file.h"
#include "tools/tool.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS_MOST = 1 << 16 };
static const char *const headings[] = {"layer,parameters", "layer,parameters,flops",
                                       "layer,parameters,microseconds"};
enum heading { PLAIN, FLOPS, MICROSECONDS, HEADINGS };

static int heading_of(const struct text_file *f, enum heading *heading)
{
    for (int i = 0; i < HEADINGS; i++)
        if (!strcmp(f->text, headings[i])) {
            *heading = (enum heading)i;
            return 0;
        }
    return text_refuse(f, -EINVAL, "the first line must be '%s', '%s' or '%s'", headings[PLAIN],
                       headings[FLOPS], headings[MICROSECONDS]);
}

static int layer_line(struct text_file *f, enum heading heading, struct layers *layers)
{
    char *fields[3];
    int due = heading == PLAIN ? 2 : 3, n = text_fields(f->text, fields, 3);
    struct layer layer;
    if (text_check_end(f))
        return -EINVAL;
    if (n != due)
        return text_refuse(f, -EINVAL, "%d fields, but the first line has %d", n, due);
    if (parse_real(fields[1], 0, 1e13, &layer.parameters))
        return text_refuse(f, -EINVAL, "parameters are '%.40s'; it is a number from 0 to 1e13",
                           fields[1]);
    layer.weight = layer.parameters;
    if (due == 3 && parse_real(fields[2], 0, 1e18, &layer.weight))
        return text_refuse(f, -EINVAL, "'%.40s' is no number from 0 to 1e18", fields[2]);
    if (layers->n == LAYERS_MOST)
        return text_refuse(f, -EINVAL, "more than %d layers", LAYERS_MOST);
    struct layer *more = realloc(layers->layers, ((size_t)layers->n + 1) * sizeof *layers->layers);
    if (!more)
        return text_refuse(f, -ENOMEM, "no memory for %d layers", layers->n);
    layers->layers = more;
    layers->layers[layers->n++] = layer;
    return 0;
}

static int all_lines(struct text_file *f, struct layers *layers, enum heading *heading)
{
    bool headed = false;
    int more, err = 0;
    while (!err && (more = text_next(f)) != 0) {
        if (more < 0)
            return more;
        if (f->bytes == 0 || f->text[0] == '#')
            continue;
        err = headed ? layer_line(f, *heading, layers) : heading_of(f, heading);
        headed = true;
    }
    return err;
}

/* Weights become shares. */
static int sum_up(const struct text_file *f, struct layers *layers, enum heading heading)
{
    double weight = 0;
    for (int i = 0; i < layers->n; i++) {
        layers->parameters += layers->layers[i].parameters;
        weight += layers->layers[i].weight;
    }
    if (layers->parameters < 1 || weight <= 0)
        return text_refuse(f, -EINVAL, "it holds no layer with parameters and something to do");
    for (int i = 0; i < layers->n; i++)
        layers->layers[i].weight /= weight;
    layers->microseconds = heading == MICROSECONDS ? weight : 0;
    return 0;
}

int layers_read(const char *path, struct layers *out, char *error, size_t error_size)
{
    struct text_file file;
    struct layers layers = {0};
    enum heading heading = PLAIN;
    int err = text_open(&file, path, "layer", error, error_size);
    if (err)
        return err;
    err = all_lines(&file, &layers, &heading);
    if (!err)
        err = sum_up(&file, &layers, heading);
    text_close(&file);
    if (err)
        layers_free(&layers);
    else
        *out = layers;
    return err;
}

void layers_free(struct layers *layers)
{
    free(layers->layers);
    *layers = (struct layers){0};
}
