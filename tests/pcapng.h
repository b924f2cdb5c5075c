/* SPDX-License-Identifier: MIT */
/* RoCEv2 frames read back from a pcapng file, and everything about them that can be checked without
 * knowing what was sent. */
#ifndef SSTAR_TESTS_PCAPNG_H
#define SSTAR_TESTS_PCAPNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FRAMES_MAX = 1 << 16 };

struct frame {
    uint32_t interface, wire_bytes, kept_bytes;
    uint64_t time_ns;
    bool ipv6;
    uint32_t from, to; /* last four bytes of the addresses */
    uint8_t opcode, pad;
    bool ask, solicited;
    uint32_t qpn, psn;
    const uint8_t *extended; /* behind the BTH */
    const uint8_t *payload;  /* behind the extended headers */
    uint32_t payload_bytes;  /* without the pad */
};

struct frames {
    uint8_t *file;
    size_t file_bytes;
    int interfaces;
    char name[8][64];
    int n;
    struct frame *frame;
};

/* Read and check: blocks, lengths, MAC addresses, checksums, ports, ICRC of frames that are whole.
 * NULL, or what is wrong with it. */
const char *frames_read(struct frames *f, const char *path);
void frames_free(struct frames *f);
/* Of a whole frame from its Ethernet header on: NULL, or what is wrong with it. */
const char *frame_check(const uint8_t *bytes, uint32_t length, struct frame *frame);
uint64_t be_read(const uint8_t *at, unsigned bytes);

#endif
