"""Who is at the other end of a socket, as text."""

cdef extern from "<sys/socket.h>" nogil:
    ctypedef unsigned int socklen_t
    struct sockaddr:
        pass
    struct sockaddr_storage:
        unsigned short ss_family

cdef object address_of(const sockaddr_storage* peer)     # HOST:PORT of who came by IPv4; None of another: ask the socket
cdef object address_at(int fd)                           # HOST:PORT; None: it has none, or is gone
