/* SPDX-License-Identifier: MIT */
/*
 * The ring through which threads hand descriptors to a proxy: many writers, one reader, no lock.
 * Private.
 *
 * After D. Vyukov's bounded queue (1024cores.net, "Bounded MPMC queue"): a writer takes places by a
 * compare-and-swap on `tail` and says that a place is full by storing its turn, place + 1, last.
 * Otherwise than there the reader does not write into the slots, of which it would take the cache
 * line from the writer each time; it publishes how far it has read, a quarter of the ring at a
 * time. So a descriptor costs one line that moves from the writer's core to the reader's, and a
 * writer that finds no place has at least half of the ring under way before it.
 *
 * A writer that is killed between taking a place and filling it stops the ring; threads die with
 * their process, so nobody is left to wait for it.
 */
#ifndef SSTAR_TRANSPORT_DESCRIPTOR_RING_H
#define SSTAR_TRANSPORT_DESCRIPTOR_RING_H

#include <infiniband/verbs.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Beside the opcodes of verbs. */
enum descriptor_opcode {
    DESCRIPTOR_RING = 0x80, /* the doorbell alone */
    DESCRIPTOR_RECEIVES,    /* post `immediate` receives without data */
    DESCRIPTOR_ATTACH,      /* token: a carrier, of which the proxy takes charge */
    DESCRIPTOR_DETACH,
};
enum descriptor_flags {
    DESCRIPTOR_MORE = 1,      /* more follows on this queue pair: no doorbell yet */
    DESCRIPTOR_SIGNALLED = 2, /* a completion, whatever else asks for one */
    DESCRIPTOR_INLINE = 4,    /* the data is taken when the request is built */
    DESCRIPTOR_WORD = 8,      /* the data stands in the descriptor */
    DESCRIPTOR_STAMPED = 16,  /* stages are asked for: `operand` is a struct stage_stamps * */
};
enum { DESCRIPTOR_WORD_BYTES = 16, DESCRIPTOR_SGE = 3, DESCRIPTOR_MOST_SLOTS = 64 };

/* One cache line. Pieces beyond the first stand in the slots behind it. */
struct descriptor {
    alignas(64) _Atomic uint64_t turn;
    union {
        struct {
            uint64_t remote_address;
            union {
                struct ibv_sge sge;
                uint8_t word[DESCRIPTOR_WORD_BYTES];
            };
            uint32_t rkey;
            uint32_t immediate; /* or which stamps are wanted, if stamped */
            uint64_t token;     /* a wr_id, or the completion to tell */
            uint64_t operand;
            uint8_t opcode, flags;
            uint8_t n_sge;      /* all of them */
            uint8_t word_bytes; /* of `word` */
            uint16_t carrier, lane;
        };
        struct ibv_sge more[DESCRIPTOR_SGE];
    };
};
_Static_assert(sizeof(struct descriptor) == 64, "a descriptor is a cache line");

struct descriptor_ring {
    alignas(64) _Atomic uint64_t tail; /* places taken by writers */
    alignas(64) _Atomic uint64_t read; /* published by the reader */
    _Atomic uint32_t asleep;           /* the reader naps, and is woken by FUTEX_WAKE on this */
    alignas(64) uint64_t head;         /* the reader's own */
    uint64_t published;
    alignas(64) struct descriptor *slots;
    uint64_t size; /* a power of two */
};

/* 0 or -ENOMEM. `size`: a power of two, at least 4 * DESCRIPTOR_MOST_SLOTS. */
int descriptor_ring_open(struct descriptor_ring *ring, uint32_t size);
void descriptor_ring_close(struct descriptor_ring *ring);

static inline struct descriptor *descriptor_at(const struct descriptor_ring *ring, uint64_t place)
{
    return &ring->slots[place & (ring->size - 1)];
}

/* Take n <= DESCRIPTOR_MOST_SLOTS places in a row: 0 with the first in *place, or -EAGAIN. */
int descriptor_claim(struct descriptor_ring *ring, uint32_t n, uint64_t *place);
/* The slot of a place that was taken and has been filled is the reader's from here on. */
static inline void descriptor_publish(struct descriptor *slot, uint64_t place)
{
    atomic_store_explicit(&slot->turn, place + 1, memory_order_release);
}
/* Wake the reader if it naps; after publishing. */
void descriptor_wake(struct descriptor_ring *ring);
static inline void descriptor_wake_if_asleep(struct descriptor_ring *ring)
{
    /* The reader, before it sleeps, lets all writers pass a barrier (membarrier): none is needed
     * here but towards the compiler. */
    atomic_signal_fence(memory_order_seq_cst);
    if (__builtin_expect(atomic_load_explicit(&ring->asleep, memory_order_relaxed), 0))
        descriptor_wake(ring);
}

/* The reader's side: the slot `ahead` of the next, or NULL if it has not been filled. */
static inline struct descriptor *descriptor_peek(const struct descriptor_ring *ring, uint64_t ahead)
{
    struct descriptor *slot = descriptor_at(ring, ring->head + ahead);
    uint64_t turn = atomic_load_explicit(&slot->turn, memory_order_acquire);
    return turn == ring->head + ahead + 1 ? slot : NULL;
}
static inline void descriptor_done(struct descriptor_ring *ring, uint64_t n)
{
    ring->head += n;
    if (ring->head - ring->published >= ring->size / 4) {
        ring->published = ring->head;
        atomic_store_explicit(&ring->read, ring->head, memory_order_release);
    }
}
/* Sleep until somebody wakes us or the time has passed; not at all if something is there. */
void descriptor_nap(struct descriptor_ring *ring, uint64_t timeout_ns);

#endif
