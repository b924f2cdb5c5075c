/* SPDX-License-Identifier: MIT */
#include "tests/pcapng.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ETHERNET = 14, UDP = 8, BTH = 12, ICRC = 4 };

uint64_t be_read(const uint8_t *at, unsigned bytes)
{
    uint64_t value = 0;
    while (bytes-- > 0)
        value = value << 8 | *at++;
    return value;
}

/* CRC-32 as the polynomial division that it is, a bit at a time, highest power first: each byte's
 * lowest bit is its highest power, and so is the remainder's. */
static uint32_t divide(uint32_t remainder, uint8_t byte)
{
    for (int bit = 0; bit < 8; bit++) {
        bool one = (remainder >> 31 ^ (byte >> bit & 1)) != 0;
        remainder = remainder << 1 ^ (one ? 0x04c11db7u : 0);
    }
    return remainder;
}

static uint32_t mirror(uint32_t value)
{
    uint32_t result = 0;
    for (int bit = 0; bit < 32; bit++)
        result |= (value >> bit & 1) << (31 - bit);
    return result;
}

/* The four bytes at the end as they should be, lowest first. */
static uint32_t expected_icrc(const uint8_t *ip, size_t bytes, size_t ip_bytes)
{
    uint32_t r = UINT32_MAX;
    for (int i = 0; i < 8; i++)
        r = divide(r, 0xff);
    for (size_t i = 0; i < bytes; i++) {
        uint8_t byte = ip[i];
        bool v4 = ip_bytes == 20;
        bool varies =
            v4 ? i == 1 || i == 8 || i == 10 || i == 11 : i == 1 || i == 2 || i == 3 || i == 7;
        if (varies || i == ip_bytes + 6 || i == ip_bytes + 7 || i == ip_bytes + UDP + 4)
            byte = 0xff;
        else if (!v4 && i == 0)
            byte |= 0x0f;
        r = divide(r, byte);
    }
    return ~mirror(r);
}

static uint16_t ones_sum(uint32_t sum, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i += 2)
        sum += (uint32_t)bytes[i] << 8 | (i + 1 < n ? bytes[i + 1] : 0);
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

/* Bytes of extended headers behind the BTH; UINT32_MAX: an opcode that there is not. */
static uint32_t extended_bytes(uint8_t opcode)
{
    static const uint8_t of[] = {0,  0,  0, 4, 0, 4, 16, 0,  0,  4, 16,
                                 20, 16, 4, 0, 4, 4, 4,  12, 28, 28};
    if (opcode <= 20)
        return of[opcode];
    if (opcode >= 0x20 && opcode <= 0x2b)
        return of[opcode - 0x20];
    if (opcode == 0x81)
        return 16; /* congestion notification */
    return opcode == 0x64 ? 8 : opcode == 0x65 ? 12 : UINT32_MAX;
}

static const char *check_ip(const uint8_t *ip, size_t ip_bytes, uint32_t left, struct frame *f)
{
    if (ip_bytes == 20) {
        if (ip[0] != 0x45 || ip[9] != 17 || be_read(ip + 2, 2) != left)
            return "IPv4 header";
        if (ones_sum(0, ip, 20) != 0xffff)
            return "IPv4 checksum";
    } else {
        if (ip[0] >> 4 != 6 || ip[6] != 17 || be_read(ip + 4, 2) != left - 40)
            return "IPv6 header";
        uint32_t pseudo = left - 40 + 17;
        if (f->kept_bytes == f->wire_bytes &&
            ones_sum(ones_sum(pseudo, ip + 8, 32), ip + 40, left - 40) != 0xffff)
            return "UDP checksum over IPv6";
    }
    f->from = (uint32_t)be_read(ip + (ip_bytes == 20 ? 12 : 20), 4);
    f->to = (uint32_t)be_read(ip + (ip_bytes == 20 ? 16 : 36), 4);
    return NULL;
}

static void fill_bth(const uint8_t *bth, struct frame *f)
{
    f->opcode = bth[0];
    f->solicited = bth[1] >> 7;
    f->pad = bth[1] >> 4 & 3;
    f->qpn = (uint32_t)be_read(bth + 5, 3);
    f->ask = bth[8] >> 7;
    f->psn = (uint32_t)be_read(bth + 9, 3);
    f->extended = bth + BTH;
}

static const char *check(const uint8_t *bytes, struct frame *f)
{
    uint64_t type = be_read(bytes + 12, 2);
    if (type != 0x0800 && type != 0x86dd)
        return "EtherType";
    f->ipv6 = type == 0x86dd;
    size_t ip_bytes = f->ipv6 ? 40 : 20;
    const uint8_t *ip = bytes + ETHERNET, *udp = ip + ip_bytes, *bth = udp + UDP;
    uint32_t left = f->wire_bytes - ETHERNET;
    const char *wrong = check_ip(ip, ip_bytes, left, f);
    if (wrong)
        return wrong;
    if (be_read(udp + 2, 2) != 4791 || be_read(udp + 4, 2) != left - ip_bytes)
        return "UDP header";
    if (be_read(bth + 2, 2) != 0xffff || (bth[1] & 15) != 0)
        return "BTH";
    fill_bth(bth, f);
    uint32_t extended = extended_bytes(f->opcode);
    uint32_t body = left - (uint32_t)ip_bytes - UDP - BTH - ICRC;
    if (extended == UINT32_MAX || body < extended + f->pad || (body - extended) % 4 != 0)
        return "opcode or length";
    f->payload = f->extended + extended;
    f->payload_bytes = body - extended - f->pad;
    if (f->kept_bytes != f->wire_bytes)
        return NULL;
    const uint8_t *end = bytes + f->wire_bytes - ICRC;
    uint32_t there =
        (uint32_t)end[0] | (uint32_t)end[1] << 8 | (uint32_t)end[2] << 16 | (uint32_t)end[3] << 24;
    return there == expected_icrc(ip, (size_t)(end - ip), ip_bytes) ? NULL : "ICRC";
}

const char *frame_check(const uint8_t *bytes, uint32_t length, struct frame *frame)
{
    frame->wire_bytes = frame->kept_bytes = length;
    return length < ETHERNET + 20 + UDP + BTH + ICRC ? "too short" : check(bytes, frame);
}

static uint32_t word(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static const char *take_packet(struct frames *f, const uint8_t *block, uint32_t length)
{
    if (f->n == FRAMES_MAX)
        return "too many frames for this test";
    struct frame *frame = &f->frame[f->n++];
    frame->interface = word(block + 8);
    frame->time_ns = (uint64_t)word(block + 12) << 32 | word(block + 16);
    frame->kept_bytes = word(block + 20);
    frame->wire_bytes = word(block + 24);
    if (frame->interface >= (uint32_t)f->interfaces || frame->kept_bytes > frame->wire_bytes ||
        28 + (frame->kept_bytes + 3) / 4 * 4 + 4 != length)
        return "packet block";
    return check(block + 28, frame);
}

static const char *take_block(struct frames *f, const uint8_t *block, uint32_t length)
{
    switch (word(block)) {
    case 1:
        if (word(block + 8) != 1 || word(block + 16) >> 16 >= 64 || f->interfaces == 8)
            return "interface block";
        memcpy(f->name[f->interfaces++], block + 20, word(block + 16) >> 16);
        return NULL;
    case 6:
        return take_packet(f, block, length);
    default:
        return "a block of another kind";
    }
}

static uint8_t *slurp(const char *path, size_t *size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    rewind(file);
    uint8_t *text = malloc((size_t)bytes + 1);
    *size = text ? fread(text, 1, (size_t)bytes, file) : 0;
    fclose(file);
    return text;
}

const char *frames_read(struct frames *f, const char *path)
{
    memset(f, 0, sizeof *f);
    f->file = slurp(path, &f->file_bytes);
    f->frame = calloc(FRAMES_MAX, sizeof *f->frame);
    if (!f->file || !f->frame)
        return "the file cannot be read";
    if (f->file_bytes < 28 || word(f->file) != 0x0a0d0d0a || word(f->file + 8) != 0x1a2b3c4d)
        return "section header";
    const char *wrong = NULL;
    for (size_t at = word(f->file + 4); !wrong && at < f->file_bytes;) {
        if (at + 12 > f->file_bytes)
            return "the end of the file";
        uint32_t length = word(f->file + at + 4);
        if (length < 12 || length % 4 || at + length > f->file_bytes ||
            word(f->file + at + length - 4) != length)
            return "the length of a block";
        wrong = take_block(f, f->file + at, length);
        at += length;
    }
    return wrong;
}

void frames_free(struct frames *f)
{
    free(f->file);
    free(f->frame);
}
