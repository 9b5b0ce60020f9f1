/* Preloaded into a broker: its first ACCEPT_FAILURES calls of accept4 fail with ACCEPT_ERRNO, then all go as they do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
    static int failures = -1;
    int (*real)(int, struct sockaddr *, socklen_t *, int) = dlsym(RTLD_NEXT, "accept4");
    if (failures < 0)
        failures = atoi(getenv("ACCEPT_FAILURES"));
    if (failures > 0) {
        failures--;
        errno = atoi(getenv("ACCEPT_ERRNO"));
        return -1;
    }
    return real(fd, address, length, flags);
}
