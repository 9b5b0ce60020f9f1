"""A timing wheel: deadlines of connections. Never early, at most one tick (250 ms) late."""

cimport cython
from broker.wire.output_buffer cimport list_push
from libc.stdlib cimport free


@cython.final
cdef class TimingWheel:
    """Deadlines in 1,024 slots of 250 ms. Arming and cancelling are O(1); the timers belong to their owners."""

    def __cinit__(self, now_ms: int = 0):
        cdef int index
        for index in range(WHEEL_SLOTS):
            self.slots[index].previous = self.slots[index].next = &self.slots[index]
        self.tick = now_ms // TICK_MS

    cdef void arm(self, Timer* timer, int64_t deadline_ms) noexcept:
        cdef Timer* head
        cdef int64_t tick
        if timer.deadline_ms:
            self.cancel(timer)
        # The first tick that is not before the deadline, and not one that was visited already.
        tick = max((deadline_ms + TICK_MS - 1) // TICK_MS, self.tick + 1)
        head = &self.slots[tick & (WHEEL_SLOTS - 1)]
        timer.deadline_ms = deadline_ms
        timer.next = head
        timer.previous = head.previous
        head.previous.next = timer
        head.previous = timer
        self.armed_count += 1

    cdef void cancel(self, Timer* timer) noexcept:
        if timer.deadline_ms == 0:
            return
        timer.previous.next = timer.next
        timer.next.previous = timer.previous
        timer.previous = timer.next = NULL
        timer.deadline_ms = 0
        self.armed_count -= 1

    cdef int advance(self, int64_t now_ms, PointerList* due) except -1:
        cdef int64_t now_tick = now_ms // TICK_MS
        cdef int64_t tick
        cdef Timer* head
        cdef Timer* timer
        cdef Timer* following
        if now_tick - self.tick > WHEEL_SLOTS:
            self.tick = now_tick - WHEEL_SLOTS       # we were stopped: one whole turn visits every slot
        for tick in range(self.tick + 1, now_tick + 1):
            head = &self.slots[tick & (WHEEL_SLOTS - 1)]
            timer = head.next
            while timer != head:
                following = timer.next
                if timer.deadline_ms <= now_ms:
                    list_push(due, timer.owner)
                    self.cancel(timer)
                timer = following
        self.tick = max(self.tick, now_tick)
        return 0


cdef class TimerProbe:
    """A deadline that belongs to Python code: for tests of the wheel."""

    def __init__(self, TimingWheel wheel not None):
        self.wheel = wheel
        self.timer.owner = <void*>self

    def __dealloc__(self):
        if self.wheel is not None:
            self.wheel.cancel(&self.timer)

    def arm(self, deadline_ms: int) -> None:
        """Arm for a monotonic time in ms."""
        self.wheel.arm(&self.timer, deadline_ms)

    def cancel(self) -> None:
        """Disarm."""
        self.wheel.cancel(&self.timer)


def advance(TimingWheel wheel not None, now_ms: int) -> list:
    """Move a wheel of TimerProbes to a time; returns those that fell due."""
    cdef PointerList due
    due.items = NULL
    due.count = due.capacity = 0
    try:
        wheel.advance(now_ms, &due)
        return [<object>due.items[index] for index in range(due.count)]
    finally:
        free(due.items)
