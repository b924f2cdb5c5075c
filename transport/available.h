/* SPDX-License-Identifier: MIT */
#ifndef SSTAR_TRANSPORT_AVAILABLE_H
#define SSTAR_TRANSPORT_AVAILABLE_H

#include <stdint.h>

/* Bytes that can be had without the kernel killing somebody for them: an upper bound. */
uint64_t memory_available(void);

#endif
