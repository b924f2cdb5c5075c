/* SPDX-License-Identifier: MIT */
/*
 * What the aggregator puts on the wire and into shared memory. Little-endian. Private.
 *
 * A message is an item header and its payload, padded to 8 bytes, so that every header and every
 * payload is 8-byte aligned. Around that:
 *
 *   none   one item is one wire message; the end of a stream is an item of ITEM_LAST bytes whose
 *          payload is the count of messages sent
 *   rank   buffer header, items; with BUFFER_LAST the u64 count of messages sent ends the buffer
 *   node   node header, directory, pieces. A piece is what one rank of the sending node wrote; in
 *          it the items of one reader are chained by `next`, so that a reader touches only its own.
 *          The directory: node_piece[pieces]; u32 first[pieces][readers]; to a multiple of 8;
 *          with BUFFER_LAST u64 sent[readers], the count of messages sent to each
 */
#ifndef SSTAR_COLLECTIVES_AGGREGATOR_WIRE_H
#define SSTAR_COLLECTIVES_AGGREGATOR_WIRE_H

#include <assert.h>
#include <stdint.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "structures go onto the wire as they are");

enum { WIRE_MAGIC = 0xA6, WIRE_VERSION = 1 };
enum { SEGMENT_MAGIC = 0x67676173 }; /* "sagg" */

struct item_header {
    uint32_t bytes; /* of payload, without padding; or one of the two below */
    union {
        struct {
            uint16_t source, destination;
        };
        /* In a node's wire message, where piece and chain say these two: units of 8 bytes from this
         * header to the next item of the same reader in the piece, 0 at the end. */
        uint32_t next;
    };
};
static_assert(sizeof(struct item_header) == 8, "an item header is 8 bytes");

#define ITEM_SKIP      UINT32_MAX       /* in a ring: go on at its beginning */
#define ITEM_LAST      (UINT32_MAX - 1) /* strategy none: the end of the stream */
#define ITEM_MAX_BYTES (1u << 30)

static inline uint32_t item_room(uint32_t bytes)
{
    return (uint32_t)sizeof(struct item_header) + ((bytes + 7u) & ~7u);
}

enum { BUFFER_LAST = 1 };
enum wire_kind { WIRE_BUFFER = 1, WIRE_NODE = 2 };

struct buffer_header {
    uint8_t magic, version, kind, flags;
    uint32_t count; /* items */
};
static_assert(sizeof(struct buffer_header) == 8, "a buffer header is 8 bytes");

struct node_header {
    struct buffer_header buffer;
    uint16_t pieces, readers;
    uint32_t directory_bytes; /* all that stands before the first piece, this header included */
};
static_assert(sizeof(struct node_header) == 16, "a node header is 16 bytes");

struct node_piece {
    uint32_t bytes;
    uint16_t source;
    uint16_t reserved;
};
static_assert(sizeof(struct node_piece) == 8, "a piece's entry is 8 bytes");

/* `first` of the directory: 1 + units of 8 bytes into the piece, 0: nothing for this reader. */
static inline uint32_t node_directory_bytes(uint32_t pieces, uint32_t readers, int last)
{
    uint32_t bytes = (uint32_t)sizeof(struct node_header) +
                     pieces * (uint32_t)(sizeof(struct node_piece) + readers * sizeof(uint32_t));
    bytes = (bytes + 7u) & ~7u;
    return last ? bytes + readers * (uint32_t)sizeof(uint64_t) : bytes;
}

#endif
