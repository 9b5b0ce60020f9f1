"""Who is at the other end of a socket, as text: an ACL is told for each CONNECT, so it is cheap for IPv4."""

from broker.reactor.peer_socket import peer_address
from libc.stdint cimport uint16_t, uint32_t

cdef extern from "<sys/socket.h>" nogil:
    int AF_INET
    int AF_UNIX
    int getpeername(int fd, sockaddr* address, socklen_t* length)

cdef extern from "<netinet/in.h>" nogil:
    struct in_addr:
        uint32_t s_addr
    struct sockaddr_in:
        uint16_t sin_port
        in_addr sin_addr

cdef extern from "<arpa/inet.h>" nogil:
    const char* inet_ntop(int family, const void* address, char* text, socklen_t size)
    uint16_t ntohs(uint16_t number)


cdef object address_of(const sockaddr_storage* peer):
    cdef const sockaddr_in* address = <const sockaddr_in*>peer
    cdef char[16] text
    if peer.ss_family != AF_INET or inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text)) == NULL:
        return None
    return f"{(<bytes>text).decode('ascii')}:{ntohs(address.sin_port)}"


cdef object address_at(int fd):
    cdef sockaddr_storage peer
    cdef socklen_t length = sizeof(peer)
    if getpeername(fd, <sockaddr*>&peer, &length) != 0 or peer.ss_family == AF_UNIX:
        return None
    return address_of(&peer) or peer_address(fd)
