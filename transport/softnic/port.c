/* SPDX-License-Identifier: MIT */
/* Joining and leaving a port. */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATIENT_TRIES = 100000 }; /* 5 s */

/* A file that has just been made. */
static int start(struct ctx *ctx, int fd, struct meeting **out)
{
    int err = nic_file_fits(sizeof(struct meeting)) ? posix_fallocate(fd, 0, sizeof(struct meeting))
                                                    : EFBIG;
    if (err != 0) {
        nic_error(ctx, "no room for %zu bytes at %s: %s", sizeof(struct meeting), ctx->path,
                  strerror(err));
        return err;
    }
    struct meeting *meeting = nic_meeting_map(fd);
    if (meeting == NULL)
        return errno;
    meeting->version = SHARED_VERSION;
    meeting->size = sizeof *meeting;
    meeting->pid_namespace = nic_pid_namespace();
    memcpy(meeting->name, ctx->port_name, sizeof meeting->name);
    __atomic_store_n(&meeting->magic, MEETING_MAGIC, __ATOMIC_RELEASE);
    *out = meeting;
    return 0;
}

/* May we join those who are there? ESTALE: there are none any more. */
static int check_others(struct ctx *ctx, struct meeting *meeting, const struct stat *st)
{
    if (!nic_meeting_readable(meeting, st)) {
        nic_error(ctx, "%s was made by another version of softnic: end its users or remove it",
                  ctx->path);
        return EPROTO;
    }
    if (meeting->pid_namespace != nic_pid_namespace()) {
        nic_error(ctx,
                  "%s was made in another pid namespace (container), whose processes we cannot "
                  "see: open another port, or remove the file if nobody uses it",
                  ctx->path);
        return EPERM;
    }
    if (nic_meeting_clear_dead(meeting) == 0)
        return ESTALE;
    if (strncmp(meeting->name, ctx->port_name, sizeof meeting->name) != 0) {
        nic_error(ctx, "the names %s and %.63s fall on one GID: choose another", ctx->port_name,
                  meeting->name);
        return EEXIST;
    }
    return 0;
}

/* Map what is there, or make it. *first: nobody else is there. ESTALE: the file is to go. */
static int attach(struct ctx *ctx, int fd, struct meeting **out, bool *first)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return errno;
    if (st.st_uid != geteuid()) {
        nic_error(ctx, "%s belongs to user %u, not to us", ctx->path, (unsigned)st.st_uid);
        return EPERM;
    }
    *first = st.st_size == 0;
    if (*first)
        return start(ctx, fd, out);
    if (nic_meeting_left(fd, &st))
        return ESTALE;
    if (st.st_size != (off_t)sizeof(struct meeting)) {
        nic_error(ctx, "%s was made by another version of softnic: end its users or remove it",
                  ctx->path);
        return EPROTO;
    }
    struct meeting *meeting = nic_meeting_map(fd);
    if (meeting == NULL)
        return errno;
    int err = check_others(ctx, meeting, &st);
    if (err != 0) {
        munmap(meeting, sizeof *meeting);
        return err;
    }
    *out = meeting;
    return 0;
}

static int settle_wire(struct ctx *ctx, struct meeting *meeting, const struct softnic_attr *attr,
                       bool first)
{
    struct softnic_wire wire = {0}, there;
    bool given = attr->wire != NULL;
    if (given)
        wire = *attr->wire;
    else if (nic_wire_env(&wire, &given) != 0) {
        nic_error(ctx, "SOFTNIC_ALPHA_US, SOFTNIC_GAP_US and SOFTNIC_BETA_GBPS take a number that "
                       "is not negative");
        return EINVAL;
    }
    if (nic_wire_check(&wire) != 0) {
        nic_error(ctx, "alpha %g us, gap %g us, beta %g GB/s is no shape of a wire", wire.alpha_us,
                  wire.gap_us, wire.beta_gbps);
        return EINVAL;
    }
    if (first) {
        nic_wire_store(meeting, &wire);
        return 0;
    }
    nic_wire_load(meeting, &there);
    if (given && (there.alpha_us != wire.alpha_us || there.gap_us != wire.gap_us ||
                  there.beta_gbps != wire.beta_gbps)) {
        nic_error(ctx, "port %s is open with another wire (alpha %g us, gap %g us, beta %g GB/s)",
                  ctx->port_name, there.alpha_us, there.gap_us, there.beta_gbps);
        return EBUSY;
    }
    return 0;
}

static int settle_order(struct ctx *ctx, struct meeting *meeting, const struct softnic_attr *attr,
                        bool first)
{
    struct softnic_order order = {0}, there;
    bool given = attr->order != NULL;
    if (given)
        order = *attr->order;
    else if (nic_order_env(&order, &given) != 0) {
        nic_error(ctx, "SOFTNIC_ORDER takes strict, relaxed,SEED or relaxed-qps,SEED, and "
                       "SOFTNIC_PLACE early or on-time");
        return EINVAL;
    }
    if (first)
        nic_order_store(meeting, &order);
    nic_order_load(meeting, &there);
    if (given &&
        (there.relaxed != order.relaxed || there.on_time != order.on_time ||
         there.keep_qps != (order.relaxed && order.keep_qps) || there.seed != order.seed)) {
        nic_error(ctx, "port %s is open with another order (%s%s, seed %llu, placing %s)",
                  ctx->port_name, there.relaxed ? "relaxed" : "strict",
                  there.keep_qps ? "-qps" : "", (unsigned long long)there.seed,
                  there.on_time ? "on time" : "early");
        return EBUSY;
    }
    ctx->order = atomic_load(&meeting->mode) & PORT_ORDER;
    ctx->late.random = there.seed ^ (uint64_t)ctx->ip << 32;
    return 0;
}

static int take_slot(struct ctx *ctx, struct meeting *meeting)
{
    uint32_t generation = ++meeting->generation;
    for (uint32_t i = 0; i < MEMBERS_MAX; i++) {
        uint32_t slot = (generation + i) % MEMBERS_MAX;
        struct meeting_member *m = &meeting->member[slot];
        if (atomic_load(&m->live) != 0)
            continue;
        ctx->slot = slot;
        ctx->member->slot = slot;
        ctx->member->generation = generation;
        ctx->member->ip = ctx->ip;
        m->generation = generation;
        m->pid = ctx->pid;
        m->fd = ctx->member_fd;
        m->start_time = ctx->start_time;
        nic_own_joined(ctx);
        atomic_store(&m->live, 1);
        return 0;
    }
    nic_error(ctx, "port %s is open %d times, which is all it takes", ctx->port_name, MEMBERS_MAX);
    return EBUSY;
}

/* The file, locked and mapped. Where all are dead it is made anew, and not emptied: peers of the
 * dead may still have the old one mapped. */
static int enter(struct ctx *ctx, int *fd, struct meeting **meeting, bool *first)
{
    for (;;) {
        int err = nic_meeting_open(ctx->path, O_CREAT, LOCK_EX, PATIENT_TRIES, fd);
        if (err != 0) {
            const char *denied = access(ctx->path, F_OK) == 0
                                     ? " (it belongs to another user)"
                                     : " (nothing can be made there; it wants chmod 1777 /dev/shm)";
            nic_error(ctx, "cannot open %s: %s%s", ctx->path, strerror(err),
                      err == EACCES      ? denied
                      : err == EROFS     ? " (mount a tmpfs there that can be written to)"
                      : err == ETIMEDOUT ? " (is a process stopped that was just opening it?)"
                                         : "");
            return err;
        }
        err = attach(ctx, *fd, meeting, first);
        if (err == 0)
            return 0;
        if (err == ESTALE || *first)
            unlink(ctx->path);
        nic_port_unlock(*fd);
        if (err != ESTALE)
            return err;
    }
}

/* ctx->member exists and is told to the others here. */
int nic_port_join(struct ctx *ctx, const struct softnic_attr *attr)
{
    struct meeting *meeting = NULL;
    bool first = false;
    int fd;
    ctx->ip = nic_ip_of_name(ctx->port_name);
    nic_port_path(ctx->ip, ctx->path, sizeof ctx->path);
    nic_meeting_clear_others(ctx->path);
    int err = enter(ctx, &fd, &meeting, &first);
    if (err != 0)
        return err;
    err = settle_wire(ctx, meeting, attr, first);
    if (err == 0)
        err = settle_order(ctx, meeting, attr, first);
    if (err == 0)
        err = take_slot(ctx, meeting);
    if (err != 0) {
        if (first)
            unlink(ctx->path);
        munmap(meeting, sizeof *meeting);
        nic_port_unlock(fd);
        return err;
    }
    ctx->meeting = meeting;
    ctx->meeting_fd = fd;
    nic_meeting_hold(fd);
    flock(fd, LOCK_UN);
    return 0;
}

/* The meeting stays locked, if the lock was to be had. If not we go all the same; the next to come
 * clears up. */
static void unlist(struct ctx *ctx)
{
    bool locked = nic_meeting_lock(ctx->meeting_fd, LOCK_EX, PATIENT_TRIES) == 0;
    if (locked)
        nic_counters_keep_member(ctx->meeting, ctx->member);
    atomic_store(&ctx->meeting->member[ctx->slot].live, 0);
    atomic_store(&ctx->member->closed, 1);
    struct stat st;
    /* Unless somebody removed it, and the name is another file's now. */
    if (locked && nic_meeting_clear_dead(ctx->meeting) == 0 && fstat(ctx->meeting_fd, &st) == 0 &&
        st.st_nlink > 0)
        unlink(ctx->path);
}

void nic_port_unlist(struct ctx *ctx)
{
    unlist(ctx);
    flock(ctx->meeting_fd, LOCK_UN);
}

void nic_port_leave(struct ctx *ctx)
{
    unlist(ctx);
    nic_own_left(ctx);
    nic_own_put(ctx->own);
    ctx->own = NULL;
    ctx->member = NULL;
    munmap(ctx->meeting, sizeof *ctx->meeting);
    nic_port_unlock(ctx->meeting_fd);
}
