/* SPDX-License-Identifier: MIT */
/* The aggregator's side of a lane: what sstar_push has put there. Private. */
#ifndef SSTAR_COLLECTIVES_AGGREGATOR_LANE_H
#define SSTAR_COLLECTIVES_AGGREGATOR_LANE_H

#include "collectives/aggregator_wire.h"
#include "collectives/collectives.h"
#include <stddef.h>

static inline struct sstar_lane lane_of_format(const struct item_format *f)
{
    return (struct sstar_lane){.header_bytes = f->header,
                               .stride = f->stride,
                               .item_bytes = f->stride ? f->fixed : UINT32_MAX};
}

static inline void lane_open(struct sstar_lane *lane, uint8_t *at, uint8_t *end)
{
    lane->begin = lane->at = at;
    lane->end = end;
}
static inline void lane_shut(struct sstar_lane *lane)
{
    lane->begin = lane->at = lane->end = NULL;
}

/* Count what was put there; a push of messages that are all alike does not. The whole count. */
static inline uint32_t lane_settle(struct sstar_lane *lane)
{
    if (lane->at != lane->begin && lane->stride) {
        uint32_t n = (uint32_t)(lane->at - lane->begin) / lane->stride;
        lane->count += n;
        lane->bytes += n * lane->item_bytes;
        lane->begin = lane->at;
    }
    return lane->count;
}

#endif
