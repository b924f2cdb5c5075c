/* SPDX-License-Identifier: MIT */
/*
 * What the aggregator puts on the wire and into shared memory. Little-endian. Private.
 *
 * Where sizes vary, a message is an item header and its payload, padded to 8 bytes, so that every
 * header and every payload is 8-byte aligned. Where all are of one size, it is the payload alone if
 * the buffer says from whom and to whom (plain), else a tag of 4 bytes and the payload, padded to 4
 * bytes (routed). A wire message is a multiple of 8 bytes long, because it is laid so that it ends
 * at the end of a slot. Around that:
 *
 *   none   one item, plain, is one wire message; the end of a stream is one of none_last_bytes,
 *          which begins with ITEM_SKIP and ends with the u64 count of messages sent
 *   rank   buffer header, plain items; with BUFFER_LAST the u64 count of messages sent ends it
 *   mesh   the same with routed items, one stream for each hop; who passes on what came with
 *          BUFFER_URGENT sends it on at once
 *   node   node header, directory, pieces. A piece is what one rank of the sending node wrote; in
 *          it the items of one reader are chained by `next`, so that a reader touches only its own.
 *          The directory: node_piece[pieces]; u32 first[pieces][readers]; to a multiple of 8;
 *          with BUFFER_LAST u64 sent[readers], the count of messages sent to each; 4 bytes more
 *          where the pieces are no multiple of 8
 */
#ifndef SSTAR_COLLECTIVES_AGGREGATOR_WIRE_H
#define SSTAR_COLLECTIVES_AGGREGATOR_WIRE_H

#include <assert.h>
#include <stdint.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "structures go onto the wire as they are");

enum { WIRE_MAGIC = 0xA6, WIRE_VERSION = 2 };
enum { SEGMENT_MAGIC = 0x67676173 }; /* "sagg" */

struct item_header {
    uint32_t bytes; /* of payload, without padding; or ITEM_SKIP */
    union {
        struct {
            uint16_t source, destination;
        };
        /* In a node's wire message, where piece and chain say these two: units of 4 bytes from this
         * item to the next of the same reader in the piece, 0 at the end. */
        uint32_t next;
    };
};
static_assert(sizeof(struct item_header) == 8, "an item header is 8 bytes");

#define ITEM_SKIP      UINT32_MAX /* in a ring: go on at its beginning */
#define ITEM_MAX_BYTES (1u << 30)

static inline uint32_t item_room(uint32_t bytes)
{
    return (uint32_t)sizeof(struct item_header) + ((bytes + 7u) & ~7u);
}

/* How an item lies in a buffer. */
struct item_format {
    uint32_t fixed;  /* bytes of every payload; 0: they vary */
    uint32_t header; /* bytes */
    uint32_t stride; /* from item to item, if fixed; else 0 */
};
static inline struct item_format format_plain(uint32_t fixed)
{
    return fixed ? (struct item_format){fixed, 0, fixed}
                 : (struct item_format){0, sizeof(struct item_header), 0};
}
static inline struct item_format format_routed(uint32_t fixed)
{
    return fixed ? (struct item_format){fixed, 4, (fixed + 7u) & ~3u}
                 : (struct item_format){0, sizeof(struct item_header), 0};
}
static inline uint32_t format_room(const struct item_format *f, uint32_t bytes)
{
    return f->stride ? f->stride : item_room(bytes);
}
static inline uint32_t format_bytes(const struct item_format *f, const uint8_t *item)
{
    return f->stride ? f->fixed : ((const struct item_header *)item)->bytes;
}
/* Source and destination << 16, or `next`: of items that have a header. */
static inline uint32_t *format_tag(const struct item_format *f, const uint8_t *item)
{
    return (uint32_t *)(item + f->header - 4);
}

/* Of a wire message of `none`; and of the one that ends a stream, which no item of one size for all
 * is as long as. */
static inline uint32_t none_bytes(const struct item_format *f, uint32_t bytes)
{
    return (format_room(f, bytes) + 7u) & ~7u;
}
static inline uint32_t none_last_bytes(const struct item_format *f)
{
    return f->stride && none_bytes(f, f->fixed) == 16 ? 24 : 16;
}

enum { BUFFER_LAST = 1, BUFFER_URGENT = 2 };
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

/* `first` of the directory: 1 + units of 4 bytes into the piece, 0: nothing for this reader. */
static inline uint32_t node_directory_bytes(uint32_t pieces, uint32_t readers, int last)
{
    uint32_t bytes = (uint32_t)sizeof(struct node_header) +
                     pieces * (uint32_t)(sizeof(struct node_piece) + readers * sizeof(uint32_t));
    bytes = (bytes + 7u) & ~7u;
    return last ? bytes + readers * (uint32_t)sizeof(uint64_t) : bytes;
}

#endif
