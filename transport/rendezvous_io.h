/* SPDX-License-Identifier: MIT */
/* Reading and writing the messages of the rendezvous. Private to rendezvous*.c and its test. */
#ifndef SSTAR_TRANSPORT_RENDEZVOUS_IO_H
#define SSTAR_TRANSPORT_RENDEZVOUS_IO_H

#include "transport/rendezvous.h"
#include <stddef.h>

/* What of a hello is the same in every version. */
enum { HELLO_COMMON_BYTES = offsetof(struct hello, boot_id) };

/* All of it by the deadline, on a socket that does not block: 0, -ETIMEDOUT, -ECONNRESET at the end
 * of the stream, or another errno. */
int write_all(int fd, const void *data, size_t bytes, uint64_t deadline_ns);
int read_all(int fd, void *data, size_t bytes, uint64_t deadline_ns);

int send_welcome(int fd, int code, const char *text, uint64_t deadline_ns);
/* -EBADMSG: that was no welcome. */
int receive_welcome(int fd, struct welcome *welcome, uint64_t deadline_ns);

/* Between the byte order of the wire and ours (the same both ways). */
void hello_swap(struct hello *hello);
/* Make all text of a hello that came from elsewhere end. */
void hello_terminate(struct hello *hello);

#endif
