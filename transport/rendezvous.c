/* SPDX-License-Identifier: MIT */
#include "transport/rendezvous.h"
#include "transport/address.h"
#include "transport/rendezvous_io.h"
#include "transport/wait.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* When it is said who is missing. */
static uint64_t speak_after_ns(const struct sstar_config *config)
{
    const double latest_s = 5, half_s = config->timeout_s / 2;
    return (uint64_t)((half_s < latest_s ? half_s : latest_s) * 1e9);
}

/* A connection that rank 0 has accepted. It becomes a rank when its hello is whole and right. */
struct guest {
    struct gathering *gathering;
    struct guest *next;
    int fd;
    int rank; /* -1: not known yet */
    size_t got;
    uint8_t bytes[sizeof(struct hello_prefix) + HELLO_BYTES_MAX];
};

struct gathering {
    const struct hello *mine;
    struct loop *loop;
    struct log *log;
    struct report *report;
    struct guest *guests;
    struct guest **seats; /* [size], by rank; ours stays NULL */
    struct hello *hellos; /* [size] */
    int listener;
    int present; /* with us */
    int failed;
};

static void guest_leave(struct guest *guest)
{
    struct gathering *g = guest->gathering;
    struct guest **at = &g->guests;
    while (*at != guest)
        at = &(*at)->next;
    *at = guest->next;
    loop_unwatch(g->loop, guest->fd);
    close(guest->fd);
    free(guest);
}

static void refuse(struct guest *guest, int code, const char *text)
{
    send_welcome(guest->fd, code, text, clock_ns() + 1000000000u);
    shutdown(guest->fd, SHUT_WR);
    guest_leave(guest);
}

/* A whole hello: take the seat, or be refused. */
static void guest_speaks(struct guest *guest, uint32_t bytes)
{
    struct gathering *g = guest->gathering;
    struct hello theirs = {0};
    memcpy(&theirs, guest->bytes + sizeof(struct hello_prefix),
           bytes < sizeof(theirs) ? bytes : sizeof(theirs));
    hello_swap(&theirs);
    hello_terminate(&theirs);
    char text[400];
    bool stranger = false;
    bool refused = hello_refused(g->mine, &theirs, &stranger, text, sizeof(text));
    if (!refused && (theirs.rank == 0 || g->seats[theirs.rank])) {
        const struct hello *first = &g->hellos[theirs.rank];
        refused = true;
        stranger = !theirs.token[0]; /* without tokens it may well be of another job */
        snprintf(text, sizeof(text),
                 "rank %d is there twice: host %s, pid %d and host %s, pid %d; are two jobs using "
                 "one port, or was a rank started twice?",
                 theirs.rank, first->host, first->pid, theirs.host, theirs.pid);
    }
    if (!refused) {
        guest->rank = theirs.rank;
        g->seats[theirs.rank] = guest;
        g->hellos[theirs.rank] = theirs;
        g->present++;
        return;
    }
    log_line(g->log, stranger ? SSTAR_LOG_WARN : SSTAR_LOG_INFO, "rendezvous: refused: %s", text);
    if (!stranger)
        g->failed = report_set(g->report, -EPROTO, "%s", text);
    refuse(guest, -EPROTO, text);
}

/* Drop a connection that ended or that does not speak our language. */
static void guest_drop(struct guest *guest, const char *why)
{
    struct gathering *g = guest->gathering;
    if (guest->rank >= 0) {
        const struct hello *h = &g->hellos[guest->rank];
        if (!g->failed)
            g->failed = report_set(g->report, -ECONNRESET,
                                   "rank %d (host %s, pid %d) died during the rendezvous",
                                   guest->rank, h->host, h->pid);
        g->seats[guest->rank] = NULL;
    } else {
        log_line(g->log, SSTAR_LOG_WARN, "rendezvous: dropped a connection that %s", why);
    }
    guest_leave(guest);
}

static void guest_ready(void *arg)
{
    struct guest *guest = arg;
    struct hello_prefix prefix = {0};
    for (;;) {
        size_t want = sizeof(prefix);
        if (guest->got >= sizeof(prefix)) {
            memcpy(&prefix, guest->bytes, sizeof(prefix));
            prefix.magic = le32toh(prefix.magic);
            prefix.bytes = le32toh(prefix.bytes);
            if (prefix.magic != RENDEZVOUS_MAGIC || prefix.bytes < HELLO_COMMON_BYTES ||
                prefix.bytes > HELLO_BYTES_MAX) {
                guest_drop(guest, "is no rank of sstar");
                return;
            }
            want += prefix.bytes;
        }
        if (guest->rank >= 0)
            want = sizeof(guest->bytes); /* nothing more is due: only its end can come */
        else if (guest->got == want) {
            guest_speaks(guest, prefix.bytes);
            return;
        }
        ssize_t n = read(guest->fd, guest->bytes + guest->got, want - guest->got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n <= 0 || guest->rank >= 0) {
            guest_drop(guest, "ended before it said which rank it is");
            return;
        }
        guest->got += (size_t)n;
    }
}

static void listener_ready(void *arg)
{
    struct gathering *g = arg;
    int fd = accept4(g->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE)
            g->failed = report_set(g->report, -errno,
                                   "rank 0 cannot accept another rank: too many open files; raise "
                                   "the limit (ulimit -n)");
        return;
    }
    address_tune(fd);
    struct guest *guest = calloc(1, sizeof(*guest));
    if (!guest) {
        close(fd);
        return;
    }
    *guest = (struct guest){.gathering = g, .next = g->guests, .fd = fd, .rank = -1};
    g->guests = guest;
    if (loop_watch(g->loop, fd, POLLIN, guest_ready, guest) < 0)
        guest_leave(guest);
}

/* "1, 3-5" */
static void missing_ranks(const struct gathering *g, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int r = 1; r < g->mine->size && used < size; r++) {
        if (g->seats[r])
            continue;
        int last = r;
        while (last + 1 < g->mine->size && !g->seats[last + 1])
            last++;
        int n = snprintf(text + used, size - used, last > r ? "%s%d-%d" : "%s%d", used ? ", " : "",
                         r, last);
        used += (size_t)n;
        r = last;
    }
}

static int gather(struct gathering *g, const struct sstar_config *config)
{
    uint64_t start = clock_ns(), deadline = start + timeout_ns(config->timeout_s);
    const uint64_t speak_ns = speak_after_ns(config);
    uint64_t speak = start + speak_ns;
    while (g->present < g->mine->size && !g->failed) {
        uint64_t now = clock_ns();
        if (now >= speak && now < deadline) {
            char missing[128];
            missing_ranks(g, missing, sizeof(missing));
            log_line(g->log, SSTAR_LOG_WARN,
                     "rendezvous: %d of %d ranks came to %s port %d within %g s; missing: rank %s",
                     g->present, g->mine->size, config->root_host, config->root_port,
                     (double)speak_ns / 1e9, missing);
            speak = UINT64_MAX;
        }
        if (now >= deadline) {
            char missing[128];
            missing_ranks(g, missing, sizeof(missing));
            return report_set(g->report, -ETIMEDOUT,
                              "rendezvous: %d of %d ranks came to %s port %d within %g s "
                              "(SSTAR_TIMEOUT); missing: rank %s",
                              g->present, g->mine->size, config->root_host, config->root_port,
                              config->timeout_s, missing);
        }
        int err = loop_sleep(g->loop, ((speak < deadline ? speak : deadline) - now) / 1000 + 1);
        if (err < 0)
            return report_set(g->report, err, "rendezvous: the event loop failed: %s",
                              strerror(-err));
    }
    return g->failed;
}

/* Tell every rank how it went, and who is who. */
static int answer(struct gathering *g, int code)
{
    uint64_t deadline = clock_ns() + 5000000000u;
    size_t table_bytes = (size_t)g->mine->size * sizeof(struct hello);
    struct hello *table = code == 0 ? malloc(table_bytes) : NULL;
    if (table) {
        memcpy(table, g->hellos, table_bytes);
        for (int r = 0; r < g->mine->size; r++)
            hello_swap(&table[r]);
    } else if (code == 0) {
        code = report_set(g->report, -ENOMEM, "rank 0 has no memory left for the table of ranks");
    }
    for (int r = 1; r < g->mine->size; r++) {
        if (!g->seats[r])
            continue;
        int fd = g->seats[r]->fd;
        int err = send_welcome(fd, code, g->report->text, deadline);
        if (err == 0 && table)
            err = write_all(fd, table, table_bytes, deadline);
        if (err < 0 && code == 0)
            code = report_set(g->report, -ECONNRESET,
                              "rank %d (host %s, pid %d) died during the rendezvous: %s", r,
                              g->hellos[r].host, g->hellos[r].pid, strerror(-err));
    }
    free(table);
    return code;
}

static int host_meeting(struct meeting *meeting, const struct hello *mine,
                        const struct sstar_config *config, struct loop *loop, struct log *log,
                        struct report *report)
{
    struct gathering g = {.mine = mine, .loop = loop, .log = log, .report = report, .present = 1};
    size_t size = (size_t)mine->size;
    int err = -ENOMEM;
    g.seats = calloc(size, sizeof(struct guest *));
    g.hellos = calloc(size, sizeof(*g.hellos));
    int *fds = calloc(size, sizeof(*fds));
    if (!g.seats || !g.hellos || !fds) {
        report_set(report, err, "rank 0 has no memory left for %zu ranks", size);
        goto free_tables;
    }
    g.hellos[0] = *mine;
    g.listener = err = address_listen(config, report);
    if (err < 0)
        goto free_tables;
    err = loop_watch(loop, g.listener, POLLIN, listener_ready, &g);
    if (err < 0)
        report_set(report, err, "rendezvous: cannot watch a socket: %s", strerror(-err));
    else
        err = answer(&g, gather(&g, config));
    loop_unwatch(loop, g.listener);
    close(g.listener);
    for (int r = 0; err == 0 && r < mine->size; r++) {
        fds[r] = -1;
        if (r > 0) { /* the socket outlives the guest */
            loop_unwatch(loop, g.seats[r]->fd);
            fds[r] = g.seats[r]->fd;
            g.seats[r]->fd = -1;
        }
    }
    while (g.guests)
        guest_leave(g.guests);
free_tables:
    free(g.seats);
    if (err == 0) {
        *meeting = (struct meeting){.hellos = g.hellos, .fds = fds, .fd_count = mine->size};
        return 0;
    }
    free(g.hellos);
    free(fds);
    return err;
}

/* Say hello on a fresh socket and wait for the answer. -ECONNRESET: closed without one. */
static int join_on(int fd, struct hello *table, const struct hello *mine, uint64_t deadline,
                   const struct sstar_config *config, struct report *report)
{
    struct hello hello = *mine;
    hello_swap(&hello);
    struct hello_prefix prefix = {.magic = htole32(RENDEZVOUS_MAGIC),
                                  .bytes = htole32(sizeof(hello))};
    struct welcome welcome;
    int err = write_all(fd, &prefix, sizeof(prefix), deadline);
    if (err == 0)
        err = write_all(fd, &hello, sizeof(hello), deadline);
    if (err == 0)
        err = receive_welcome(fd, &welcome, deadline);
    if (err == -EBADMSG)
        return report_set(report, err,
                          "rank %d: what answers at %s port %d is not rank 0 of sstar; set "
                          "MASTER_PORT to another value (rank 0 listens at MASTER_PORT + 1)",
                          config->rank, config->root_host, config->root_port);
    if (err < 0)
        return err;
    if (welcome.code < 0)
        return report_set(report, welcome.code == -ECONNRESET ? -EPROTO : welcome.code, "%s",
                          welcome.text);
    err = read_all(fd, table, (size_t)mine->size * sizeof(*table), deadline);
    for (int r = 0; err == 0 && r < mine->size; r++) {
        hello_swap(&table[r]);
        hello_terminate(&table[r]);
    }
    return err;
}

static void pause_us(unsigned us)
{
    struct timespec t = {.tv_nsec = (long)us * 1000};
    nanosleep(&t, NULL);
}

/* Connect until rank 0 is there and answers. The socket, or a negative errno with its sentence. */
static int join(struct hello *table, const struct hello *mine, const struct sstar_config *config,
                struct log *log, struct report *report)
{
    const uint64_t second = 1000000000u;
    uint64_t start = clock_ns(), deadline = start + timeout_ns(config->timeout_s);
    const uint64_t speak_ns = speak_after_ns(config);
    bool spoke = false;
    uint64_t first_closed = 0;
    unsigned delay_us = 5000;
    for (;;) {
        int err = address_connect(config, 2000, report);
        if (err == -ENXIO || err == -EINVAL)
            return err;
        if (err >= 0) {
            int fd = err;
            address_tune(fd);
            /* Rank 0 came later than we did, perhaps; its sentence about the missing is better. */
            err = join_on(fd, table, mine, deadline + 2 * second + timeout_ns(config->timeout_s),
                          config, report);
            if (err == 0)
                return fd;
            close(fd);
            if (err != -ECONNRESET && err != -EPIPE)
                return err == -ETIMEDOUT && !report->text[0]
                           ? report_set(report, err,
                                        "rank %d: rank 0 at %s port %d does not answer",
                                        config->rank, config->root_host, config->root_port)
                           : err;
            first_closed = first_closed ? first_closed : clock_ns();
        }
        uint64_t now = clock_ns();
        if (first_closed && now - first_closed > 2 * second)
            return report_set(report, -ECONNRESET,
                              "rank %d: rank 0 at %s port %d closed the connection during the "
                              "rendezvous (did it die?)",
                              config->rank, config->root_host, config->root_port);
        if (now >= deadline)
            return report_set(report, -ETIMEDOUT,
                              "rank %d: no rank 0 at %s port %d (host from %s) within %g s "
                              "(SSTAR_TIMEOUT): %s%s%s",
                              config->rank, config->root_host, config->root_port,
                              config->root_host_origin, config->timeout_s, strerror(-err),
                              config->socket_ifname[0] ? "; is that an address of the interface "
                                                         "SSTAR_SOCKET_IFNAME="
                                                       : "",
                              config->socket_ifname);
        if (!spoke && now - start >= speak_ns) {
            spoke = true;
            log_line(log, SSTAR_LOG_WARN, "rendezvous: no rank 0 at %s port %d within %g s: %s",
                     config->root_host, config->root_port, (double)speak_ns / 1e9, strerror(-err));
        }
        pause_us(delay_us);
        delay_us = delay_us < 100000 ? delay_us * 2 : delay_us;
    }
}

int rendezvous(struct meeting *meeting, const struct hello *mine, const struct sstar_config *config,
               struct loop *loop, struct log *log, struct report *report)
{
    if (mine->rank == 0)
        return host_meeting(meeting, mine, config, loop, log, report);
    struct hello *table = calloc((size_t)mine->size, sizeof(*table));
    int *fds = calloc(1, sizeof(*fds));
    int err = -ENOMEM;
    if (table && fds)
        err = join(table, mine, config, log, report);
    else
        report_set(report, err, "no memory left for the table of %d ranks", mine->size);
    if (err < 0) {
        free(table);
        free(fds);
        return err;
    }
    fds[0] = err;
    *meeting = (struct meeting){.hellos = table, .fds = fds, .fd_count = 1};
    return 0;
}

void meeting_free(struct meeting *meeting)
{
    for (int i = 0; i < meeting->fd_count; i++)
        if (meeting->fds[i] >= 0)
            close(meeting->fds[i]);
    free(meeting->fds);
    free(meeting->hellos);
    *meeting = (struct meeting){0};
}
