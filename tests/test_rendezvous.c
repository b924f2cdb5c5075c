/* SPDX-License-Identifier: MIT */
/* Who is refused when ranks meet, and what is said when some do not come. */
#include "tests/crew.h"
#include "transport/rendezvous_io.h"
#include "transport/wait.h"
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- refusals ------------------------------------------------------------------------------- */

/* Rank 0 of a world of two, in a thread of its own. */
struct root {
    pthread_t thread;
    struct sstar_config config;
    int result;
    char error[512];
};

static void *root_main(void *arg)
{
    struct root *root = arg;
    struct sstar_world *world;
    root->result = sstar_world_open(&world, &root->config, root->error, sizeof(root->error));
    if (root->result == 0)
        sstar_world_close(world);
    return NULL;
}

static void root_start(struct root *root)
{
    memset(root, 0, sizeof(*root));
    crew_config(&root->config, 2);
    root->config.log_level = SSTAR_LOG_NONE;
    assert_int_equal(pthread_create(&root->thread, NULL, root_main, root), 0);
}

static void root_join(struct root *root)
{
    pthread_join(root->thread, NULL);
}

static int connect_to(const struct root *root)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)root->config.root_port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < 5000; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fd >= 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
            return fd;
        close(fd);
        usleep(2000);
    }
    fail_msg("rank 0 does not listen");
    return -1;
}

static void rank_one(struct hello *hello, const struct root *root)
{
    struct sstar_config config = root->config;
    config.rank = 1;
    hello_fill(hello, &config);
}

static int say_hello(const struct root *root, const struct hello *hello, size_t bytes)
{
    int fd = connect_to(root);
    struct hello wire = *hello;
    hello_swap(&wire);
    struct hello_prefix prefix = {htole32(RENDEZVOUS_MAGIC), htole32((uint32_t)bytes)};
    uint64_t deadline = clock_ns() + 20000000000u;
    assert_int_equal(write_all(fd, &prefix, sizeof(prefix), deadline), 0);
    assert_int_equal(write_all(fd, &wire, bytes, deadline), 0);
    return fd;
}

static void expect_refusal(const struct root *root, const struct hello *hello, size_t bytes,
                           const char *says)
{
    int fd = say_hello(root, hello, bytes);
    struct welcome welcome;
    assert_int_equal(receive_welcome(fd, &welcome, clock_ns() + 20000000000u), 0);
    close(fd);
    assert_true(welcome.code < 0);
    if (!strstr(welcome.text, says))
        fail_msg("\"%s\" does not say \"%s\"", welcome.text, says);
}

static void change_version(struct hello *h)
{
    h->version = 7;
}
static void change_program(struct hello *h)
{
    strcpy(h->program, "9.9.9");
}
static void change_struct(struct hello *h)
{
    h->struct_size = 300;
}
static void change_size(struct hello *h)
{
    h->size = 3;
}
static void change_rank(struct hello *h)
{
    h->rank = 2;
}
static void change_to_root(struct hello *h)
{
    h->rank = 0;
}
static void change_nodes(struct hello *h)
{
    h->ranks_per_node = 1;
}
static void change_wire(struct hello *h)
{
    double alpha = 12;
    memcpy(&h->wire[0], &alpha, sizeof(alpha));
}
static void change_ports(struct hello *h)
{
    h->port_per_rank = 1;
}
static void change_queue_pairs(struct hello *h)
{
    h->queue_pairs = 2;
}

/* What is wrong with a rank of our own job ends the rendezvous, with one sentence for both. */
static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        void (*change)(struct hello *hello);
        const char *says;
    } cases[] = {
        {change_version, "rank 1 runs sstar " SSTAR_VERSION " (protocol 7)"},
        {change_program, "rank 1 runs sstar 9.9.9"},
        {change_struct, "another layout of the rendezvous"},
        {change_size, "world of 3 ranks and rank 0 in one of 2"},
        {change_rank, "says that it is rank 2; there are 2 ranks"},
        {change_to_root, "rank 0 is there twice"},
        {change_nodes, "SSTAR_RANKS_PER_NODE is 1 for rank 1"},
        {change_wire, "SSTAR_WIRE is 12,0,0 for rank 1"},
        {change_ports, "SSTAR_PORTS is rank for rank 1"},
        {change_queue_pairs, "SSTAR_QP is 2 for rank 1"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct root root;
        root_start(&root);
        struct hello hello;
        rank_one(&hello, &root);
        cases[i].change(&hello);
        expect_refusal(&root, &hello, sizeof(hello), cases[i].says);
        root_join(&root);
        assert_true(root.result < 0);
        assert_non_null(strstr(root.error, cases[i].says));
    }
}

/* A later version may say more than we know of, an earlier one less. */
static void test_other_lengths(void **state)
{
    (void)state;
    struct root root;
    root_start(&root);
    struct hello hello;
    rank_one(&hello, &root);
    hello.version = 0;
    expect_refusal(&root, &hello, HELLO_COMMON_BYTES, "(protocol 0)");
    root_join(&root);
    assert_true(root.result < 0);
}

/* Rank 1 as it should be, after others have been turned away: the world opens. */
static void join_and_expect_success(struct root *root)
{
    struct sstar_config config = root->config;
    config.rank = 1;
    struct sstar_world *world;
    char error[512] = "";
    int err = sstar_world_open(&world, &config, error, sizeof(error));
    assert_string_equal(error, "");
    assert_int_equal(err, 0);
    sstar_world_close(world);
    root_join(root);
    assert_int_equal(root->result, 0);
}

static void test_strangers(void **state)
{
    (void)state;
    struct root root;
    root_start(&root);
    char byte;
    /* a browser */
    int http = connect_to(&root);
    static const char request[] = "GET / HTTP/1.1\r\nHost: rank0\r\n\r\n";
    assert_int_equal(send(http, request, sizeof(request) - 1, MSG_NOSIGNAL), sizeof(request) - 1);
    assert_true(read(http, &byte, 1) <= 0); /* dropped without a word */
    close(http);
    /* one that says nothing, one that leaves, one that says half of it and leaves */
    int silent = connect_to(&root);
    close(connect_to(&root));
    struct hello hello;
    rank_one(&hello, &root);
    int half = connect_to(&root);
    struct hello_prefix prefix = {htole32(RENDEZVOUS_MAGIC), htole32(sizeof(hello))};
    assert_int_equal(send(half, &prefix, sizeof(prefix), MSG_NOSIGNAL), sizeof(prefix));
    assert_int_equal(send(half, &hello, 100, MSG_NOSIGNAL), 100);
    close(half);
    /* lengths that cannot be */
    const uint32_t lengths[] = {0, 8, HELLO_COMMON_BYTES - 1, HELLO_BYTES_MAX + 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        int fd = connect_to(&root);
        struct hello_prefix bad = {htole32(RENDEZVOUS_MAGIC), htole32(lengths[i])};
        assert_int_equal(send(fd, &bad, sizeof(bad), MSG_NOSIGNAL), sizeof(bad));
        assert_true(read(fd, &byte, 1) <= 0);
        close(fd);
    }
    /* ranks of another job: refused with a sentence, and nothing happens to ours */
    strcpy(hello.token, "of another job");
    expect_refusal(&root, &hello, sizeof(hello), "token");
    hello.version = 12;
    hello.size = 70;
    expect_refusal(&root, &hello, sizeof(hello), "token");
    join_and_expect_success(&root);
    close(silent);
}

static void test_slow_hello(void **state)
{
    (void)state;
    struct root root;
    root_start(&root);
    struct hello hello;
    rank_one(&hello, &root);
    hello.queue_pairs = 77; /* so that an answer comes */
    hello_swap(&hello);
    int fd = connect_to(&root);
    struct hello_prefix prefix = {htole32(RENDEZVOUS_MAGIC), htole32(sizeof(hello))};
    const uint8_t *pieces[] = {(uint8_t *)&prefix, (uint8_t *)&hello};
    const size_t sizes[] = {sizeof(prefix), sizeof(hello)};
    for (int p = 0; p < 2; p++)
        for (size_t i = 0; i < sizes[p]; i++)
            assert_int_equal(send(fd, pieces[p] + i, 1, MSG_NOSIGNAL), 1);
    struct welcome welcome;
    assert_int_equal(receive_welcome(fd, &welcome, clock_ns() + 20000000000u), 0);
    assert_non_null(strstr(welcome.text, "SSTAR_QP is 77"));
    close(fd);
    root_join(&root);
}

static void test_rank_twice(void **state)
{
    (void)state;
    for (int with_token = 0; with_token < 2; with_token++) {
        struct root root;
        memset(&root, 0, sizeof(root));
        crew_config(&root.config, 3);
        root.config.log_level = SSTAR_LOG_NONE;
        root.config.timeout_s = with_token ? 30 : 0.5;
        if (!with_token)
            root.config.token[0] = '\0';
        assert_int_equal(pthread_create(&root.thread, NULL, root_main, &root), 0);
        struct hello hello;
        rank_one(&hello, &root);
        int first = say_hello(&root, &hello, sizeof(hello));
        expect_refusal(&root, &hello, sizeof(hello), "rank 1 is there twice");
        struct welcome welcome;
        assert_int_equal(receive_welcome(first, &welcome, clock_ns() + 20000000000u), 0);
        close(first);
        root_join(&root);
        assert_true(root.result < 0);
        /* without a token the second may be of another job, and only it is turned away */
        const char *says = with_token ? "rank 1 is there twice" : "missing: rank 2";
        assert_non_null(strstr(root.error, says));
        assert_non_null(strstr(welcome.text, says));
    }
}

/* A rank that was accepted and ends before the last has come: there will be no world. */
static void test_death_while_waiting(void **state)
{
    (void)state;
    struct root root;
    memset(&root, 0, sizeof(root));
    crew_config(&root.config, 4);
    root.config.token[0] = '\0'; /* a second rank 1 is refused, and does no harm */
    root.config.log_level = SSTAR_LOG_NONE;
    assert_int_equal(pthread_create(&root.thread, NULL, root_main, &root), 0);
    struct hello hello;
    rank_one(&hello, &root);
    int one = say_hello(&root, &hello, sizeof(hello));
    hello.rank = 2;
    int two = say_hello(&root, &hello, sizeof(hello));
    hello.rank = 1;
    expect_refusal(&root, &hello, sizeof(hello), "rank 1 is there twice"); /* so it is there */
    close(two);
    struct welcome welcome;
    assert_int_equal(receive_welcome(one, &welcome, clock_ns() + 20000000000u), 0);
    close(one);
    root_join(&root);
    assert_int_equal(root.result, -ECONNRESET);
    assert_non_null(strstr(root.error, "rank 2 (host "));
    assert_non_null(strstr(root.error, "died during the rendezvous"));
    assert_string_equal(welcome.text, root.error);
}

/* ---- what is missing ------------------------------------------------------------------------ */

static int open_and_expect(const struct sstar_config *config, void *arg)
{
    const char *says = arg;
    if (config->rank == 2 || config->rank >= 4)
        return 0; /* never come */
    struct sstar_world *world;
    char error[512] = "";
    int err = sstar_world_open(&world, config, error, sizeof(error));
    if (err == 0)
        sstar_world_close(world);
    if (err != -ETIMEDOUT || !strstr(error, says))
        return crew_complain(config->rank, "%d, \"%s\"", err, error);
    return 0;
}

static void test_missing_ranks(void **state)
{
    (void)state;
    struct sstar_config config;
    crew_config(&config, 7);
    config.timeout_s = 0.5;
    crew_threads_pass(&config, open_and_expect, "3 of 7 ranks came");
    crew_threads_pass(&config, open_and_expect, "missing: rank 2, 4-6");
}

/* Long before the end it is said who is missing. */
static void test_missing_is_said_early(void **state)
{
    (void)state;
    struct sstar_config config;
    char path[] = "/tmp/sstar-rendezvous-XXXXXX", text[1024] = "";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    crew_config(&config, 3);
    config.timeout_s = 0.5;
    config.log_level = SSTAR_LOG_WARN;
    snprintf(config.log_file, sizeof(config.log_file), "%s", path);
    crew_threads_pass(&config, open_and_expect, "2 of 3 ranks came");
    assert_true(read(fd, text, sizeof(text) - 1) > 0);
    assert_non_null(strstr(text, "2 of 3 ranks came"));
    assert_non_null(strstr(text, "missing: rank 2"));
    close(fd);
    unlink(path);
}

static void open_alone(struct sstar_config *config, int code, const char *says)
{
    struct sstar_world *world = (struct sstar_world *)&world;
    char error[512] = "";
    int err = sstar_world_open(&world, config, error, sizeof(error));
    if (!strstr(error, says))
        fail_msg("%d, \"%s\" does not say \"%s\"", err, error, says);
    assert_int_equal(err, code);
    assert_ptr_equal(world, &world); /* untouched */
}

static void test_no_root(void **state)
{
    (void)state;
    struct sstar_config config;
    crew_config(&config, 2);
    config.rank = 1;
    config.timeout_s = 0.3;
    open_alone(&config, -ETIMEDOUT, "no rank 0 at 127.0.0.1 port");
    strcpy(config.root_host, "no.such.host.invalid");
    config.timeout_s = 0.1;
    struct sstar_world *world;
    char error[512] = "";
    assert_true(sstar_world_open(&world, &config, error, sizeof(error)) < 0);
    assert_non_null(strstr(error, "no.such.host.invalid"));
    config.root_host[0] = '\0';
    open_alone(&config, -EINVAL, "mpirun -x MASTER_ADDR");
    crew_config(&config, 2);
    config.rank = 2;
    open_alone(&config, -EINVAL, "there is no rank 2 in a world of 2 ranks");
    config.rank = 0;
    config.ranks_per_node = 3;
    open_alone(&config, -EINVAL, "SSTAR_RANKS_PER_NODE");
    config.ranks_per_node = 0;
    config.root_port = 70000;
    open_alone(&config, -EINVAL, "MASTER_PORT");
    crew_config(&config, 2);
    strcpy(config.root_host, "0.0.0.0");
    strcpy(config.socket_ifname, "nosuch0");
    open_alone(&config, -EINVAL, "SSTAR_SOCKET_IFNAME=nosuch0");
    crew_config(&config, 1);
    strcpy(config.log_file, "/nonexistent/%r/%h.%p");
    open_alone(&config, -ENOENT, "SSTAR_LOG_FILE: cannot open /nonexistent/0/");
}

static int listen_anywhere(struct sockaddr_in *address)
{
    socklen_t size = sizeof(*address);
    *address =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)address, sizeof(*address)), 0);
    assert_int_equal(listen(fd, 5), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)address, &size), 0);
    return fd;
}

static void test_port_in_use(void **state)
{
    (void)state;
    struct sockaddr_in address;
    int fd = listen_anywhere(&address);
    struct sstar_config config;
    crew_config(&config, 2);
    config.root_port = ntohs(address.sin_port);
    open_alone(&config, -EADDRINUSE, "another program uses it; set MASTER_PORT");
    close(fd);
}

static void *answer_nonsense(void *arg)
{
    int fd = accept(*(int *)arg, NULL, NULL);
    static const char text[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    ssize_t n = send(fd, text, sizeof(text) - 1, MSG_NOSIGNAL);
    char bytes[512];
    while (n > 0)
        n = read(fd, bytes, sizeof(bytes));
    close(fd);
    return NULL;
}

static void test_root_is_something_else(void **state)
{
    (void)state;
    struct sockaddr_in address;
    int fd = listen_anywhere(&address);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, answer_nonsense, &fd), 0);
    struct sstar_config config;
    crew_config(&config, 2);
    config.rank = 1;
    config.root_port = ntohs(address.sin_port);
    open_alone(&config, -EBADMSG, "is not rank 0 of sstar");
    pthread_join(thread, NULL);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_other_lengths),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_slow_hello),
        cmocka_unit_test(test_rank_twice),
        cmocka_unit_test(test_death_while_waiting),
        cmocka_unit_test(test_missing_ranks),
        cmocka_unit_test(test_missing_is_said_early),
        cmocka_unit_test(test_no_root),
        cmocka_unit_test(test_port_in_use),
        cmocka_unit_test(test_root_is_something_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
