"""WebSocket (RFC 6455) around MQTT: frames of a client are taken apart as they come, ours are put around what is sent."""

from broker.transport.layer cimport Layer
from libc.stdint cimport uint8_t, uint16_t, uint64_t

cdef enum:
    HEADER_MAX = 14                  # bytes of the longest header of a client's frame


cdef class WebSocket(Layer):
    cdef object upgrade              # broker.transport.upgrade.Upgrade, until its request has been answered
    cdef bytes control               # payload of a control frame, as far as it has come; None between two of them
    cdef bytes pong                  # payload of the last ping that is not answered yet; None: there is none
    cdef uint64_t left               # payload of the frame that has not come; 0: a header is next, or the rest of one
    cdef uint8_t[HEADER_MAX] header  # of a frame, as far as it has come
    cdef uint8_t header_length
    cdef uint8_t opcode              # of the frame whose payload comes
    cdef uint8_t[4] mask             # for the next byte of its payload first
    cdef bint fragmented             # a message was begun and not ended: what follows are continuations
    cdef bint said_close             # we sent a Close frame, and send nothing behind it
    cdef uint16_t close_code         # for that frame; 0: the close reason has one

    cdef Py_ssize_t open(self, uint8_t* data, size_t length) except -1  # how much of it is no frames; `opened` says the rest
    cdef object read_frames(self, uint8_t* data, size_t length, uint8_t** message, size_t* message_length)
    cdef object check_beginning(self, uint8_t first, uint8_t second)
    cdef object begin_frame(self, const uint8_t* header)
    cdef object on_control(self, const uint8_t* payload, size_t length)
    cdef object on_close(self, const uint8_t* payload, size_t length)
    cdef object fault(self, str clause, str detail, uint16_t code=*)
    cdef int answer_ping(self, bytes payload) except -1
    cdef int send_frame(self, uint8_t opcode, const uint8_t* data, size_t length) except -1
    cdef int send_close(self, uint16_t code, bytes text) except -1
