"""A timing wheel: deadlines of connections."""

from broker.wire.output_buffer cimport PointerList
from libc.stdint cimport int64_t, uint32_t

cdef enum:
    TICK_MS = 250
    WHEEL_SLOTS = 1024           # one turn of the wheel: 256 s; a later deadline is passed over until its turn comes

cdef struct Timer:               # all zero while not armed
    Timer* previous
    Timer* next
    int64_t deadline_ms          # monotonic; 0: not armed
    void* owner                  # borrowed


cdef class TimingWheel:
    cdef Timer[WHEEL_SLOTS] slots         # heads of circular lists
    cdef int64_t tick                     # last tick that was visited
    cdef readonly uint32_t armed_count

    cdef void arm(self, Timer* timer, int64_t deadline_ms) noexcept
    cdef void cancel(self, Timer* timer) noexcept
    cdef int advance(self, int64_t now_ms, PointerList* due) except -1    # appends owners of what is due, disarmed


cdef class TimerProbe:
    cdef TimingWheel wheel
    cdef Timer timer
