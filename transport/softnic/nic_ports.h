/* SPDX-License-Identifier: MIT */
/* Processes, ports, members and their memory: what these files of softnic offer to the others. */
#ifndef SOFTNIC_NIC_PORTS_H
#define SOFTNIC_NIC_PORTS_H

#include "transport/softnic/nic_objects.h"

/* lock.c */
void spin_wait(unsigned *turn);
void spin_lock_slow(struct spin *spin);
static inline bool spin_trylock(struct spin *spin)
{
    return atomic_exchange_explicit(&spin->held, 1, memory_order_acquire) == 0;
}
static inline void spin_lock(struct spin *spin)
{
    if (__builtin_expect(!spin_trylock(spin), 0))
        spin_lock_slow(spin);
}
static inline void spin_unlock(struct spin *spin)
{
    atomic_store_explicit(&spin->held, 0, memory_order_release);
}
/* A wait for a lock that another process may hold. */
struct patience {
    unsigned turn;
    uint64_t since_ns, looked_ns; /* 0: not looked yet */
    uint64_t limit_ns;            /* shorter than anybody may hold a lock; 0: that long */
};
/* A turn of it. False: whoever holds the lock was killed, or has been stopped in the middle, and
 * will be waited for no longer. */
bool nic_wait_turn(struct patience *p, uint64_t holder, uint64_t self);
bool nic_inbound_try(struct shared_qp *sqp, uint64_t self);
void nic_inbound_lock(struct ctx *ctx, struct shared_qp *sqp);
static inline void nic_inbound_unlock(struct shared_qp *sqp)
{
    atomic_store_explicit(&sqp->inbound, 0, memory_order_release);
}
/* Until whoever is writing through `sqp` now has finished, or is dead. */
void nic_inbound_drain(struct shared_qp *sqp, uint64_t self);
void nic_atomic_lock(struct member *member, uint64_t self);
void nic_atomic_unlock(struct member *member);
void nic_word_lock(_Atomic uint64_t *word, uint64_t self);
static inline void nic_word_unlock(_Atomic uint64_t *word)
{
    atomic_store_explicit(word, 0, memory_order_release);
}

/* process.c */
uint64_t nic_start_time(pid_t pid); /* 0: no such process */
bool nic_alive(pid_t pid, uint64_t start_time);
/* A process as one word, for locks that must be broken if their holder is killed. */
uint64_t nic_token(pid_t pid, uint64_t start_time);
bool nic_token_alive(uint64_t token);
bool nic_no_fd_left(int err);
/* Whether the process may have a file so long (ulimit -f): beyond that the kernel does not refuse,
 * it sends SIGXFSZ. Memory that is shared counts as a file. */
bool nic_file_fits(uint64_t bytes);
uint64_t nic_tick(void); /* cheap, of no known unit */
int nic_refuse_child(struct ctx *ctx);

/* error.c */
void nic_error(struct ctx *ctx, const char *format, ...) __attribute__((format(printf, 2, 3)));
void nic_say(struct ctx *ctx, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* device.c */
struct ibv_device *nic_device_create(const char *port_name);
void nic_fill_ops(struct verbs_context *verbs);

/* query.c */
int nic_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                        struct ibv_device_attr_ex *attr, size_t size);

/* port_name.c */
bool nic_port_name_good(const char *name);
uint32_t nic_ip_of_name(const char *name);
void nic_port_path(uint32_t ip, char *path, size_t size);
uint32_t nic_ip_of_gid(const union ibv_gid *gid); /* 0: none of ours */
void nic_gid_of_ip(uint32_t ip, int index, union ibv_gid *gid);
int nic_gid_index(const union ibv_gid *gid); /* the index at which a GID of that form stands */
uint16_t nic_lid_of_ip(uint32_t ip);
uint32_t nic_ip_of_lid(uint16_t lid); /* of a port that is there; 0: none */

/* ah.c */
int nic_path_check(const struct ibv_ah_attr *attr, uint32_t *ip);
/* What stands in front of a datagram: `grh` has 40 bytes. */
void nic_grh_fill(uint8_t *grh, uint64_t route, uint32_t from_ip, uint32_t bytes);

/* meeting.c */
struct stat;
uint64_t nic_pid_namespace(void);
/* Both try so often, 50 us apart. */
int nic_meeting_lock(int fd, int how, unsigned tries); /* LOCK_EX or LOCK_SH */
int nic_meeting_open(const char *path, int flags, int how, unsigned tries, int *fd);
void nic_port_unlock(int fd); /* and close it */
struct meeting *nic_meeting_map(int fd);
bool nic_meeting_readable(const struct meeting *meeting, const struct stat *st);
/* Hold the file for as long as the port is open; does anybody else? */
void nic_meeting_hold(int fd);
bool nic_meeting_held(int fd);
bool nic_meeting_left(int fd, const struct stat *st); /* by the dead: it is to go */
/* Forget members that were killed. Number of those that live. */
unsigned nic_meeting_clear_dead(struct meeting *meeting);
void nic_meeting_clear_others(const char *own_path);
/* Map that of another port, locked for looking at its members. */
int nic_port_visit(uint32_t ip, struct meeting **meeting, int *fd);

/* port.c */
int nic_port_join(struct ctx *ctx, const struct softnic_attr *attr);
/* Others find us there no more; the file goes with the last of us. */
void nic_port_unlist(struct ctx *ctx);
void nic_port_leave(struct ctx *ctx);

/* member.c */
int nic_member_create(struct ctx *ctx);
void nic_member_destroy(struct ctx *ctx);

/* own.c */
int nic_own_create(struct ctx *ctx);
void nic_own_joined(struct ctx *ctx);
void nic_own_left(struct ctx *ctx); /* nobody finds it any more */
struct own *nic_own_get(uint32_t ip, uint32_t slot);
void nic_own_put(struct own *own);

/* What others may change meanwhile is read once. */
#define nic_once(place) (*(const volatile __typeof__(place) *)&(place))
/* An entry of a ring of receives in a member's memory, NULL if it does not lie there. */
struct recv_wqe *nic_ring_entry(const struct member *member, uint64_t offset, uint32_t mask,
                                uint32_t stride, uint32_t at);
static inline struct shared_cq *nic_recv_cq(struct member *member, const struct shared_qp *sqp)
{
    return &member->cq[nic_once(sqp->recv_cq) % CQS_MAX];
}
/* Room in our memory that peers can reach; zeroed. 0: no memory. */
uint64_t nic_heap_alloc(struct ctx *ctx, uint64_t bytes);
void nic_heap_free(struct ctx *ctx, uint64_t offset, uint64_t bytes);
int nic_member_commit(struct ctx *ctx, const void *at, size_t bytes);

/* peer.c */
struct peer *nic_peer_get(struct ctx *ctx, uint32_t ip, uint32_t slot);
void nic_peer_put(struct ctx *ctx, struct peer *peer);
bool nic_peer_dead(struct peer *peer);       /* asks the kernel */
bool nic_peer_dead_maybe(struct peer *peer); /* asks it seldom */
int nic_peer_fd(struct peer *peer, int fd, int flags);
/* A peer's region mapped here. Its base is NULL if it cannot be. For the request at hand of `qp`.
 */
const struct mapped_mr *nic_peer_map_slow(struct peer *peer, uint32_t key, const struct qp *qp);
/* Wake the owner of a pipe's writing end; nothing else is ever written to. */
void nic_pipe_write(int fd, const void *bytes, size_t size);

/* The region of `key` in a member's table, if it covers the range and grants all of `want`; else
 * NULL. */
static inline const struct shared_mr *nic_mr_find(const struct shared_mr *table, uint32_t key,
                                                  uint64_t addr, uint64_t length, uint32_t want,
                                                  uint32_t pd)
{
    uint32_t index = key >> 8;
    if (__builtin_expect(index == 0 || index >= MRS_MAX, 0))
        return NULL;
    const struct shared_mr *smr = &table[index];
    if (__builtin_expect(atomic_load_explicit(&smr->key, memory_order_acquire) != key ||
                             smr->pd != pd || (smr->access & want) != want || addr < smr->addr ||
                             addr - smr->addr > smr->length ||
                             length > smr->length - (addr - smr->addr),
                         0))
        return NULL;
    return smr;
}

/* backing.c */
struct fd_share;
int nic_backing_find(struct ctx *ctx, const void *addr, size_t length, bool write,
                     struct fd_share **share, uint64_t *offset);
int nic_share_fd(const struct fd_share *share);
void nic_share_put(struct ctx *ctx, struct fd_share *share);
void nic_share_close_all(struct ctx *ctx);

/* pages.c; ctx->lock held. Exchange the whole pages of a range for shared ones of the same content,
 * if that is asked for and safe: a descriptor of their file, or -1. And back, once no region covers
 * them. */
int nic_pages_share(struct ctx *ctx, void *addr, size_t length);
void nic_pages_unshare(struct ctx *ctx, const void *addr, size_t length);

#endif
