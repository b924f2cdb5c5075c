/* SPDX-License-Identifier: MIT */
/*
 * Counters, read from outside: through the meeting files of this user's ports and the memory of
 * their members, which go on meanwhile. Memory is read by pread and not mapped, so that looking at
 * a queue pair that nobody ever made does not give it pages.
 */
#include "transport/softnic/nic.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void add(struct softnic_counters *to, const struct qp_sent *sent, const struct qp_came *came)
{
    to->wqes += atomic_load_explicit(&sent->wqes, memory_order_relaxed);
    to->doorbells += atomic_load_explicit(&sent->doorbells, memory_order_relaxed);
    to->bytes += atomic_load_explicit(&sent->bytes, memory_order_relaxed);
    to->cqes += atomic_load_explicit(&sent->cqes, memory_order_relaxed);
    to->rnr += atomic_load_explicit(&sent->rnr, memory_order_relaxed);
    to->retries += atomic_load_explicit(&sent->retries, memory_order_relaxed);
    to->errors += atomic_load_explicit(&sent->errors, memory_order_relaxed);
    to->drops += atomic_load_explicit(&sent->drops, memory_order_relaxed);
    to->received_cqes += atomic_load_explicit(&came->cqes, memory_order_relaxed);
    to->received_bytes += atomic_load_explicit(&came->bytes, memory_order_relaxed);
}

static void keep(_Atomic uint64_t *to, _Atomic uint64_t *from)
{
    atomic_store_explicit(to,
                          atomic_load_explicit(to, memory_order_relaxed) +
                              atomic_load_explicit(from, memory_order_relaxed),
                          memory_order_relaxed);
}

static void keep_all(struct qp_sent *sent, struct qp_came *came, struct qp_sent *more_sent,
                     struct qp_came *more_came)
{
    keep(&sent->wqes, &more_sent->wqes);
    keep(&sent->doorbells, &more_sent->doorbells);
    keep(&sent->bytes, &more_sent->bytes);
    keep(&sent->cqes, &more_sent->cqes);
    keep(&sent->rnr, &more_sent->rnr);
    keep(&sent->retries, &more_sent->retries);
    keep(&sent->errors, &more_sent->errors);
    keep(&sent->drops, &more_sent->drops);
    keep(&came->cqes, &more_came->cqes);
    keep(&came->bytes, &more_came->bytes);
}

void nic_counters_keep_qp(struct member *member, struct shared_qp *sqp)
{
    keep_all(&member->sent, &member->came, &sqp->sent, &sqp->came);
    memset(&sqp->sent, 0, sizeof sqp->sent);
    memset(&sqp->came, 0, sizeof sqp->came);
}

void nic_counters_keep_member(struct meeting *meeting, struct member *member)
{
    keep_all(&meeting->sent, &meeting->came, &member->sent, &member->came);
}

/* ---- reading --------------------------------------------------------------------------------- */

struct visit {
    const struct softnic_counters_visitor *to;
    struct softnic_port_counters port;
    struct shared_qp *qps; /* [QPS_MAX] of one member at a time */
};

static bool read_all(int fd, void *to, size_t bytes, size_t offset)
{
    while (bytes > 0) {
        ssize_t n = pread(fd, to, bytes, (off_t)offset);
        if (n <= 0)
            return false;
        to = (char *)to + n;
        bytes -= (size_t)n;
        offset += (size_t)n;
    }
    return true;
}

static void visit_qps(struct visit *v, int pid)
{
    for (unsigned slot = 0; slot < QPS_MAX; slot++) {
        struct shared_qp *sqp = &v->qps[slot];
        uint32_t qpn = atomic_load_explicit(&sqp->qpn, memory_order_relaxed);
        if (qpn == 0)
            continue;
        struct softnic_qp_counters qp = {.pid = pid,
                                         .qp_num = qpn,
                                         .dest_qp_num = sqp->dest_qpn,
                                         .type = (enum ibv_qp_type)sqp->type,
                                         .state = (enum ibv_qp_state)atomic_load(&sqp->state)};
        add(&qp.counters, &sqp->sent, &sqp->came);
        add(&v->port.counters, &sqp->sent, &sqp->came);
        v->port.queue_pairs++;
        if (v->to->queue_pair != NULL)
            v->to->queue_pair(v->to->arg, &v->port, &qp);
    }
}

/* One that leaves meanwhile is not counted: what it had stands in the meeting file then. */
static void visit_member(struct visit *v, const struct meeting_member *m)
{
    char path[48];
    struct member head;
    const size_t head_bytes = offsetof(struct member, qp);
    if (atomic_load(&m->live) == 0 || !nic_alive(m->pid, m->start_time))
        return;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)m->pid, (int)m->fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (read_all(fd, &head, head_bytes, 0) && head.magic == MEMBER_MAGIC &&
        head.version == SHARED_VERSION && head.pid == m->pid &&
        read_all(fd, v->qps, QPS_MAX * sizeof *v->qps, head_bytes)) {
        v->port.processes++;
        add(&v->port.counters, &head.sent, &head.came);
        visit_qps(v, m->pid);
    }
    close(fd);
}

static void visit_port(struct visit *v, const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return;
    struct meeting *meeting = MAP_FAILED;
    if (fstat(fd, &st) == 0 && st.st_size == (off_t)sizeof *meeting && st.st_uid == geteuid() &&
        nic_meeting_lock(fd, LOCK_SH, 100) == 0)
        meeting = mmap(NULL, sizeof *meeting, PROT_READ, MAP_SHARED, fd, 0);
    if (meeting != MAP_FAILED && nic_meeting_readable(meeting, &st) &&
        meeting->pid_namespace == nic_pid_namespace()) {
        memset(&v->port, 0, sizeof v->port);
        snprintf(v->port.name, sizeof v->port.name, "%.*s", PORT_NAME_MAX, meeting->name);
        nic_gid_of_ip(nic_ip_of_name(v->port.name), 1, &v->port.gid);
        add(&v->port.counters, &meeting->sent, &meeting->came);
        for (unsigned i = 0; i < MEMBERS_MAX; i++)
            visit_member(v, &meeting->member[i]);
        if (v->port.processes > 0)
            v->to->port(v->to->arg, &v->port);
    }
    if (meeting != MAP_FAILED)
        munmap(meeting, sizeof *meeting);
    nic_port_unlock(fd);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The user's meeting files, sorted. */
static char **port_files(size_t *count)
{
    char prefix[48], **files = NULL;
    size_t n = 0;
    DIR *dir = opendir("/dev/shm");
    snprintf(prefix, sizeof prefix, "softnic-%u-", (unsigned)geteuid());
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
            continue;
        char **more = realloc(files, (n + 1) * sizeof *files);
        if (more == NULL)
            break;
        files = more;
        if (asprintf(&files[n], "/dev/shm/%s", entry->d_name) < 0)
            break;
        n++;
    }
    if (dir != NULL)
        closedir(dir);
    if (n > 0)
        qsort(files, n, sizeof *files, by_name);
    *count = n;
    return files;
}

int softnic_visit_counters(const struct softnic_counters_visitor *visitor)
{
    size_t n;
    struct visit v = {.to = visitor};
    v.qps = malloc(QPS_MAX * sizeof *v.qps);
    if (v.qps == NULL)
        return ENOMEM;
    char **files = port_files(&n);
    for (size_t i = 0; i < n; i++) {
        visit_port(&v, files[i]);
        free(files[i]);
    }
    free(files);
    free(v.qps);
    return 0;
}
