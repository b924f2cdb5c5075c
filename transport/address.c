/* SPDX-License-Identifier: MIT */
#include "transport/address.h"
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

static bool host_is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "localhost") == 0 ||
           strcmp(host, "::1") == 0;
}

/* NCCL's rule: a list of prefixes; "^" before it excludes, "=" before it wants the whole name. */
static bool interface_matches(const char *rule, const char *name)
{
    bool exclude = *rule == '^';
    rule += exclude;
    bool whole = *rule == '=';
    rule += whole;
    bool found = false;
    while (*rule && !found) {
        size_t n = strcspn(rule, ",");
        found = n > 0 && strncmp(rule, name, n) == 0 && (!whole || name[n] == '\0');
        rule += n + (rule[n] == ',');
    }
    return found != exclude;
}

static socklen_t address_bytes(int family)
{
    return family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* The first address of the interface that SSTAR_SOCKET_IFNAME asks for. `family` AF_UNSPEC: any,
 * IPv4 first. -EINVAL with a sentence that lists what there is. */
static int interface_address(const char *rule, int family, struct sockaddr_storage *address,
                             struct report *report)
{
    struct ifaddrs *list;
    if (getifaddrs(&list) < 0)
        return report_set(report, -errno, "cannot list the network interfaces: %s",
                          strerror(errno));
    const struct ifaddrs *chosen = NULL;
    char names[256] = "";
    size_t used = 0;
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        if (!i->ifa_addr || !(i->ifa_flags & IFF_UP))
            continue;
        int f = i->ifa_addr->sa_family;
        if (f == AF_INET && used < sizeof(names))
            used += (size_t)snprintf(names + used, sizeof(names) - used, " %s", i->ifa_name);
        if ((f != AF_INET && f != AF_INET6) || (family != AF_UNSPEC && f != family) ||
            !interface_matches(rule, i->ifa_name))
            continue;
        if (!chosen || (chosen->ifa_addr->sa_family == AF_INET6 && f == AF_INET))
            chosen = i;
    }
    int err = 0;
    if (chosen)
        memcpy(address, chosen->ifa_addr, address_bytes(chosen->ifa_addr->sa_family));
    else
        err = report_set(report, -EINVAL,
                         "SSTAR_SOCKET_IFNAME=%s names no interface that is up and has an address; "
                         "there are:%s",
                         rule, names);
    freeifaddrs(list);
    return err;
}

static void set_port(struct sockaddr_storage *address, int port)
{
    if (address->ss_family == AF_INET)
        ((struct sockaddr_in *)address)->sin_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in6 *)address)->sin6_port = htons((uint16_t)port);
}

static int resolve(const struct sstar_config *config, struct addrinfo **list, struct report *report)
{
    char port[16];
    snprintf(port, sizeof(port), "%d", config->root_port);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    const char *host =
        strcmp(config->root_host, "localhost") == 0 ? "127.0.0.1" : config->root_host;
    int code = getaddrinfo(host, port, &hints, list);
    if (code == 0)
        return 0;
    return report_set(report, code == EAI_AGAIN ? -EAGAIN : -ENXIO,
                      "rank %d: the host of rank 0, \"%s\" (from %s), is not known here: %s",
                      config->rank, config->root_host, config->root_host_origin,
                      gai_strerror(code));
}

/* Where to listen when no interface is named. */
static int listen_address(const struct sstar_config *config, struct sockaddr_storage *address,
                          struct report *report)
{
    if (!host_is_loopback(config->root_host)) {
        *(struct sockaddr_in6 *)address =
            (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
        return 0;
    }
    struct addrinfo *list;
    int err = resolve(config, &list, report);
    if (err < 0)
        return err;
    memcpy(address, list->ai_addr, list->ai_addrlen);
    freeaddrinfo(list);
    return 0;
}

static int listen_on(const struct sockaddr_storage *address)
{
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int on = 1, off = 0;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (address->ss_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (bind(fd, (const struct sockaddr *)address, address_bytes(address->ss_family)) < 0 ||
        listen(fd, BACKLOG) < 0) {
        int code = errno;
        close(fd);
        return -code;
    }
    return fd;
}

int address_listen(const struct sstar_config *config, struct report *report)
{
    struct sockaddr_storage address = {0};
    bool named = config->socket_ifname[0] && !host_is_loopback(config->root_host);
    int err = named ? interface_address(config->socket_ifname, AF_UNSPEC, &address, report)
                    : listen_address(config, &address, report);
    if (err < 0)
        return err;
    set_port(&address, config->root_port);
    int fd = listen_on(&address);
    if (!named && address.ss_family == AF_INET6 && (fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL)) {
        /* A host without IPv6. */
        struct sockaddr_storage any = {.ss_family = AF_INET};
        set_port(&any, config->root_port);
        fd = listen_on(&any);
    }
    if (fd == -EADDRINUSE)
        return report_set(report, fd,
                          "rank 0 cannot listen at port %d: another program uses it; set "
                          "MASTER_PORT to another value (rank 0 listens at MASTER_PORT + 1)",
                          config->root_port);
    if (fd < 0)
        return report_set(report, fd, "rank 0 cannot listen at port %d: %s", config->root_port,
                          strerror(-fd));
    return fd;
}

/* Finish a connect that is under way. 0 or -errno. */
static int finish_connect(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int n = poll(&p, 1, timeout_ms);
    if (n == 0)
        return -ETIMEDOUT;
    if (n < 0)
        return -errno;
    int code = 0;
    socklen_t size = sizeof(code);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size) < 0)
        return -errno;
    return -code;
}

/* TCP connects a socket to itself when nobody listens and the kernel happens to give us the port
 * that we try to reach. */
static bool connected_to_itself(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_size = sizeof(here), there_size = sizeof(there);
    return getsockname(fd, (struct sockaddr *)&here, &here_size) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &there_size) == 0 &&
           here_size == there_size && memcmp(&here, &there, here_size) == 0;
}

static int connect_one(const struct sstar_config *config, const struct addrinfo *to, int timeout_ms,
                       struct report *report)
{
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int err = 0;
    if (config->socket_ifname[0] && !host_is_loopback(config->root_host)) {
        struct sockaddr_storage from = {0};
        err = interface_address(config->socket_ifname, to->ai_family, &from, report);
        if (err == 0 && bind(fd, (struct sockaddr *)&from, address_bytes(from.ss_family)) < 0)
            err = -errno;
    }
    if (err == 0 && connect(fd, to->ai_addr, to->ai_addrlen) < 0)
        err = errno == EINPROGRESS || errno == EINTR ? finish_connect(fd, timeout_ms) : -errno;
    if (err == 0 && connected_to_itself(fd))
        err = -ECONNREFUSED;
    if (err < 0) {
        close(fd);
        return err;
    }
    return fd;
}

int address_connect(const struct sstar_config *config, int timeout_ms, struct report *report)
{
    struct addrinfo *list;
    int err = resolve(config, &list, report);
    if (err < 0)
        return err;
    int fd = -EINVAL;
    for (const struct addrinfo *to = list; to && fd < 0; to = to->ai_next) {
        int attempt = connect_one(config, to, timeout_ms, report);
        if (attempt != -EINVAL) /* an interface may lack one family; any other answer is better */
            fd = attempt;
    }
    freeaddrinfo(list);
    return fd;
}

void address_tune(int fd)
{
    int on = 1, seconds = 1, probes = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof(seconds));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}
