/* SPDX-License-Identifier: MIT */
#include "transport/rendezvous_io.h"
#include "transport/launcher.h"
#include "transport/wait.h"
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Sleep until the socket is ready. 0 or -errno. */
static int wait_ready(int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now = clock_ns();
        if (now >= deadline_ns)
            return -ETIMEDOUT;
        uint64_t ms = (deadline_ns - now) / 1000000 + 1;
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, ms > 1000 ? 1000 : (int)ms);
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -errno;
    }
}

int write_all(int fd, const void *data, size_t bytes, uint64_t deadline_ns)
{
    const uint8_t *at = data;
    while (bytes > 0) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n >= 0) {
            at += n;
            bytes -= (size_t)n;
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return -errno;
        int err = wait_ready(fd, POLLOUT, deadline_ns);
        if (err < 0)
            return err;
    }
    return 0;
}

int read_all(int fd, void *data, size_t bytes, uint64_t deadline_ns)
{
    uint8_t *at = data;
    while (bytes > 0) {
        ssize_t n = read(fd, at, bytes);
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
            continue;
        }
        if (n == 0)
            return -ECONNRESET;
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return -errno;
        int err = wait_ready(fd, POLLIN, deadline_ns);
        if (err < 0)
            return err;
    }
    return 0;
}

int send_welcome(int fd, int code, const char *text, uint64_t deadline_ns)
{
    struct {
        struct hello_prefix prefix;
        struct welcome welcome;
    } message = {
        .prefix = {.magic = htole32(RENDEZVOUS_MAGIC), .bytes = htole32(sizeof(struct welcome))},
        .welcome = {.version = htole32(RENDEZVOUS_VERSION),
                    .code = (int32_t)htole32((uint32_t)code)}};
    if (code < 0)
        snprintf(message.welcome.text, sizeof(message.welcome.text), "%s", text);
    return write_all(fd, &message, sizeof(message), deadline_ns);
}

int receive_welcome(int fd, struct welcome *welcome, uint64_t deadline_ns)
{
    struct hello_prefix prefix;
    int err = read_all(fd, &prefix, sizeof(prefix), deadline_ns);
    if (err < 0)
        return err;
    if (le32toh(prefix.magic) != RENDEZVOUS_MAGIC || le32toh(prefix.bytes) != sizeof(*welcome))
        return -EBADMSG;
    err = read_all(fd, welcome, sizeof(*welcome), deadline_ns);
    if (err < 0)
        return err;
    welcome->version = le32toh(welcome->version);
    welcome->code = (int32_t)le32toh((uint32_t)welcome->code);
    welcome->text[sizeof(welcome->text) - 1] = '\0';
    return 0;
}

static void swap32(void *word)
{
    uint32_t v;
    memcpy(&v, word, sizeof(v));
    v = le32toh(v);
    memcpy(word, &v, sizeof(v));
}

void hello_swap(struct hello *hello)
{
    void *words[] = {&hello->version,        &hello->struct_size, &hello->size,
                     &hello->rank,           &hello->uid,         &hello->pid,
                     &hello->ranks_per_node, &hello->queue_pairs, &hello->port_per_rank,
                     &hello->reserved};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        swap32(words[i]);
    hello->pid_namespace = le64toh(hello->pid_namespace);
    for (int i = 0; i < 3; i++)
        hello->wire[i] = le64toh(hello->wire[i]);
    hello->order_relaxed = le64toh(hello->order_relaxed);
    hello->order_seed = le64toh(hello->order_seed);
}

void hello_terminate(struct hello *hello)
{
    hello->program[sizeof(hello->program) - 1] = '\0';
    hello->token[sizeof(hello->token) - 1] = '\0';
    hello->boot_id[sizeof(hello->boot_id) - 1] = '\0';
    hello->host[sizeof(hello->host) - 1] = '\0';
}

static void read_boot_id(char *text, size_t size)
{
    text[0] = '\0';
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = read(fd, text, size - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
}

void hello_fill(struct hello *hello, const struct sstar_config *config)
{
    memset(hello, 0, sizeof(*hello));
    hello->version = RENDEZVOUS_VERSION;
    hello->struct_size = sizeof(*hello);
    snprintf(hello->program, sizeof(hello->program), "%s", SSTAR_VERSION);
    hello->size = config->size;
    hello->rank = config->rank;
    snprintf(hello->token, sizeof(hello->token), "%s", config->token);
    read_boot_id(hello->boot_id, sizeof(hello->boot_id));
    gethostname(hello->host, sizeof(hello->host) - 1);
    struct stat s;
    hello->pid_namespace = stat("/proc/self/ns/pid", &s) == 0 ? s.st_ino : 0;
    hello->uid = (uint32_t)geteuid();
    hello->pid = getpid();
    hello->ranks_per_node = config->ranks_per_node;
    hello->queue_pairs = config->queue_pairs;
    hello->port_per_rank = config->port_per_rank;
    memcpy(&hello->wire[0], &config->wire.alpha_us, sizeof(uint64_t));
    memcpy(&hello->wire[1], &config->wire.gap_us, sizeof(uint64_t));
    memcpy(&hello->wire[2], &config->wire.beta_gbps, sizeof(uint64_t));
    hello->order_relaxed = config->order.relaxed | (uint64_t)config->order.keep_qps << 1;
    hello->order_seed = config->order.seed;
}

static void wire_text(const struct hello *hello, char *text, size_t size)
{
    double w[3];
    memcpy(w, hello->wire, sizeof(w));
    snprintf(text, size, "%g,%g,%g", w[0], w[1], w[2]);
}

/* Settings that must be the same everywhere. */
static bool settings_differ(const struct hello *a, const struct hello *b, char *text, size_t size)
{
    const char *variable;
    char mine[64], theirs[64];
    if (a->ranks_per_node != b->ranks_per_node) {
        variable = "SSTAR_RANKS_PER_NODE";
        snprintf(mine, sizeof(mine), "%d", a->ranks_per_node);
        snprintf(theirs, sizeof(theirs), "%d", b->ranks_per_node);
    } else if (memcmp(a->wire, b->wire, sizeof(a->wire)) != 0) {
        variable = "SSTAR_WIRE";
        wire_text(a, mine, sizeof(mine));
        wire_text(b, theirs, sizeof(theirs));
    } else if (a->order_relaxed != b->order_relaxed || a->order_seed != b->order_seed) {
        struct sstar_order ours = {a->order_relaxed != 0, a->order_relaxed == 3, a->order_seed};
        struct sstar_order others = {b->order_relaxed != 0, b->order_relaxed == 3, b->order_seed};
        variable = "SSTAR_ORDER";
        order_text(&ours, mine, sizeof(mine));
        order_text(&others, theirs, sizeof(theirs));
    } else if (a->port_per_rank != b->port_per_rank) {
        variable = "SSTAR_PORTS";
        snprintf(mine, sizeof(mine), "%s", a->port_per_rank ? "rank" : "node");
        snprintf(theirs, sizeof(theirs), "%s", b->port_per_rank ? "rank" : "node");
    } else if (a->queue_pairs != b->queue_pairs) {
        variable = "SSTAR_QP";
        snprintf(mine, sizeof(mine), "%d", a->queue_pairs);
        snprintf(theirs, sizeof(theirs), "%d", b->queue_pairs);
    } else {
        return false;
    }
    snprintf(text, size,
             "%s is %s for rank %d (host %s) and %s for rank %d (host %s); it must be the same "
             "for every rank",
             variable, theirs, b->rank, b->host, mine, a->rank, a->host);
    return true;
}

bool hello_refused(const struct hello *mine, const struct hello *theirs, bool *stranger, char *text,
                   size_t size)
{
    *stranger = false;
    if (strcmp(mine->token, theirs->token) != 0) {
        *stranger = true;
        snprintf(text, size,
                 "a rank %d of another job came to the port of this one (its token is not ours); "
                 "give each job a MASTER_PORT of its own, or one SSTAR_TOKEN to all of its ranks",
                 theirs->rank);
    } else if (theirs->version != mine->version || strcmp(theirs->program, mine->program) != 0) {
        snprintf(text, size,
                 "rank %d runs sstar %s (protocol %u) and rank %d runs sstar %s (protocol %u); "
                 "install the same version on every host",
                 theirs->rank, theirs->program, theirs->version, mine->rank, mine->program,
                 mine->version);
    } else if (theirs->struct_size != mine->struct_size) {
        snprintf(text, size,
                 "rank %d was built with another layout of the rendezvous (%u bytes, rank %d has "
                 "%u); install the same build on every host",
                 theirs->rank, theirs->struct_size, mine->rank, mine->struct_size);
    } else if (theirs->size != mine->size) {
        snprintf(text, size,
                 "rank %d (host %s, pid %d) believes in a world of %d ranks and rank %d in one of "
                 "%d; start all ranks with one launcher",
                 theirs->rank, theirs->host, theirs->pid, theirs->size, mine->rank, mine->size);
    } else if (theirs->rank < 0 || theirs->rank >= mine->size) {
        snprintf(text, size, "host %s, pid %d says that it is rank %d; there are %d ranks",
                 theirs->host, theirs->pid, theirs->rank, mine->size);
    } else {
        return settings_differ(mine, theirs, text, size);
    }
    return true;
}
