/* SPDX-License-Identifier: MIT */
#include "tests/crew.h"
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int free_port(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        abort();
    close(fd);
    return ntohs(address.sin_port);
}

void crew_config(struct sstar_config *config, int size)
{
    *config = (struct sstar_config){.size = size,
                                    .launcher = "none",
                                    .root_host = "127.0.0.1",
                                    .root_host_origin = "test",
                                    .root_port = free_port(),
                                    .traffic_class = -1,
                                    .service_level = -1,
                                    .gid_index = -1,
                                    .queue_pairs = 4,
                                    .ib_dev = "softnic",
                                    .timeout_s = 30,
                                    .log_level = SSTAR_LOG_WARN};
    snprintf(config->token, sizeof(config->token), "test-%d-%d", (int)getpid(), config->root_port);
}

struct member {
    pthread_t thread;
    struct sstar_config config;
    crew_fn fn;
    void *arg;
    int result;
};

static void *member_main(void *arg)
{
    struct member *m = arg;
    m->result = m->fn(&m->config, m->arg);
    return NULL;
}

void crew_threads(const struct sstar_config *config, crew_fn fn, void *arg, int *results)
{
    struct member members[CREW_MAX];
    for (int r = 0; r < config->size; r++) {
        members[r] = (struct member){.config = *config, .fn = fn, .arg = arg};
        members[r].config.rank = r;
        if (pthread_create(&members[r].thread, NULL, member_main, &members[r]) != 0)
            abort();
    }
    for (int r = 0; r < config->size; r++) {
        pthread_join(members[r].thread, NULL);
        results[r] = members[r].result;
    }
}

void crew_start(const struct sstar_config *config, crew_fn fn, void *arg, pid_t *pids)
{
    fflush(NULL);
    for (int r = 0; r < config->size; r++) {
        pids[r] = fork();
        if (pids[r] < 0)
            abort();
        if (pids[r] == 0) {
            alarm(60);
            struct sstar_config mine = *config;
            mine.rank = r;
            int result = fn(&mine, arg);
            fflush(NULL);
            _exit(result);
        }
    }
}

void crew_join(const pid_t *pids, int size, int *results)
{
    for (int r = 0; r < size; r++) {
        int status;
        pid_t pid;
        do
            pid = waitpid(pids[r], &status, 0);
        while (pid < 0 && errno == EINTR);
        if (pid != pids[r])
            abort();
        results[r] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
}

void crew_processes(const struct sstar_config *config, crew_fn fn, void *arg, int *results)
{
    pid_t pids[CREW_MAX];
    crew_start(config, fn, arg, pids);
    crew_join(pids, config->size, results);
}

static void expect_none_failed(const struct sstar_config *config, const int *results)
{
    for (int r = 0; r < config->size; r++)
        if (results[r] != 0)
            fail_msg("rank %d of %d: %d", r, config->size, results[r]);
}

void crew_threads_pass(const struct sstar_config *config, crew_fn fn, void *arg)
{
    int results[CREW_MAX];
    crew_threads(config, fn, arg, results);
    expect_none_failed(config, results);
}

void crew_processes_pass(const struct sstar_config *config, crew_fn fn, void *arg)
{
    int results[CREW_MAX];
    crew_processes(config, fn, arg, results);
    expect_none_failed(config, results);
}

int crew_complain(int rank, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    fprintf(stderr, "rank %d: %s\n", rank, text);
    return 1;
}
