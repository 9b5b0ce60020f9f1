"""The layer that reads the header of a proxy, at the beginning of a connection."""

from broker.transport.layer cimport Layer


cdef class ProxyLayer(Layer):
    cdef bint trusted                # the peer is a proxy whose word counts
    cdef bint gone                   # the peer was, before it could be asked who it is
    cdef object peer                 # HOST:PORT; None at a Unix socket
    cdef bytearray gathered          # of the header, at most HEADER_MAX bytes; None before the first
