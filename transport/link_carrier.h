/* SPDX-License-Identifier: MIT */
/* Links whose requests are carried out by a carrier. Private to link_*.c and links.c. */
#ifndef SSTAR_TRANSPORT_LINK_CARRIER_H
#define SSTAR_TRANSPORT_LINK_CARRIER_H

#include "transport/proxy.h"
#include "transport/rc.h"

/* When its queue pairs are connected: a carrier for a set that needs one, in a proxy's charge where
 * the control path is that. 0 or a negative errno with a sentence. */
int link_carrier_open(struct sstar_links *links);
/* Before its queue pairs go. Not 0: the proxy still has it, and nothing may be freed. */
int link_carrier_close(struct sstar_links *links);

/* To the proxy; last: its doorbell is due. */
int link_hand_over(struct sstar_link *link, const struct rc_qp *q,
                   const struct post_request *request, bool last);
int link_hand_over_receives(struct sstar_link *link, const struct rc_qp *q, uint32_t n,
                            uint64_t wr_id);
/* Flags for sstar_post, for measuring. `add` is a struct stamped *; its stamps are filled when the
 * operation has completed and the caller has been told. Not inline: although it could be. */
enum { POST_STAMPED = 0x100, POST_NOT_INLINE = 0x200 };
struct stamped {
    uint32_t wanted;             /* STAMP_SEEN, ... */
    struct stage_stamps *stamps; /* not touched before, which would take their cache line away */
};

/* As poll_cq. */
int link_carrier_poll(struct sstar_links *links, struct ibv_wc *wc, int most);

#endif
