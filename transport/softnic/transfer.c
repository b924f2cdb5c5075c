/* SPDX-License-Identifier: MIT */
/*
 * Moving bytes: by copying where the far side's memory is mapped here, else through the kernel.
 * Except where the region was registered for relaxed ordering, the last word of a message is
 * written last, so that whoever watches it finds the rest in place.
 */
#include "transport/softnic/nic.h"
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

typedef uint64_t __attribute__((may_alias)) word;

void nic_copy_ordered(uint8_t *to, const uint8_t *from, size_t bytes)
{
    if (bytes == sizeof(word) && (uintptr_t)to % sizeof(word) == 0) { /* a counter or a flag */
        word whole;
        memcpy(&whole, from, sizeof whole);
        __atomic_store_n((word *)(void *)to, whole, __ATOMIC_RELEASE);
        return;
    }
    uint8_t *tail = (uint8_t *)((uintptr_t)(to + bytes - 1) & ~(uintptr_t)7);
    if (tail < to)
        tail = to;
    size_t head = (size_t)(tail - to), left = bytes - head;
    uint64_t value = 0;
    memcpy(&value, from + head, left); /* before the head is written: they may overlap */
    if (head > 0)
        memmove(to, from, head);
    if (left == sizeof value) {
        __atomic_store_n((word *)tail, value, __ATOMIC_RELEASE);
        return;
    }
    memcpy(tail, &value, left - 1);
    __atomic_store_n(tail + left - 1, ((uint8_t *)&value)[left - 1], __ATOMIC_RELEASE);
}

/* A place in a list of local segments. */
struct cursor {
    const struct iovec *iov;
    size_t at;
};

static size_t piece(struct cursor *c, size_t most, uint8_t **at)
{
    while (c->at == c->iov->iov_len) {
        c->iov++;
        c->at = 0;
    }
    size_t bytes = c->iov->iov_len - c->at;
    if (bytes > most)
        bytes = most;
    *at = (uint8_t *)c->iov->iov_base + c->at;
    c->at += bytes;
    return bytes;
}

static unsigned slice(struct cursor *c, size_t bytes, struct iovec *out)
{
    unsigned n = 0;
    while (bytes > 0) {
        uint8_t *at;
        size_t part = piece(c, bytes, &at);
        out[n++] = (struct iovec){at, part};
        bytes -= part;
    }
    return n;
}

static int through_kernel(const struct qp *qp, const struct iovec *local, unsigned n_local,
                          struct iovec *remote, unsigned n_remote, size_t bytes, bool write)
{
    pid_t pid = qp->peer->pid;
    ssize_t n = write ? process_vm_writev(pid, local, n_local, remote, n_remote, 0)
                      : process_vm_readv(pid, local, n_local, remote, n_remote, 0);
    if (n == (ssize_t)bytes)
        return 0;
    return n < 0 ? errno : EFAULT;
}

unsigned nic_remote_pieces(const struct target *target, bool ordered, struct iovec *pieces)
{
    uint64_t end = target->addr + target->length;
    uint64_t tail = (end - 1) & ~(uint64_t)7;
    if (!ordered || target->relaxed || tail <= target->addr) {
        pieces[0] = (struct iovec){(void *)(uintptr_t)target->addr, target->length};
        return 1;
    }
    pieces[0] = (struct iovec){(void *)(uintptr_t)target->addr, tail - target->addr};
    pieces[1] = (struct iovec){(void *)(uintptr_t)tail, end - tail};
    return 2;
}

static int put_through_kernel(struct qp *qp, struct cursor *c, const struct target *target,
                              bool ordered)
{
    struct iovec local[MAX_SGE], remote[2];
    unsigned n_local = slice(c, target->length, local);
    unsigned n_remote = nic_remote_pieces(target, ordered, remote);
    return through_kernel(qp, local, n_local, remote, n_remote, target->length, true);
}

static void put_direct(struct cursor *c, const struct target *target, bool ordered)
{
    uint8_t *to = target->direct;
    for (uint64_t left = target->length; left > 0;) {
        uint8_t *from;
        size_t bytes = piece(c, left, &from);
        left -= bytes;
        if (left == 0 && ordered)
            nic_copy_ordered(to, from, bytes);
        else
            memmove(to, from, bytes);
        to += bytes;
    }
}

int nic_put(struct qp *qp, struct work *work)
{
    struct cursor c = {work->local, 0};
    int err = 0;
    for (unsigned i = 0; err == 0 && i < work->n_target; i++) {
        const struct target *target = &work->target[i];
        bool ordered = i + 1 == work->n_target && !target->relaxed;
        if (target->direct != NULL)
            put_direct(&c, target, ordered);
        else
            err = put_through_kernel(qp, &c, target, ordered);
    }
    return err;
}

int nic_get(struct qp *qp, struct work *work)
{
    const struct target *target = &work->target[0];
    if (work->length == 0)
        return 0;
    if (target->direct == NULL) {
        struct iovec remote = {(void *)(uintptr_t)target->addr, target->length};
        return through_kernel(qp, work->local, work->n_local, &remote, 1, target->length, false);
    }
    const uint8_t *from = target->direct;
    for (unsigned i = 0; i < work->n_local; i++) {
        memmove(work->local[i].iov_base, from, work->local[i].iov_len);
        from += work->local[i].iov_len;
    }
    return 0;
}

static uint64_t combine(const struct send_wqe *wqe, uint64_t old)
{
    if (wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
        return old + wqe->operand[0];
    return old == wqe->operand[0] ? wqe->operand[1] : old;
}

static uint64_t atomic_direct(const struct send_wqe *wqe, word *at)
{
    if (wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
        return __atomic_fetch_add(at, wqe->operand[0], __ATOMIC_SEQ_CST);
    uint64_t old = wqe->operand[0];
    __atomic_compare_exchange_n(at, &old, wqe->operand[1], false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    return old;
}

static int atomic_through_kernel(struct qp *qp, const struct work *work, uint64_t *old)
{
    struct iovec local = {old, sizeof *old};
    struct iovec remote = {(void *)(uintptr_t)work->target[0].addr, sizeof *old};
    int err = through_kernel(qp, &local, 1, &remote, 1, sizeof *old, false);
    if (err != 0)
        return err;
    uint64_t value = combine(work->wqe, *old);
    local.iov_base = &value;
    return through_kernel(qp, &local, 1, &remote, 1, sizeof value, true);
}

/* Others add to it where it is mapped, with no lock that we could take. */
static int refuse_unmapped(struct qp *qp, const struct target *target)
{
    nic_say(
        qp->ctx,
        "an atomic on memory of process %d at 0x%llx is refused: others have that memory mapped, "
        "and it cannot be mapped here (is a limit reached, ulimit -n or -v, or its file closed?)",
        (int)qp->peer->pid, (unsigned long long)target->iova);
    return EIO;
}

/* Memory that only its own process can map takes atomics one at a time, from whichever process
 * they come. */
int nic_atomic(struct qp *qp, struct work *work)
{
    const struct target *target = &work->target[0];
    struct member *member = qp->peer->member;
    uint64_t old = 0;
    int err = 0;
    if (!target->unshared && target->direct == NULL)
        return refuse_unmapped(qp, target);
    if (target->unshared)
        nic_atomic_lock(member, qp->ctx->token);
    if (target->direct != NULL)
        old = atomic_direct(work->wqe, (word *)(void *)target->direct);
    else
        err = atomic_through_kernel(qp, work, &old);
    if (target->unshared)
        nic_atomic_unlock(member);
    size_t done = 0;
    for (unsigned i = 0; err == 0 && i < work->n_local; i++) {
        if (work->local[i].iov_len > 0) /* of nothing there may be no address */
            memcpy(work->local[i].iov_base, (uint8_t *)&old + done, work->local[i].iov_len);
        done += work->local[i].iov_len;
    }
    return err;
}
