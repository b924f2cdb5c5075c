/* SPDX-License-Identifier: MIT */
/*
 * Small messages to random other ranks over MPI, for tools/compare-messages.
 *   storm_mpi single|gathered MESSAGES BYTES ROUNDS
 * single: each message an MPI_Isend, 64 under way, received from MPI_ANY_SOURCE with 64 receives
 * posted. gathered: packed by hand into 8 KiB buffers, two for each destination. Every message is
 * looked at, and the sums of what was sent and what came are compared. Prints for each round
 * messages per second and rank, in millions: from a barrier to the end of the slowest rank.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNDER_WAY = 64, BUFFER = 8192, PER_PEER = 2, BYTES_MOST = 4096, TAG = 1 };

static int rank, ranks;

static void fail(const char *what)
{
    fprintf(stderr, "storm_mpi: rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *get_memory(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory)
        fail("no memory");
    return memory;
}

struct storm {
    long messages, expected; /* sent by each, to come here */
    size_t bytes;
    uint16_t *to;
    long sent, came;
    uint64_t sum_sent, sum_came;
};

static void compose(struct storm *s, unsigned char *message)
{
    uint64_t word = (uint64_t)s->sent;
    memset(message, (int)word, s->bytes);
    memcpy(message, &word, sizeof word);
    s->sum_sent += word;
    s->sent++;
}

static void consume(struct storm *s, const unsigned char *message)
{
    uint64_t word;
    memcpy(&word, message, sizeof word);
    s->sum_came += word;
    s->came++;
}

/* ---- one by one ---------------------------------------------------------------------------------
 */

static void receive_any(unsigned char *buffer, size_t bytes, MPI_Request *request)
{
    MPI_Irecv(buffer, (int)bytes, MPI_BYTE, MPI_ANY_SOURCE, TAG, MPI_COMM_WORLD, request);
}

static void single(struct storm *s)
{
    unsigned char *out = get_memory(UNDER_WAY * s->bytes), *in = get_memory(UNDER_WAY * s->bytes);
    MPI_Request sends[UNDER_WAY], receives[UNDER_WAY];
    int free_slot[UNDER_WAY], index[UNDER_WAY], n, n_free = UNDER_WAY;
    long posted = 0;
    for (int i = 0; i < UNDER_WAY; i++) {
        sends[i] = receives[i] = MPI_REQUEST_NULL;
        free_slot[i] = i;
        if (posted < s->expected) {
            receive_any(in + (size_t)i * s->bytes, s->bytes, &receives[i]);
            posted++;
        }
    }
    while (s->came < s->expected || s->sent < s->messages || n_free < UNDER_WAY) {
        while (n_free && s->sent < s->messages) {
            int slot = free_slot[--n_free], to = s->to[s->sent];
            compose(s, out + (size_t)slot * s->bytes);
            MPI_Isend(out + (size_t)slot * s->bytes, (int)s->bytes, MPI_BYTE, to, TAG,
                      MPI_COMM_WORLD, &sends[slot]);
        }
        MPI_Testsome(UNDER_WAY, sends, &n, index, MPI_STATUSES_IGNORE);
        for (int i = 0; n != MPI_UNDEFINED && i < n; i++)
            free_slot[n_free++] = index[i];
        MPI_Testsome(UNDER_WAY, receives, &n, index, MPI_STATUSES_IGNORE);
        for (int i = 0; n != MPI_UNDEFINED && i < n; i++) {
            unsigned char *message = in + (size_t)index[i] * s->bytes;
            consume(s, message);
            if (posted++ < s->expected)
                receive_any(message, s->bytes, &receives[index[i]]);
        }
    }
    free(out);
    free(in);
}

/* ---- gathered by hand ---------------------------------------------------------------------------
 */

struct gathering {
    unsigned char *out, *in; /* PER_PEER buffers for each rank; as many receives as two each */
    MPI_Request *sends, *receives;
    MPI_Status *status;
    int *index, *turn, n_receives;
    size_t *fill;
};

static void take_arrivals(struct storm *s, struct gathering *g)
{
    int n, bytes;
    MPI_Testsome(g->n_receives, g->receives, &n, g->index, g->status);
    for (int i = 0; n != MPI_UNDEFINED && i < n; i++) {
        unsigned char *buffer = g->in + (size_t)g->index[i] * BUFFER;
        MPI_Get_count(&g->status[i], MPI_BYTE, &bytes);
        for (size_t at = 0; at < (size_t)bytes; at += s->bytes)
            consume(s, buffer + at);
        receive_any(buffer, BUFFER, &g->receives[g->index[i]]);
    }
}

static void flush(struct storm *s, struct gathering *g, int to)
{
    int slot = PER_PEER * to + g->turn[to], done = 0;
    MPI_Isend(g->out + (size_t)slot * BUFFER, (int)g->fill[to], MPI_BYTE, to, TAG, MPI_COMM_WORLD,
              &g->sends[slot]);
    g->turn[to] = (g->turn[to] + 1) % PER_PEER;
    g->fill[to] = 0;
    slot = PER_PEER * to + g->turn[to];
    while (!done) { /* until the other buffer is free */
        MPI_Test(&g->sends[slot], &done, MPI_STATUS_IGNORE);
        take_arrivals(s, g);
    }
}

static void open_gathering(struct gathering *g)
{
    size_t n = (size_t)ranks;
    g->n_receives = 2 * PER_PEER * ranks;
    g->out = get_memory(PER_PEER * n * BUFFER);
    g->in = get_memory((size_t)g->n_receives * BUFFER);
    g->sends = get_memory(PER_PEER * n * sizeof *g->sends);
    g->receives = get_memory((size_t)g->n_receives * sizeof *g->receives);
    g->status = get_memory((size_t)g->n_receives * sizeof *g->status);
    g->index = get_memory((size_t)g->n_receives * sizeof *g->index);
    g->turn = get_memory(n * sizeof *g->turn);
    g->fill = get_memory(n * sizeof *g->fill);
    for (size_t i = 0; i < PER_PEER * n; i++)
        g->sends[i] = MPI_REQUEST_NULL;
    for (int i = 0; i < g->n_receives; i++)
        receive_any(g->in + (size_t)i * BUFFER, BUFFER, &g->receives[i]);
}

static void close_gathering(struct gathering *g)
{
    MPI_Waitall(PER_PEER * ranks, g->sends, MPI_STATUSES_IGNORE);
    for (int i = 0; i < g->n_receives; i++) {
        MPI_Cancel(&g->receives[i]);
        MPI_Wait(&g->receives[i], MPI_STATUS_IGNORE);
    }
    free(g->out);
    free(g->in);
    free(g->sends);
    free(g->receives);
    free(g->status);
    free(g->index);
    free(g->turn);
    free(g->fill);
}

static void gathered(struct storm *s, struct gathering *g)
{
    size_t full = BUFFER / s->bytes * s->bytes;
    while (s->sent < s->messages) {
        int to = s->to[s->sent];
        compose(s, g->out + (size_t)(PER_PEER * to + g->turn[to]) * BUFFER + g->fill[to]);
        if ((g->fill[to] += s->bytes) == full)
            flush(s, g, to);
    }
    for (int to = 0; to < ranks; to++)
        if (g->fill[to])
            flush(s, g, to);
    while (s->came < s->expected)
        take_arrivals(s, g);
}

/* ---- rounds -------------------------------------------------------------------------------------
 */

static double one_round(struct storm *s, int by_hand)
{
    struct gathering g;
    double mine, slowest;
    uint64_t sums[2], all[2];
    s->sent = s->came = 0;
    s->sum_sent = s->sum_came = 0;
    if (by_hand)
        open_gathering(&g);
    MPI_Barrier(MPI_COMM_WORLD);
    mine = -MPI_Wtime();
    if (by_hand)
        gathered(s, &g);
    else
        single(s);
    mine += MPI_Wtime();
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (by_hand)
        close_gathering(&g);
    sums[0] = s->sum_sent;
    sums[1] = s->sum_came;
    MPI_Allreduce(sums, all, 2, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (all[0] != all[1])
        fail("the sums of what was sent and what came differ");
    return slowest;
}

/* Uniform over the other ranks. */
static void draw(struct storm *s)
{
    uint64_t state = 12345 + (uint64_t)rank;
    long *mine = get_memory((size_t)ranks * sizeof *mine);
    long *all = get_memory((size_t)ranks * sizeof *all);
    s->to = get_memory(((size_t)s->messages + 1) * sizeof *s->to);
    for (long i = 0; i < s->messages; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        int other = (int)((state >> 33) % (uint64_t)(ranks - 1));
        s->to[i] = (uint16_t)(other >= rank ? other + 1 : other);
        mine[s->to[i]]++;
    }
    MPI_Allreduce(mine, all, ranks, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    s->expected = all[rank];
    free(mine);
    free(all);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 5 || ranks < 2)
        fail("storm_mpi single|gathered MESSAGES BYTES ROUNDS, on at least 2 ranks");
    struct storm s = {.messages = strtol(argv[2], NULL, 0), .bytes = strtoul(argv[3], NULL, 0)};
    if (s.messages < 1 || s.bytes < sizeof(uint64_t) || s.bytes > BYTES_MOST)
        fail("messages of 8 to 4096 bytes");
    draw(&s);
    for (long left = strtol(argv[4], NULL, 0), r = left; r >= 0; r--) { /* the first: not counted */
        double seconds = one_round(&s, !strcmp(argv[1], "gathered"));
        if (!rank && r < left)
            printf("%.3f\n", (double)s.messages / seconds * 1e-6);
    }
    free(s.to);
    MPI_Finalize();
    return 0;
}
