/* SPDX-License-Identifier: MIT */
/*
 * The pcapng file (draft-ietf-opsawg-pcapng): a Section Header Block, an Interface Description
 * Block for each port, Enhanced Packet Blocks. All numbers in it are as this machine has them.
 */
#include "transport/softnic/capture.h"
#include "transport/softnic/environment.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SECTION = 0x0a0d0d0a,
    ORDER_MAGIC = 0x1a2b3c4d,
    INTERFACE = 1,
    PACKET = 6,
    OPTION_NAME = 2,
    OPTION_RESOLUTION = 9,
    OPTION_APPLICATION = 4,
    ETHERNET = 1,
    BUFFER_BYTES = 1 << 18,
    PACKET_HEAD = 28,
    FRAME_MAX = 4096 + 160,
    LOOK_BYTES = 128, /* more than a block that names an interface has */
};
#define LIMIT_BYTES (1ull << 30)

/* A block under construction. */
struct block {
    uint32_t used;
    uint8_t bytes[512];
};

static void put32(struct block *b, uint32_t value)
{
    memcpy(b->bytes + b->used, &value, sizeof value);
    b->used += (uint32_t)sizeof value;
}

static void put_option(struct block *b, uint32_t code, const void *value, uint32_t length)
{
    put32(b, code | length << 16);
    memset(b->bytes + b->used, 0, (length + 3) / 4 * 4);
    memcpy(b->bytes + b->used, value, length);
    b->used += (length + 3) / 4 * 4;
}

/* Its length stands at both ends. */
static void finish(struct block *b)
{
    put32(b, b->used + 4);
    memcpy(b->bytes + 4, &b->used, sizeof b->used);
}

static void fill_section(struct block *b)
{
    const char *who = "softnic " SSTAR_VERSION;
    b->used = 0;
    put32(b, SECTION);
    put32(b, 0);
    put32(b, ORDER_MAGIC);
    put32(b, 1);          /* version 1.0 */
    put32(b, UINT32_MAX); /* length of the section: not told */
    put32(b, UINT32_MAX);
    put_option(b, OPTION_APPLICATION, who, (uint32_t)strlen(who));
    put32(b, 0);
    finish(b);
}

static void fill_interface(struct block *b, const struct capture *c)
{
    const uint8_t nanoseconds = 9;
    b->used = 0;
    put32(b, INTERFACE);
    put32(b, 0);
    put32(b, ETHERNET);
    put32(b, c->snap);
    put_option(b, OPTION_NAME, c->ctx->port_name, (uint32_t)strlen(c->ctx->port_name));
    put_option(b, OPTION_RESOLUTION, &nanoseconds, 1);
    put32(b, 0);
    finish(b);
}

/* The ports of a run share the file. A signal is no reason to end a capture. */
static int lock(const struct capture *c)
{
    while (flock(c->fd, LOCK_EX) != 0)
        if (errno != EINTR)
            return errno;
    return 0;
}

static int append(int fd, const void *bytes, size_t size)
{
    ssize_t n = write(fd, bytes, size);
    return n == (ssize_t)size ? 0 : n < 0 ? errno : ENOSPC;
}

/* Whether the interface of this block is our port. */
static bool is_ours(const struct capture *c, const uint8_t *block, uint32_t length)
{
    size_t name = strlen(c->ctx->port_name);
    uint32_t option;
    if (length < 20 + name)
        return false;
    memcpy(&option, block + 16, sizeof option);
    return option == (OPTION_NAME | (uint32_t)name << 16) &&
           memcmp(block + 20, c->ctx->port_name, name) == 0;
}

/* The file from `at` on, through the buffer: a capture may be long, and others wait for the lock.
 */
static const uint8_t *look(struct capture *c, off_t at, uint32_t *available)
{
    off_t ahead = at - c->looked_at;
    if (ahead < 0 || ahead + LOOK_BYTES > c->looked_bytes) {
        ssize_t n = pread(c->fd, c->buffer, BUFFER_BYTES, at);
        c->looked_at = at;
        c->looked_bytes = n > 0 ? n : 0;
        ahead = 0;
    }
    *available = (uint32_t)(c->looked_bytes - ahead);
    return c->buffer + ahead;
}

/* Go through the blocks that are there, counting interfaces. EINVAL: it is another kind of file. */
static int find_interface(struct capture *c, uint32_t *count, bool *found)
{
    off_t at = 0;
    c->looked_at = c->looked_bytes = 0;
    for (;;) {
        uint32_t type, length, order, n;
        const uint8_t *block = look(c, at, &n);
        if (n == 0 && at > 0)
            return 0;
        if (n < 12)
            return EINVAL;
        memcpy(&type, block, sizeof type);
        memcpy(&length, block + 4, sizeof length);
        memcpy(&order, block + 8, sizeof order);
        if (length < 12 || length % 4 != 0 ||
            (at == 0 && (type != SECTION || order != ORDER_MAGIC)) || (at > 0 && type == SECTION))
            return EINVAL;
        if (type == INTERFACE && is_ours(c, block, length < n ? length : n)) {
            *found = true;
            return 0;
        }
        *count += type == INTERFACE;
        at += length;
    }
}

/* Locked. */
static int introduce(struct capture *c)
{
    struct stat st;
    struct block b;
    bool found = false;
    uint32_t count = 0;
    int err = fstat(c->fd, &st) == 0 ? 0 : errno;
    if (err == 0 && st.st_size == 0) {
        fill_section(&b);
        err = append(c->fd, b.bytes, b.used);
    } else if (err == 0) {
        err = find_interface(c, &count, &found);
    }
    if (err == 0 && !found) {
        fill_interface(&b, c);
        err = append(c->fd, b.bytes, b.used);
    }
    c->interface = count;
    return err;
}

static int start(struct capture *c)
{
    c->fd = open(c->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (c->fd < 0) {
        int err = errno;
        nic_error(c->ctx, "the capture %s cannot be opened: %s", c->path, strerror(err));
        return err;
    }
    int err = lock(c);
    if (err == 0)
        err = introduce(c);
    flock(c->fd, LOCK_UN);
    if (err == 0)
        return 0;
    nic_error(c->ctx, "the capture %s cannot be written: %s", c->path,
              err == EINVAL ? "what is there is no pcapng file of softnic's; remove it"
                            : strerror(err));
    close(c->fd);
    return err;
}

/* The table of CRC-32 as Ethernet has it: x^32 + x^26 + ..., reflected. */
static void fill_crc(uint32_t *table)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++)
            value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0);
        table[i] = value;
    }
}

/* 0, or EINVAL with a sentence. */
static int number_from(struct ctx *ctx, const char *variable, uint64_t otherwise, uint64_t *value)
{
    *value = otherwise;
    int err = nic_env_number(variable, 1, UINT64_MAX, value);
    if (err != 0)
        nic_error(ctx, "%s takes a number of bytes, not '%.80s'", variable, nic_env_text(variable));
    return err;
}

/* What is to be kept of a frame, and of the run. */
static int set_limits(struct capture *c, const struct softnic_attr *attr)
{
    uint64_t snap;
    int err = number_from(c->ctx, "SOFTNIC_CAPTURE_SNAP", FRAME_MAX, &snap);
    if (err == 0)
        err = number_from(c->ctx, "SOFTNIC_CAPTURE_LIMIT", LIMIT_BYTES, &c->limit);
    if (attr->capture_snap != 0)
        c->snap = attr->capture_snap;
    else
        c->snap = (uint32_t)(snap < FRAME_MAX ? snap : FRAME_MAX);
    return err;
}

int nic_capture_open(struct ctx *ctx, const struct softnic_attr *attr)
{
    const char *path = attr->capture != NULL ? attr->capture : getenv("SOFTNIC_CAPTURE");
    if (path == NULL || *path == '\0')
        return 0;
    struct capture *c = calloc(1, sizeof *c);
    if (c == NULL)
        return ENOMEM;
    int err = ENOMEM;
    c->buffer = malloc(BUFFER_BYTES);
    if (c->buffer == NULL)
        goto free_capture;
    c->ctx = ctx;
    c->path = strdup(path);
    if (c->path == NULL)
        goto free_buffer;
    err = set_limits(c, attr);
    if (err != 0)
        goto free_buffer;
    fill_crc(c->crc);
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    if (!ctx->clock_is_handed)
        c->epoch_ns =
            (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - (int64_t)ctx->now_ns(ctx->clock);
    err = start(c);
    if (err != 0)
        goto free_buffer;
    pthread_mutex_init(&c->lock, NULL);
    ctx->capture = c;
    return 0;
free_buffer:
    free(c->path);
    free(c->buffer);
free_capture:
    free(c);
    return err;
}

void nic_capture_close(struct ctx *ctx)
{
    struct capture *c = ctx->capture;
    if (c == NULL)
        return;
    if (!nic_after_fork(ctx))
        nic_capture_flush(ctx);
    close(c->fd);
    pthread_mutex_destroy(&c->lock);
    free(c->path);
    free(c->buffer);
    free(c);
    ctx->capture = NULL;
}

/* What we could not write whole goes away again, so that the file stays readable. */
static int append_locked(struct capture *c, uint64_t *size)
{
    struct stat st;
    int err = lock(c);
    if (err != 0)
        return err;
    err = fstat(c->fd, &st) == 0 ? 0 : errno;
    *size = (uint64_t)st.st_size + c->used;
    if (err == 0)
        err = append(c->fd, c->buffer, c->used);
    if (err != 0 && ftruncate(c->fd, st.st_size) != 0)
        err = errno;
    flock(c->fd, LOCK_UN);
    return err;
}

static void flush(struct capture *c)
{
    uint64_t size = 0;
    if (c->used == 0 || c->ended)
        return;
    int err = append_locked(c, &size);
    c->used = 0;
    c->ended = err != 0 || size > c->limit;
    if (err != 0)
        nic_say(c->ctx, "the capture ends here, the run goes on: %s: %s", c->path, strerror(err));
    else if (c->ended)
        nic_say(c->ctx,
                "the capture ends here, the run goes on: %s has reached %llu bytes "
                "(SOFTNIC_CAPTURE_LIMIT)",
                c->path, (unsigned long long)c->limit);
}

void nic_capture_flush(struct ctx *ctx)
{
    pthread_mutex_lock(&ctx->capture->lock);
    flush(ctx->capture);
    pthread_mutex_unlock(&ctx->capture->lock);
}

uint8_t *capture_begin(struct capture *c, uint64_t time_ns, uint32_t bytes, uint32_t *kept)
{
    if (c->used + PACKET_HEAD + FRAME_MAX + 8 > BUFFER_BYTES)
        flush(c);
    if (c->ended)
        return NULL;
    *kept = bytes < c->snap ? bytes : c->snap;
    uint64_t time = (uint64_t)((int64_t)time_ns + c->epoch_ns);
    uint32_t whole = PACKET_HEAD + (*kept + 3) / 4 * 4 + 4;
    const uint32_t head[] = {PACKET,         whole, c->interface, (uint32_t)(time >> 32),
                             (uint32_t)time, *kept, bytes};
    memcpy(c->buffer + c->used, head, sizeof head);
    return c->buffer + c->used + sizeof head;
}

void capture_end(struct capture *c, uint32_t kept)
{
    uint32_t padded = (kept + 3) / 4 * 4, whole = PACKET_HEAD + padded + 4;
    uint8_t *frame = c->buffer + c->used + PACKET_HEAD;
    memset(frame + kept, 0, padded - kept);
    memcpy(frame + padded, &whole, sizeof whole);
    c->used += whole;
}
