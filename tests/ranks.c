/* SPDX-License-Identifier: MIT */
#include "tests/ranks.h"
#include "transport/device.h"
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
/* CMocka wants the ones above before it. */
#include <cmocka.h>

struct one_rank {
    const struct ranks *ranks;
    int rank, port, failed;
    const char *token;
};

void ranks_complain(const struct sstar_world *world, const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: rank %d: not so: %s (last error: %s)\n", file, line, sstar_rank(world),
            what, sstar_last_error(world));
}

/* SSTAR_TEST_DEVICE=rxe0 takes the tests to another device. */
static const char *device_under_test(void)
{
    const char *name = getenv("SSTAR_TEST_DEVICE");
    return name ? name : "softnic";
}

/* SSTAR_TEST_CONNECT=rdmacm connects through librdmacm. */
static enum sstar_connect connect_under_test(void)
{
    const char *name = getenv("SSTAR_TEST_CONNECT");
    return name && strcmp(name, "rdmacm") == 0 ? SSTAR_CONNECT_RDMACM : SSTAR_CONNECT_EXCHANGE;
}

bool ranks_can_shape(void)
{
    return strcmp(device_under_test(), "softnic") == 0;
}

static int run_one(struct one_rank *one)
{
    const struct ranks *ranks = one->ranks;
    struct sstar_config config;
    char error[512] = "";
    if (sstar_config_init(&config, error, sizeof error) != 0) {
        fprintf(stderr, "rank %d: %s\n", one->rank, error);
        return 1;
    }
    config.rank = one->rank;
    config.size = ranks->size;
    config.root_port = one->port;
    config.ranks_per_node = ranks->ranks_per_node;
    config.port_per_rank = ranks->port_per_rank;
    config.wire = ranks->wire;
    config.connect = connect_under_test();
    if (ranks->order.relaxed)
        config.order = ranks->order;
    config.faults = ranks->faults;
    if (ranks->queue_pairs)
        config.queue_pairs = ranks->queue_pairs;
    snprintf(config.ib_dev, sizeof config.ib_dev, "%s",
             ranks->ib_dev ? ranks->ib_dev : device_under_test());
    snprintf(config.root_host, sizeof config.root_host, "127.0.0.1");
    snprintf(config.token, sizeof config.token, "%s", one->token);
    struct sstar_world *world;
    if (sstar_world_open(&world, &config, error, sizeof error) != 0) {
        fprintf(stderr, "rank %d cannot open its world: %s\n", one->rank, error);
        return 1;
    }
    int failed = ranks->body(world, ranks->arg) != 0;
    sstar_world_close(world);
    return failed;
}

static void *thread_main(void *arg)
{
    struct one_rank *one = arg;
    one->failed = run_one(one);
    return NULL;
}

static int run_threads(struct one_rank *all, int n)
{
    pthread_t threads[64];
    int failed = 0;
    for (int i = 0; i < n; i++)
        if (pthread_create(&threads[i], NULL, thread_main, &all[i]) != 0)
            abort();
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        failed += all[i].failed;
    }
    return failed;
}

/* A proxy and the thread of its rank are ordered by what another rank answers, which
 * ThreadSanitizer sees only where that is in the same process. So between processes it is told to
 * overlook what the rank's own thread reads and writes; the same bodies run with ranks as threads.
 * It cannot be told so of a thread that the library starts: such bodies run as threads alone. */
static bool order_is_unseen(void)
{
#if defined(__SANITIZE_THREAD__)
    const char *control = getenv("SSTAR_CONTROL");
    return control && strncmp(control, "proxy", 5) == 0;
#else
    return false;
#endif
}

static void overlook_own_thread(bool begin)
{
#if defined(__SANITIZE_THREAD__)
    void AnnotateIgnoreReadsBegin(const char *file, int line);
    void AnnotateIgnoreWritesBegin(const char *file, int line);
    void AnnotateIgnoreReadsEnd(const char *file, int line);
    void AnnotateIgnoreWritesEnd(const char *file, int line);
    if (!order_is_unseen())
        return;
    (begin ? AnnotateIgnoreReadsBegin : AnnotateIgnoreReadsEnd)(__FILE__, __LINE__);
    (begin ? AnnotateIgnoreWritesBegin : AnnotateIgnoreWritesEnd)(__FILE__, __LINE__);
#else
    (void)begin;
#endif
}

static int run_processes(struct one_rank *all, int n)
{
    pid_t pids[64];
    int failed = 0;
    fflush(NULL);
    for (int i = 0; i < n; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            abort();
        if (pids[i] == 0) {
            overlook_own_thread(true);
            int status = run_one(&all[i]);
            overlook_own_thread(false);
            fflush(NULL);
            _exit(status);
        }
    }
    for (int i = 0; i < n; i++) {
        int status = 0;
        while (waitpid(pids[i], &status, 0) < 0 && errno == EINTR)
            ;
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    return failed;
}

/* A port that is free now; the kernel does not hand it out again soon. */
static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        abort();
    close(fd);
    return ntohs(address.sin_port);
}

int ranks_run(const struct ranks *ranks)
{
    if (ranks->wire.alpha_us > 0 && !ranks_can_shape())
        return 0;
    struct one_rank all[64];
    char token[64];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(token, sizeof token, "test-%d-%lld-%ld", (int)getpid(), (long long)now.tv_sec,
             now.tv_nsec);
    int port = free_port();
    for (int i = 0; i < ranks->size; i++)
        all[i] = (struct one_rank){.ranks = ranks, .rank = i, .port = port, .token = token};
    return ranks->processes ? run_processes(all, ranks->size) : run_threads(all, ranks->size);
}

void ranks_expect(const struct ranks *ranks)
{
    assert_int_equal(ranks_run(ranks), 0);
}

void ranks_expect_both(struct ranks ranks)
{
    for (int processes = 0; processes < 2; processes++) {
        ranks.processes = processes;
        if (!processes || !ranks.helped || !order_is_unseen())
            ranks_expect(&ranks);
    }
}

const struct sstar_wire ranks_shaped = {20, 1, 1};

/* ---- a device with ibv_post_send only ---- */

static struct ibv_qp *refuse_create_qp_ex(struct ibv_context *context,
                                          struct ibv_qp_init_attr_ex *attr)
{
    (void)context;
    (void)attr;
    errno = EOPNOTSUPP;
    return NULL;
}

int use_plain_device(struct sstar_world *world)
{
    static _Thread_local struct verbs plain;
    struct device *device;
    int err = device_get(world, &device);
    if (err)
        return err;
    plain = *device->verbs;
    plain.create_qp_ex = refuse_create_qp_ex;
    device->verbs = &plain;
    device->part_bytes = 64;
    return 0;
}

/* ---- contents ---- */

uint64_t pattern_seed(int from, int to, int i)
{
    uint64_t seed = PATTERN_SEED ^ (uint64_t)from << 48 ^ (uint64_t)to << 32 ^ ((uint64_t)i + 1);
    random_next(&seed);
    return seed | 1;
}

void pattern_fill(uint8_t *to, uint32_t bytes, uint64_t seed)
{
    for (uint32_t i = 0; i < bytes; i++)
        to[i] = (uint8_t)(random_next(&seed) >> 56);
}

bool pattern_holds(const uint8_t *from, uint32_t bytes, uint64_t seed)
{
    for (uint32_t i = 0; i < bytes; i++)
        if (from[i] != (uint8_t)(random_next(&seed) >> 56))
            return false;
    return true;
}
