/* SPDX-License-Identifier: MIT */
/* From headers and data to a frame: Ethernet, IP, UDP, checksums (annex A17). */
#include "transport/softnic/capture_frame.h"
#include <arpa/inet.h>
#include <string.h>

enum {
    ETHERNET_BYTES = 14,
    IPV4_BYTES = 20,
    IPV6_BYTES = 40,
    ROCE_PORT = 4791,
    WRAPPING_BYTES = 32, /* what nic_grh_fill adds to a datagram: UDP, BTH, DETH, ICRC */
};

static void put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static void put32(uint8_t *at, uint32_t value)
{
    put16(at, value >> 16);
    put16(at + 2, value & 0xffff);
}

void frame_add(struct headers *h, uint64_t value, unsigned bytes)
{
    while (bytes-- > 0)
        h->bytes[h->used++] = (uint8_t)(value >> 8 * bytes);
}

void frame_take(struct cursor *cursor, uint8_t *to, size_t bytes)
{
    while (bytes > 0 && cursor->left > 0) {
        size_t part = cursor->iov->iov_len - cursor->at;
        if (part > bytes)
            part = bytes;
        memcpy(to, (const uint8_t *)cursor->iov->iov_base + cursor->at, part);
        to += part;
        bytes -= part;
        cursor->at += part;
        if (cursor->at == cursor->iov->iov_len) {
            cursor->iov++;
            cursor->left--;
            cursor->at = 0;
        }
    }
    memset(to, 0, bytes); /* what is not at hand: bytes of a READ that has not come yet */
}

/* The MAC address of which the port's link-local GID is made. */
static void put_mac(uint8_t *at, uint32_t ip)
{
    put16(at, 0x0200);
    put32(at + 2, ip);
}

static uint32_t crc(const struct capture *c, uint32_t value, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        value = value >> 8 ^ c->crc[(value ^ bytes[i]) & 0xff];
    return value;
}

/* Over everything from the network header on, with what routers may change taken for ones, and as
 * many ones in front as an LRH has bits (A17.3.3). */
static uint32_t icrc(const struct capture *c, const uint8_t *packet, size_t bytes, bool ipv4)
{
    uint8_t masked[8 + IPV6_BYTES + UDP_BYTES + BTH_BYTES];
    size_t ip = ipv4 ? IPV4_BYTES : IPV6_BYTES, head = ip + UDP_BYTES + BTH_BYTES;
    memset(masked, 0xff, 8);
    uint8_t *m = masked + 8;
    memcpy(m, packet, head);
    if (ipv4) {
        m[1] = m[8] = m[10] = m[11] = 0xff; /* type of service, time to live, checksum */
    } else {
        m[0] |= 0x0f; /* traffic class, flow label, hop limit */
        m[1] = m[2] = m[3] = m[7] = 0xff;
    }
    put16(m + ip + 6, 0xffff); /* checksum of UDP */
    m[ip + UDP_BYTES + 4] = 0xff;
    uint32_t value = crc(c, UINT32_MAX, masked, 8 + head);
    return ~crc(c, value, packet + head, bytes - head);
}

/* RFC 768 over the pseudo header of RFC 8200; IPv4 does without. */
static void udp_checksum(uint8_t *packet, uint32_t length)
{
    uint8_t *udp = packet + IPV6_BYTES;
    uint32_t sum = length + 17;
    for (unsigned i = 8; i < IPV6_BYTES; i += 2)
        sum += (uint32_t)packet[i] << 8 | packet[i + 1];
    for (uint32_t i = 0; i < length; i += 2)
        sum += (uint32_t)udp[i] << 8 | udp[i + 1];
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    put16(udp + 6, (uint16_t)~sum != 0 ? (uint16_t)~sum : 0xffff);
}

static uint32_t put_ip(const struct way *w, uint8_t *at, uint32_t udp_bytes)
{
    uint8_t grh[GRH_BYTES];
    bool ipv4 = (w->flags & ROUTE_IPV4) != 0;
    nic_grh_fill(grh, nic_route(w->to_ip, w->flags | ROUTE_GRH, 0), w->from_ip,
                 udp_bytes - WRAPPING_BYTES);
    uint32_t bytes = ipv4 ? IPV4_BYTES : IPV6_BYTES;
    memcpy(at, grh + GRH_BYTES - bytes, bytes);
    return bytes;
}

/* The frame as it is on the wire is built here; what is kept of it goes to the file. */
void frame_emit(const struct way *w, struct headers *h, struct cursor *data, uint32_t data_bytes)
{
    uint8_t frame[ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES + HEADERS_MAX + 4096 + 4 + ICRC_BYTES];
    uint32_t pad = -data_bytes & 3, kept;
    uint32_t udp_bytes = UDP_BYTES + h->used + data_bytes + pad + ICRC_BYTES;
    bool ipv4 = (w->flags & ROUTE_IPV4) != 0;
    put_mac(frame, w->to_ip);
    put_mac(frame + 6, w->from_ip);
    put16(frame + 12, ipv4 ? 0x0800 : 0x86dd);
    uint8_t *packet = frame + ETHERNET_BYTES, *at = packet;
    at += put_ip(w, at, udp_bytes);
    put16(at, w->udp_port);
    put16(at + 2, ROCE_PORT);
    put16(at + 4, udp_bytes);
    put16(at + 6, 0);
    at += UDP_BYTES;
    h->bytes[1] |= (uint8_t)(pad << 4);
    memcpy(at, h->bytes, h->used);
    at += h->used;
    frame_take(data, at, data_bytes);
    memset(at + data_bytes, 0, pad);
    at += data_bytes + pad;
    uint32_t whole = (uint32_t)(at - frame) + ICRC_BYTES;
    uint8_t *to = capture_begin(w->c, w->time_ns, whole, &kept);
    if (to == NULL)
        return;
    if (kept == whole) { /* it would not be seen otherwise */
        uint32_t value = icrc(w->c, packet, (size_t)(at - packet), ipv4);
        const uint8_t bytes[] = {(uint8_t)value, (uint8_t)(value >> 8), (uint8_t)(value >> 16),
                                 (uint8_t)(value >> 24)};
        memcpy(at, bytes, sizeof bytes);
        if (!ipv4)
            udp_checksum(packet, udp_bytes);
    }
    memcpy(to, frame, kept);
    capture_end(w->c, kept);
}
