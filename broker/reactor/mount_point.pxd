"""The mount point of a listener: the part of the topic tree that its clients live in, and take for the whole."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from router.core.message cimport Message

cdef enum:
    MOUNTED_IN = 0x30            # in Protocol.publish_bits_refused: each PUBLISH is looked at before it is routed

cdef struct Scratch:             # bytes of one message, until the next one's
    uint8_t* data
    size_t size


cdef class MountPoint:
    cdef readonly bytes prefix            # 1 byte or more, the last one is /; in front of every name, but behind a leading $
    cdef Message inner                    # what a client is sent; its pointers are the message's or into what was left
    cdef Scratch entered_name, entered_properties        # of the client's message that is under way
    cdef Scratch left_name, left_properties              # of `inner`

    cdef int enter(self, Message message) except -1      # a borrowed message of a client's: its names become the broker's
    # The message under the name that it has here, valid until the next call. None if it has none.
    cdef Message leave(self, Message message)

    cdef bint holds(self, const uint8_t* name, size_t length) noexcept
    cdef int check_length(self, size_t length) except -1
    cdef uint16_t put_mounted(self, uint8_t* to, const uint8_t* name, size_t length) noexcept
    cdef uint16_t put_seen(self, uint8_t* to, const uint8_t* name, size_t length) noexcept
    cdef int enter_response_topic(self, Message message) except -1
    cdef int leave_response_topic(self, Message message) except -1
