/* Preloaded into a broker: its first ACCEPT_FAILURES calls of accept4 for clients, which come by TCP, fail with ACCEPT_ERRNO, and its first WATCH_FAILURES
   calls of epoll_ctl that watch what was accepted last fail with WATCH_ERRNO; then all go as they do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

static int accepted = -1;

static int fails(int *failures, const char *count, const char *number) {
    if (*failures < 0)
        *failures = getenv(count) ? atoi(getenv(count)) : 0;
    if (*failures == 0)
        return 0;
    (*failures)--;
    errno = atoi(getenv(number));
    return 1;
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
    static int failures = -1;
    int (*real)(int, struct sockaddr *, socklen_t *, int) = dlsym(RTLD_NEXT, "accept4");
    int domain = 0;
    socklen_t size = sizeof domain;
    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
    if (domain == AF_UNIX)
        return real(fd, address, length, flags);
    if (fails(&failures, "ACCEPT_FAILURES", "ACCEPT_ERRNO"))
        return -1;
    return accepted = real(fd, address, length, flags);
}

int epoll_ctl(int epoll_fd, int operation, int fd, struct epoll_event *event) {
    static int failures = -1;
    int (*real)(int, int, int, struct epoll_event *) = dlsym(RTLD_NEXT, "epoll_ctl");
    if (operation == EPOLL_CTL_ADD && fd == accepted && accepted >= 0 && fails(&failures, "WATCH_FAILURES", "WATCH_ERRNO"))
        return -1;
    return real(epoll_fd, operation, fd, event);
}
