/* SPDX-License-Identifier: MIT */
/*
 * bale's conveyors doing what `sstar alltoall --no-check`, `sstar histogram` and `sstar
 * indexgather` do, for tools/compare-messages. Written against convey.h alone; bale itself is
 * built elsewhere. conveyors push|histogram|indexgather ROUTE ITEMS BYTES ROUNDS ROUTE: default
 * (what convey_new takes), simple (one hop, synchronous), tensor1 (one hop), tensor2 (two hops,
 * rows of half the ranks). Prints for each round items per second and rank, in millions, timed as
 * there: from a barrier to the end of the slowest rank.
 */
#include <convey.h>
#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TABLE = 10000, CAPACITY = 10000 }; /* bale's own default for both */

int xmpi_init(int argc, char *argv[]); /* starts MPI and tells the library who is who */

static int rank, ranks;

static void fail(const char *what)
{
    fprintf(stderr, "conveyors: rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static convey_t *new_conveyor(const char *route, uint64_t options)
{
    size_t row = ranks > 2 ? (size_t)ranks / 2 : 1;
    const char *text = getenv("CONVEY_BUFFER_SIZE");
    size_t capacity = text ? strtoul(text, NULL, 0) : CAPACITY;
    convey_t *c = NULL;
    if (!strcmp(route, "default"))
        c = convey_new(SIZE_MAX, (size_t)ranks, NULL, options);
    else if (!strcmp(route, "simple"))
        c = convey_new_simple(capacity, NULL, NULL, options);
    else if (!strcmp(route, "tensor1"))
        c = convey_new_tensor(capacity, 1, 1, 2, NULL, 0);
    else if (!strcmp(route, "tensor2"))
        c = convey_new_tensor(capacity, 2, row, 2, NULL, 0);
    if (!c)
        fail("no such conveyor");
    return c;
}

struct work {
    size_t items, bytes;
    uint16_t *to;
    uint32_t *slot; /* of the table there */
    uint64_t *table, *got;
};

static uint64_t first_word(const void *item, size_t bytes)
{
    uint64_t word = 0;
    memcpy(&word, item, bytes < sizeof word ? bytes : sizeof word);
    return word;
}

/* Sums of what was sent and what came are compared. */
static void push(const struct work *w, convey_t *c)
{
    unsigned char item[1024] = {0};
    uint64_t sums[2] = {0}, all[2];
    size_t i = 0;
    while (convey_advance(c, i == w->items) != convey_DONE) {
        for (; i < w->items; i++) {
            memcpy(item, &i, w->bytes < sizeof i ? w->bytes : sizeof i);
            if (convey_push(c, item, w->to[i]) != convey_OK)
                break;
            sums[0] += first_word(item, w->bytes);
        }
        const void *came;
        while ((came = convey_apull(c, NULL)))
            sums[1] += first_word(came, w->bytes);
    }
    MPI_Allreduce(sums, all, 2, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (all[0] != all[1])
        fail("the sums of what was sent and what came differ");
}

static void histogram(const struct work *w, convey_t *c)
{
    size_t i = 0;
    uint64_t before = 0, after = 0, all[2];
    for (size_t t = 0; t < TABLE; t++)
        before += w->table[t];
    while (convey_advance(c, i == w->items) != convey_DONE) {
        for (; i < w->items; i++) {
            uint64_t slot = w->slot[i];
            if (convey_push(c, &slot, w->to[i]) != convey_OK)
                break;
        }
        const uint64_t *slot;
        while ((slot = convey_apull(c, NULL)))
            w->table[*slot]++;
    }
    for (size_t t = 0; t < TABLE; t++)
        after += w->table[t];
    uint64_t counts[2] = {after - before, w->items};
    MPI_Allreduce(counts, all, 2, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (all[0] != all[1])
        fail("counts are missing");
}

struct packet {
    uint64_t number, value;
};

static void gather(const struct work *w, convey_t *questions, convey_t *answers)
{
    size_t i = 0;
    bool more;
    while (more = convey_advance(questions, i == w->items) != convey_DONE,
           (convey_advance(answers, !more) != convey_DONE) | more) {
        for (; i < w->items; i++) {
            struct packet p = {i, w->slot[i]};
            if (convey_push(questions, &p, w->to[i]) != convey_OK)
                break;
        }
        const struct packet *came;
        int64_t from;
        while ((came = convey_apull(questions, &from))) {
            struct packet p = {came->number, w->table[came->value]};
            if (convey_push(answers, &p, from) != convey_OK) {
                convey_unpull(questions);
                break;
            }
        }
        while ((came = convey_apull(answers, NULL)))
            w->got[came->number] = came->value;
    }
}

static double one_round(const struct work *w, const char *what, const char *route)
{
    bool gathering = !strcmp(what, "indexgather");
    convey_t *c = new_conveyor(route, gathering ? 0 : convey_opt_SCATTER);
    convey_t *answers = gathering ? new_conveyor(route, 0) : NULL;
    size_t bytes = gathering ? sizeof(struct packet) : w->bytes;
    convey_begin(c, bytes, 0);
    if (answers)
        convey_begin(answers, bytes, 0);
    for (size_t t = 0; gathering && t < TABLE; t++)
        w->table[t] = t * (uint64_t)ranks + (uint64_t)rank;
    MPI_Barrier(MPI_COMM_WORLD);
    double mine = -MPI_Wtime(), slowest;
    if (gathering)
        gather(w, c, answers);
    else if (!strcmp(what, "histogram"))
        histogram(w, c);
    else
        push(w, c);
    mine += MPI_Wtime();
    for (size_t i = 0; gathering && i < w->items; i++)
        if (w->got[i] != w->slot[i] * (uint64_t)ranks + w->to[i])
            fail("a wrong answer");
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (answers) {
        convey_reset(answers);
        convey_free(answers);
    }
    convey_reset(c);
    convey_free(c);
    return slowest;
}

int main(int argc, char **argv)
{
    xmpi_init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 6)
        fail("conveyors push|histogram|indexgather ROUTE ITEMS BYTES ROUNDS");
    struct work w = {.items = strtoul(argv[3], NULL, 0), .bytes = strtoul(argv[4], NULL, 0)};
    w.to = calloc(w.items + 1, sizeof *w.to);
    w.slot = calloc(w.items + 1, sizeof *w.slot);
    w.got = calloc(w.items + 1, sizeof *w.got);
    w.table = calloc(TABLE, sizeof *w.table);
    if (!w.to || !w.slot || !w.got || !w.table || w.bytes > 1024 || !w.bytes)
        fail("no memory, or a size that is none");
    uint64_t state = 1000003 + (uint64_t)rank;
    for (size_t i = 0; i < w.items; i++) {
        uint64_t index = (next_random(&state) >> 32) * (uint64_t)(TABLE * ranks) >> 32;
        w.to[i] = (uint16_t)(index % (uint64_t)ranks);
        w.slot[i] = (uint32_t)(index / (uint64_t)ranks);
    }
    for (long r = strtol(argv[5], NULL, 0); r >= 0; r--) { /* the first is not counted */
        double seconds = one_round(&w, argv[1], argv[2]);
        if (!rank && r < strtol(argv[5], NULL, 0))
            printf("%.3f\n", (double)w.items / seconds * 1e-6);
    }
    MPI_Finalize();
    return 0;
}
