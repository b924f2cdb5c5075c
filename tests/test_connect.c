/* SPDX-License-Identifier: MIT */
/* How queue pairs come to be connected: what they have in the end, by their own word, and what is
 * said where it cannot be. SSTAR_TEST_CONNECT=rdmacm takes it through librdmacm. */
#include "tests/ranks.h"
#include "transport/connector.h"
#include "transport/rc.h"
#include "transport/wait.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
/* CMocka wants the ones above before it. */
#include <cmocka.h>

enum { LINK_LOCAL_INDEX = 0, IPV4_INDEX = 1 }; /* of the GID tables of softnic and of rxe */

static const struct sstar_link_attr small = {.queue_pairs = 2, .slots = 8, .slot_bytes = 64};

static bool through_rdmacm(void)
{
    const char *way = getenv("SSTAR_TEST_CONNECT");
    return way && strcmp(way, "rdmacm") == 0;
}

/* One message each way. */
static int greet(struct sstar_world *world, struct sstar_links *links, int peer)
{
    struct sstar_link *link = sstar_links_to(links, peer);
    struct message message;
    void *payload;
    int got = 0, rank = sstar_rank(world);
    CHECK(link_reserve(link, sizeof rank, &payload) == 0);
    memcpy(payload, &rank, sizeof rank);
    CHECK(link_commit(link, sizeof rank, 0) == 0);
    struct waiter w = wait_begin(world, "a greeting", peer, 0);
    while ((got = link_receive(link, &message)) == 0)
        CHECK(sstar_links_progress(links) >= 0 && wait_step(&w) == 0);
    CHECK(got == 1 && message.bytes == sizeof peer);
    CHECK(memcmp(message.data, &peer, sizeof peer) == 0);
    link_release(link, 1);
    return 0;
}

/* ---- attributes ----------------------------------------------------------------------------- */

struct asked_for {
    int traffic_class, service_level;
};

static int body_attributes(struct sstar_world *world, void *arg)
{
    const struct asked_for *asked = arg;
    int peer = !sstar_rank(world);
    struct sstar_links *links;
    world->config.traffic_class = asked->traffic_class;
    world->config.service_level = asked->service_level;
    CHECK(sstar_links_open(world, &peer, 1, &small, &links) == 0);
    const struct sstar_link *link = sstar_links_to(links, peer);
    const struct device *device = links->device;
    CHECK(link->n_qps == 3);
    for (uint32_t q = 0; q < link->n_qps; q++) {
        struct ibv_qp_attr attr;
        struct ibv_qp_init_attr init;
        CHECK(device->verbs->query_qp(link->qps[q].qp, &attr,
                                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                          IBV_QP_PATH_MTU | IBV_QP_RNR_RETRY |
                                          IBV_QP_MIN_RNR_TIMER | IBV_QP_DEST_QPN,
                                      &init) == 0);
        CHECK(attr.qp_state == IBV_QPS_RTS);
        CHECK(attr.timeout == links->device->ack_timeout && attr.retry_cnt == RC_RETRY_COUNT);
        CHECK(attr.rnr_retry == RC_RNR_RETRIES && attr.min_rnr_timer > 0);
        CHECK(attr.path_mtu == device->mtu);
        CHECK(attr.ah_attr.grh.sgid_index == IPV4_INDEX);
        CHECK(memcmp(&attr.ah_attr.grh.dgid, &link->peer_gid.gid, sizeof(union ibv_gid)) == 0);
        CHECK(attr.ah_attr.grh.traffic_class ==
              (asked->traffic_class < 0 ? 0 : asked->traffic_class));
        /* the kernel's rxe forgets it: nothing on Ethernet without priorities has use for it */
        CHECK(!ranks_can_shape() ||
              attr.ah_attr.sl == (asked->service_level < 0 ? 0 : asked->service_level));
    }
    CHECK(link->ack_timeout == device->ack_timeout && link->retry_count == RC_RETRY_COUNT);
    CHECK(greet(world, links, peer) == 0);
    sstar_links_close(links);
    return 0;
}

static void test_attributes(void **state)
{
    (void)state;
    struct asked_for nothing = {-1, -1}, some = {104, 3};
    struct ranks ranks = {.size = 2, .ranks_per_node = 1, .body = body_attributes, .arg = &nothing};
    ranks_expect_both(ranks);
    ranks.arg = &some;
    ranks_expect_both(ranks);
}

/* ---- GIDs ----------------------------------------------------------------------------------- */

/* Indices that the ranks ask for, -1: none. */
struct gids_asked_for {
    int index[2];
    int expected; /* the index both come to; or a negative errno */
    const char *says;
};

static int body_gids(struct sstar_world *world, void *arg)
{
    const struct gids_asked_for *asked = arg;
    int peer = !sstar_rank(world);
    struct sstar_links *links;
    world->config.gid_index = asked->index[sstar_rank(world)];
    int err = sstar_links_open(world, &peer, 1, &small, &links);
    CHECK(err == (asked->expected < 0 ? asked->expected : 0));
    if (err) {
        CHECK(strstr(sstar_last_error(world), asked->says));
        return 0;
    }
    const struct sstar_link *link = sstar_links_to(links, peer);
    CHECK(link->gid.index == asked->expected && link->peer_gid.index == asked->expected);
    CHECK(greet(world, links, peer) == 0);
    sstar_links_close(links);
    return 0;
}

static void test_gids(void **state)
{
    (void)state;
    bool rdmacm = through_rdmacm();
    struct gids_asked_for cases[] = {
        {{-1, -1}, IPV4_INDEX, NULL},
        {{IPV4_INDEX, -1}, IPV4_INDEX, NULL},
        /* the other end follows to the type and family that both have */
        {{-1, LINK_LOCAL_INDEX},
         rdmacm ? -EADDRNOTAVAIL : LINK_LOCAL_INDEX,
         "with an IPv4 address"},
        {{IPV4_INDEX, LINK_LOCAL_INDEX},
         rdmacm ? -EADDRNOTAVAIL : -ENOENT,
         rdmacm ? "with an IPv4 address" : "share no type and family"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        /* One end of a failure through librdmacm only hears of the other's. */
        if (rdmacm && cases[i].expected < 0)
            cases[i].says = "";
        ranks_expect_both(
            (struct ranks){.size = 2, .ranks_per_node = 1, .body = body_gids, .arg = &cases[i]});
    }
}

/* ---- two ways do not meet ------------------------------------------------------------------- */

static int body_two_ways(struct sstar_world *world, void *arg)
{
    (void)arg;
    int peer = !sstar_rank(world);
    struct sstar_links *links;
    bool rdmacm = sstar_rank(world) == 1;
    world->config.connect = rdmacm ? SSTAR_CONNECT_RDMACM : SSTAR_CONNECT_EXCHANGE;
    int err = sstar_links_open(world, &peer, 1, &small, &links);
    if (ranks_can_shape()) { /* a softnic is not for librdmacm */
        CHECK(err == -EOPNOTSUPP);
        CHECK(strstr(sstar_last_error(world),
                     rdmacm ? "librdmacm does not know it" : "rank 1 could not open its side"));
        return 0;
    }
    CHECK(err == -EPROTO);
    CHECK(strstr(sstar_last_error(world), "give all the same --connect"));
    return 0;
}

static void test_two_ways(void **state)
{
    (void)state;
    ranks_expect_both((struct ranks){.size = 2, .ranks_per_node = 1, .body = body_two_ways});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attributes),
        cmocka_unit_test(test_gids),
        cmocka_unit_test(test_two_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
