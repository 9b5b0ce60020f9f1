"""What a worker does whose supervisor has ended: it stops to accept, and is killed."""

import os
from libc.errno cimport errno
from libc.string cimport memset

cdef extern from "<sys/socket.h>" nogil:
    int shutdown(int fd, int how)
    int SHUT_RDWR

cdef extern from "<signal.h>" nogil:
    ctypedef void (*signal_handler)(int) noexcept nogil
    struct signal_action "sigaction":
        signal_handler sa_handler
        int sa_flags
    int set_action "sigaction" (int number, const signal_action* action, signal_action* before)
    int kill(int pid, int number)
    int SIGUSR1
    int SIGKILL

cdef extern from "<sys/prctl.h>" nogil:
    int prctl(int option, unsigned long value, unsigned long, unsigned long, unsigned long)
    int PR_SET_PDEATHSIG

cdef extern from "<unistd.h>" nogil:
    int getpid()

cdef int[ORPHAN_SOCKETS_MAX] orphan_sockets      # descriptors of the sockets that an orphan shuts down
cdef int orphan_socket_count = 0


cdef void on_orphaned(int number) noexcept nogil:
    """A signal handler: nothing but what is safe in one, in whatever this process was interrupted."""
    cdef int index
    for index in range(orphan_socket_count):
        shutdown(orphan_sockets[index], SHUT_RDWR)
    kill(getpid(), SIGKILL)


def end_with_parent(descriptors: list[int]) -> None:
    """Have this process shut its listening sockets down and be killed when its parent ends, however that ends.

    A process that is killed lets go of its memory first and of its sockets last, and the system accepts meanwhile whom
    nobody will serve: a signal that kills at once is too late for them. It comes when the parent's *thread* ends that
    started us, interrupts whatever we are in, and if we are stopped, the system lets us go on, because our process group
    is an orphan then (setpgid(2)).

    Args:
        descriptors: of the sockets; those beyond 256 are shut down late, as without this.
    """
    global orphan_socket_count
    cdef signal_action action
    for index, descriptor in enumerate(descriptors[:ORPHAN_SOCKETS_MAX]):
        orphan_sockets[index] = descriptor
        orphan_socket_count = index + 1
    memset(&action, 0, sizeof(action))
    action.sa_handler = on_orphaned
    if set_action(SIGUSR1, &action, NULL) or prctl(PR_SET_PDEATHSIG, <unsigned long>SIGUSR1, 0, 0, 0):
        raise OSError(errno, os.strerror(errno))
