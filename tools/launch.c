/* SPDX-License-Identifier: MIT */
/*
 * Ranks as children of this process. No signal handlers: the signals are blocked and taken one by
 * one with sigtimedwait, so that everything happens in one loop. Ranks die with the launcher
 * (PDEATHSIG), and what they leave behind becomes ours (subreaper) and is ended too.
 */
#include "tools/tool.h"
#include "transport/wait.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    GRACE_S = 4,      /* ranks notice a death within 2 s and name the dead one; longer than that */
    PORT_LOW = 20000, /* below the ports that the kernel gives to outgoing connections */
    PORTS = 10000,
    EXIT_CANNOT_RUN = 126,
    EXIT_NOT_FOUND = 127,
};

struct launch {
    int n, ranks_per_node;
    char **argv;
    int port;
    char token[33];
    pid_t parent;
    pid_t *pids; /* [n], 0: has ended */
    int running;
    sigset_t taken, before;
    bool sweep;           /* we had no children before, so any that are left are the ranks' */
    bool ending;          /* a rank failed or we were told to end */
    uint64_t deadline_ns; /* 0: none */
    int status;           /* of the first rank that failed */
};

/* ---- the environment of a rank -------------------------------------------------------------- */

static bool port_is_free(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int err = bind(fd, (struct sockaddr *)&address, sizeof(address));
    close(fd);
    return !err;
}

/* A port for MASTER_PORT such that it and the next, which is ours, are free. */
static int find_ports(struct launch *l)
{
    uint32_t random;
    if (getrandom(&random, sizeof(random), 0) != sizeof(random))
        return -errno;
    for (uint32_t i = 0; i < PORTS; i += 2) {
        int port = PORT_LOW + (int)((random + i) % PORTS);
        if (port_is_free(port) && port_is_free(port + 1)) {
            l->port = port;
            return 0;
        }
    }
    return -EADDRINUSE;
}

int launch_token(char *token, size_t size)
{
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes))
        return -errno;
    for (size_t i = 0; i < sizeof(bytes) && 2 * i + 2 < size; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    setenv(name, text, 1);
}

static void set_environment(const struct launch *l, int rank)
{
    int per_node = l->ranks_per_node ? l->ranks_per_node : l->n;
    int first = rank / per_node * per_node;
    set_number("RANK", rank);
    set_number("WORLD_SIZE", l->n);
    set_number("LOCAL_RANK", rank - first);
    set_number("LOCAL_WORLD_SIZE", l->n - first < per_node ? l->n - first : per_node);
    set_number("MASTER_PORT", l->port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("SSTAR_TOKEN", l->token, 1);
    if (l->ranks_per_node)
        set_number("SSTAR_RANKS_PER_NODE", l->ranks_per_node);
}

/* ---- starting ------------------------------------------------------------------------------- */

static _Noreturn void become_rank(const struct launch *l, int rank, int report_fd)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != l->parent) /* it died before we asked to be told */
        _exit(EXIT_FAILURE);
    sigprocmask(SIG_SETMASK, &l->before, NULL);
    set_environment(l, rank);
    execvp(l->argv[0], l->argv);
    int err = errno;
    ssize_t written = write(report_fd, &err, sizeof(err));
    (void)written; /* nobody else to tell */
    _exit(EXIT_NOT_FOUND);
}

/* 0 when the rank runs the program; otherwise an errno, and there is no such rank. */
static int start_rank(struct launch *l, int rank)
{
    int ends[2], failure = 0;
    if (pipe2(ends, O_CLOEXEC))
        return -errno;
    pid_t pid = fork();
    if (pid == 0)
        become_rank(l, rank, ends[1]);
    int err = pid < 0 ? -errno : 0;
    close(ends[1]);
    if (!err) {
        ssize_t got;
        while ((got = read(ends[0], &failure, sizeof(failure))) < 0 && errno == EINTR)
            ;
        if (got == sizeof(failure)) {
            waitpid(pid, NULL, 0);
            err = -failure;
        } else {
            l->pids[rank] = pid;
            l->running++;
        }
    }
    close(ends[0]);
    return err;
}

static void signal_all(const struct launch *l, int number)
{
    for (int rank = 0; rank < l->n; rank++)
        if (l->pids[rank])
            kill(l->pids[rank], number);
}

static int start_all(struct launch *l)
{
    for (int rank = 0; rank < l->n; rank++) {
        int err = start_rank(l, rank);
        if (!err)
            continue;
        signal_all(l, SIGKILL);
        fprintf(stderr, "sstar: cannot run '%s' as rank %d of %d: %s; %s\n", l->argv[0], rank, l->n,
                strerror(-err),
                err == -EMFILE || err == -ENFILE ? "raise the limit of open files (ulimit -n)"
                : err == -EAGAIN || err == -ENOMEM
                    ? "start fewer ranks or raise the limit of processes (ulimit -u)"
                    : "check the name of the program and that it may be executed");
        return err == -ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
    }
    return 0;
}

/* ---- watching ------------------------------------------------------------------------------- */

static void begin_ending(struct launch *l)
{
    if (!l->ending)
        l->deadline_ns = clock_ns() + GRACE_S * 1000000000ull;
    l->ending = true;
}

static void say_failed(int rank, pid_t pid, int status)
{
    if (WIFSIGNALED(status))
        fprintf(stderr, "sstar: rank %d (pid %d) was killed by signal %d (%s)\n", rank, (int)pid,
                WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        fprintf(stderr, "sstar: rank %d (pid %d) ended with status %d\n", rank, (int)pid,
                WEXITSTATUS(status));
}

static void rank_ended(struct launch *l, int rank, int status)
{
    pid_t pid = l->pids[rank];
    l->pids[rank] = 0;
    l->running--;
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (!code)
        return;
    if (!l->status) {
        l->status = code;
        if (code != EXIT_SKIPPED && !l->ending)
            say_failed(rank, pid, status);
    }
    begin_ending(l);
}

static void reap(struct launch *l)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (int rank = 0; rank < l->n; rank++)
            if (l->pids[rank] == pid)
                rank_ended(l, rank, status);
}

/* A signal for us is one for the ranks. What the terminal's keys sent (SI_KERNEL) has reached them
 * already. Told a second time, we wait no longer. */
static void take_signal(struct launch *l, const siginfo_t *info)
{
    if (info->si_signo == SIGCHLD)
        return;
    if (l->ending)
        signal_all(l, SIGKILL);
    else if (info->si_code != SI_KERNEL)
        signal_all(l, info->si_signo);
    begin_ending(l);
}

static void watch(struct launch *l)
{
    for (reap(l); l->running; reap(l)) {
        siginfo_t info;
        struct timespec left = {.tv_sec = 3600};
        if (l->deadline_ns) {
            uint64_t now = clock_ns(), ns = l->deadline_ns > now ? l->deadline_ns - now : 0;
            left = (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
        }
        if (sigtimedwait(&l->taken, &info, &left) > 0) {
            take_signal(l, &info);
        } else if (errno == EAGAIN && l->deadline_ns) {
            fprintf(stderr, "sstar: %d rank%s did not end by %s within %d s; killing\n", l->running,
                    l->running == 1 ? "" : "s", l->running == 1 ? "itself" : "themselves", GRACE_S);
            signal_all(l, SIGKILL);
            l->deadline_ns = 0;
        }
    }
}

/* End what the ranks left behind: as subreaper we inherited it. */
static void sweep(void)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    for (;;) {
        FILE *children = fopen(path, "re");
        int pid, found = 0;
        while (children && fscanf(children, "%d", &pid) == 1)
            found += kill(pid, SIGKILL) == 0;
        if (children)
            fclose(children);
        if (!found || waitpid(-1, NULL, 0) < 0)
            return;
    }
}

/* ---- all together --------------------------------------------------------------------------- */

static void take_signals(struct launch *l)
{
    static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP};
    sigemptyset(&l->taken);
    sigaddset(&l->taken, SIGCHLD);
    for (size_t i = 0; i < sizeof(forwarded) / sizeof(forwarded[0]); i++) {
        struct sigaction action; /* ignored from outside (nohup) stays ignored */
        if (!sigaction(forwarded[i], NULL, &action) && action.sa_handler != SIG_IGN)
            sigaddset(&l->taken, forwarded[i]);
    }
    signal(SIGCHLD, SIG_DFL); /* else the kernel throws the exit statuses away */
    sigprocmask(SIG_BLOCK, &l->taken, &l->before);
}

static int check(int n, int ranks_per_node)
{
    if (n < 1 || n > MAX_RANKS) {
        fprintf(stderr, "sstar: %d ranks cannot be started; take 1 to %d\n", n, MAX_RANKS);
        return EXIT_USAGE;
    }
    if (ranks_per_node < 0 || ranks_per_node > n) {
        fprintf(stderr, "sstar: %d ranks per node do not go with %d ranks; take 1 to %d\n",
                ranks_per_node, n, n);
        return EXIT_USAGE;
    }
    return 0;
}

int launch_ranks(int n, int ranks_per_node, char **argv)
{
    struct launch l = {.n = n, .ranks_per_node = ranks_per_node, .argv = argv, .parent = getpid()};
    int status = check(n, ranks_per_node);
    if (status)
        return status;
    int err = find_ports(&l);
    if (!err)
        err = launch_token(l.token, sizeof(l.token));
    if (!err && !(l.pids = calloc((size_t)n, sizeof(*l.pids))))
        err = -ENOMEM;
    if (err) {
        fprintf(stderr, "sstar: cannot start ranks: %s\n", strerror(-err));
        return EXIT_FAILURE;
    }
    fflush(NULL);
    siginfo_t info;
    l.sweep = waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) && errno == ECHILD &&
              !prctl(PR_SET_CHILD_SUBREAPER, 1);
    take_signals(&l);
    status = start_all(&l);
    watch(&l);
    if (l.sweep)
        sweep();
    sigprocmask(SIG_SETMASK, &l.before, NULL);
    free(l.pids);
    return status ? status : l.status;
}
