/* SPDX-License-Identifier: MIT */
/* Opening and closing a port. */
#include "transport/softnic/capture.h"
#include "transport/softnic/environment.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

static uint64_t monotonic_ns(void *clock)
{
    struct timespec t;
    (void)clock;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A page that reads 1 here and 0 in a child after fork. */
static const uint8_t *alive_page(void)
{
    uint8_t *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return NULL;
    madvise(page, PAGE, MADV_WIPEONFORK); /* before Linux 4.14 a child is not told */
    *page = 1;
    return page;
}

/* Where Yama lets only parents look into a process, let our peers look into ours. */
static void allow_peers(void)
{
    int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
    char scope = '0';
    if (fd < 0)
        return;
    if (read(fd, &scope, 1) == 1 && scope == '1')
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    close(fd);
}

static void init_locks(struct ctx *ctx)
{
    pthread_mutex_init(&ctx->lock, NULL);
    pthread_mutex_init(&ctx->peers_lock, NULL);
    pthread_mutex_init(&ctx->channels_lock, NULL);
    pthread_mutex_init(&ibv_of(ctx)->mutex, NULL);
}

static void destroy_locks(struct ctx *ctx)
{
    pthread_mutex_destroy(&ctx->lock);
    pthread_mutex_destroy(&ctx->peers_lock);
    pthread_mutex_destroy(&ctx->channels_lock);
    pthread_mutex_destroy(&ibv_of(ctx)->mutex);
    pthread_mutex_destroy(&ctx->late.lock);
    pthread_cond_destroy(&ctx->late.come);
}

static int check_name(struct ctx *ctx, const char *name)
{
    if (name == NULL)
        name = "softnic0";
    if (!nic_port_name_good(name)) {
        nic_error(ctx, "\"%.80s\" is no name of a port: 1 to %d of A-Z a-z 0-9 . _ -", name,
                  PORT_NAME_MAX);
        return EINVAL;
    }
    memcpy(ctx->port_name, name, strlen(name) + 1);
    return 0;
}

static int read_environment(struct ctx *ctx)
{
    int err = nic_env_flag("SOFTNIC_SHARE_PAGES", &ctx->share_pages);
    if (err != 0)
        nic_error(ctx, "SOFTNIC_SHARE_PAGES takes 0 or 1, not '%.80s'",
                  nic_env_text("SOFTNIC_SHARE_PAGES"));
    return err;
}

/* An errno: without the time at which we started nobody could tell us from the dead. */
static int fill_context(struct ctx *ctx, const struct softnic_attr *attr)
{
    struct ibv_context *context = ibv_of(ctx);
    ctx->pid = getpid();
    ctx->start_time = nic_start_time(ctx->pid);
    int err = ctx->start_time == 0 ? errno : 0;
    ctx->token = nic_token(ctx->pid, ctx->start_time);
    ctx->now_ns = attr->now_ns != NULL ? attr->now_ns : monotonic_ns;
    ctx->clock = attr->clock;
    ctx->clock_is_handed = attr->now_ns != NULL;
    context->cmd_fd = -1;
    context->async_fd = -1;
    context->num_comp_vectors = 1;
    nic_fill_ops(&ctx->verbs);
    return err;
}

static int open_parts(struct ctx *ctx, const struct softnic_attr *attr)
{
    int err = ENOMEM;
    ctx->alive = alive_page();
    if (ctx->alive == NULL)
        return err;
    ctx->device = nic_device_create(ctx->port_name);
    if (ctx->device == NULL)
        goto free_page;
    ibv_of(ctx)->device = ctx->device;
    err = nic_async_create(ctx);
    if (err != 0)
        goto free_device;
    err = nic_member_create(ctx);
    if (err != 0) {
        nic_error(ctx, "no memory for the port, which takes %llu MiB of address space: %s%s",
                  MEMBER_BYTES >> 20, strerror(err),
                  err == ENOMEM  ? "; raise the limit (ulimit -v)"
                  : err == EFBIG ? "; shared memory counts as a file: raise the limit (ulimit -f)"
                                 : "");
        goto close_async;
    }
    err = nic_port_join(ctx, attr);
    if (err != 0)
        goto destroy_member;
    /* Numbers of queue pairs start elsewhere each time, so that those of the dead stay stale. */
    ctx->next_qp = (ctx->member->generation * 61u + 17u) & 0xffff;
    ctx->next_mr = 1 + ctx->member->generation * 7u % 1024;
    err = nic_capture_open(ctx, attr);
    if (err != 0)
        goto leave;
    return 0;
leave:
    nic_port_leave(ctx);
destroy_member:
    nic_member_destroy(ctx);
close_async:
    close(ibv_of(ctx)->async_fd);
    close(ctx->async_wfd);
free_device:
    free(ctx->device);
free_page:
    munmap((void *)(uintptr_t)ctx->alive, PAGE);
    return err;
}

struct ibv_context *softnic_open_port(const struct softnic_attr *attr)
{
    const struct softnic_attr none = {0};
    if (attr == NULL)
        attr = &none;
    struct ctx *ctx = calloc(1, sizeof *ctx);
    if (ctx == NULL)
        return NULL;
    int err = fill_context(ctx, attr);
    init_locks(ctx);
    nic_late_init(ctx);
    allow_peers();
    if (err == 0)
        err = check_name(ctx, attr->port_name);
    if (err == 0)
        err = read_environment(ctx);
    if (err == 0)
        err = open_parts(ctx, attr);
    if (attr->error != NULL && attr->error_size > 0)
        snprintf(attr->error, attr->error_size, "%s",
                 err == 0 || ctx->error[0] != '\0' ? ctx->error : strerror(err));
    if (err == 0)
        return ibv_of(ctx);
    destroy_locks(ctx);
    free(ctx);
    errno = err;
    return NULL;
}

/* Peers that a destroyed queue pair of the user's would have let go of. */
static void forget_queue_pairs(struct ctx *ctx)
{
    for (unsigned slot = 0; slot < QPS_MAX; slot++) {
        struct qp *qp = atomic_load(&ctx->qps[slot]);
        if (qp == NULL)
            continue;
        nic_inbound_lock(ctx, qp->shared);
        nic_counters_keep_qp(ctx->member, qp->shared);
        atomic_store(&qp->shared->state, IBV_QPS_RESET);
        atomic_store(&qp->shared->qpn, 0);
        nic_inbound_unlock(qp->shared);
        if (qp->peer != NULL)
            nic_peer_put(ctx, qp->peer);
        qp->peer = NULL;
    }
}

/* In a child nothing of the parent's port may be touched: only our copies of it go. */
int softnic_close_device(struct ibv_context *context)
{
    struct ctx *ctx = to_ctx(context);
    bool child = nic_after_fork(ctx);
    if (!child)
        nic_late_close(ctx);
    nic_capture_close(ctx);
    if (!child) {
        forget_queue_pairs(ctx);
        nic_port_leave(ctx);
        nic_member_destroy(ctx);
    } else {
        close(ctx->meeting_fd);
        close(ctx->member_fd);
    }
    nic_share_close_all(ctx);
    close(context->async_fd);
    close(ctx->async_wfd);
    free(ctx->device);
    munmap((void *)(uintptr_t)ctx->alive, PAGE);
    destroy_locks(ctx);
    free(ctx);
    return 0;
}
