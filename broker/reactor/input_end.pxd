"""One client's end as far as it receives: what came and is not used up, and why no more of it is read or parsed."""

from broker.reactor.relay_end cimport RelayEnd
from broker.reactor.rates cimport Rates
from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef class InputEnd(RelayEnd):
    cdef uint8_t* kept                    # bytes received and not used up: an incomplete packet, or behind a parked one
    cdef size_t kept_length
    cdef size_t kept_capacity
    cdef object controller                # what deals with control packets and ends: broker.control.Controller
    cdef int64_t packet_started_ms        # when the packet that is not whole began to come; 0: there is none
    cdef int64_t rate_due_us              # when what the client sent will have fitted its rate, monotonic
    cdef Rates rates                      # what the client may send in a second; None: any
    cdef bint answer_awaited              # an authenticator thinks about its CONNECT

    cdef int readable(self, uint8_t* shared, size_t shared_size) except -1
    cdef int read_layered(self, uint8_t* shared, size_t shared_size) except -1
    cdef int peer_finished(self) except -1
    cdef int spend_rate(self, uint64_t messages, uint64_t received) except -1
    cdef int feed_raw(self, uint8_t* data, size_t length) except -1
    cdef int guarded_receive(self, uint8_t* data, size_t length, size_t* used) except -1
    cdef int tapped_receive(self, uint8_t* data, size_t length, size_t* used) except -1
    cdef int try_receive(self, uint8_t* data, size_t length, size_t* used) except -1
    cdef int feed(self, uint8_t* data, size_t length) except -1
    cdef int feed_kept(self) except -1
    cdef int keep_rest(self, uint8_t* data, size_t length) except -1
    cdef int drop_kept(self) noexcept
    cdef int end_of_input(self) except -1
    cdef int go_on(self) except -1
    # What Connection does about it.
    cdef int watch_packet(self, bint finished_one) except -1     # a packet is not whole, behind one that was or not
    cdef int end_input(self) except -1                           # nothing more comes from who was told the end
