/* SPDX-License-Identifier: MIT */
/* Sockets over RDMA are not served. Their calls are defined all the same: the real library's would
 * take our ids for its own. A call's arguments are no matter: each fails. */
#include <errno.h>
#pragma GCC visibility push(default)
#include <rdma/rsocket.h>
#pragma GCC visibility pop

/* The calls that return -1 in type `type`. */
#define UNSERVED(type, name, ...)                                                                  \
    type name(__VA_ARGS__)                                                                         \
    {                                                                                              \
        errno = EOPNOTSUPP;                                                                        \
        return (type)-1;                                                                           \
    }

#pragma GCC diagnostic ignored "-Wunused-parameter"
UNSERVED(int, rsocket, int domain, int type, int protocol)
UNSERVED(int, rbind, int socket, const struct sockaddr *addr, socklen_t addrlen)
UNSERVED(int, rlisten, int socket, int backlog)
UNSERVED(int, raccept, int socket, struct sockaddr *addr, socklen_t *addrlen)
UNSERVED(int, rconnect, int socket, const struct sockaddr *addr, socklen_t addrlen)
UNSERVED(int, rshutdown, int socket, int how)
UNSERVED(int, rclose, int socket)
UNSERVED(ssize_t, rrecv, int socket, void *buf, size_t len, int flags)
UNSERVED(ssize_t, rrecvfrom, int socket, void *buf, size_t len, int flags, struct sockaddr *from,
         socklen_t *fromlen)
UNSERVED(ssize_t, rrecvmsg, int socket, struct msghdr *msg, int flags)
UNSERVED(ssize_t, rsend, int socket, const void *buf, size_t len, int flags)
UNSERVED(ssize_t, rsendto, int socket, const void *buf, size_t len, int flags,
         const struct sockaddr *to, socklen_t tolen)
UNSERVED(ssize_t, rsendmsg, int socket, const struct msghdr *msg, int flags)
UNSERVED(ssize_t, rread, int socket, void *buf, size_t count)
UNSERVED(ssize_t, rreadv, int socket, const struct iovec *iov, int iovcnt)
UNSERVED(ssize_t, rwrite, int socket, const void *buf, size_t count)
UNSERVED(ssize_t, rwritev, int socket, const struct iovec *iov, int iovcnt)
UNSERVED(int, rpoll, struct pollfd *fds, nfds_t nfds, int timeout)
UNSERVED(int, rselect, int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
         struct timeval *timeout)
UNSERVED(int, rgetpeername, int socket, struct sockaddr *addr, socklen_t *addrlen)
UNSERVED(int, rgetsockname, int socket, struct sockaddr *addr, socklen_t *addrlen)
UNSERVED(int, rsetsockopt, int socket, int level, int optname, const void *optval, socklen_t optlen)
UNSERVED(int, rgetsockopt, int socket, int level, int optname, void *optval, socklen_t *optlen)
UNSERVED(int, rfcntl, int socket, int cmd, ...)
UNSERVED(off_t, riomap, int socket, void *buf, size_t len, int prot, int flags, off_t offset)
UNSERVED(int, riounmap, int socket, void *buf, size_t len)
UNSERVED(size_t, riowrite, int socket, const void *buf, size_t count, off_t offset, int flags)
