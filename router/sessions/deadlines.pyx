"""When sessions without a connection end, and when their wills are published: a heap that entries can be taken out of."""

cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport free, realloc
from router.sessions.session cimport EXPIRY_NEVER

cdef enum:
    CAPACITY_MIN = 16


cdef inline bint before(Deadline* one, Deadline* other) noexcept:
    return one.due_ms < other.due_ms or (one.due_ms == other.due_ms and one.sequence < other.sequence)


@cython.final
cdef class Deadlines:
    """The next deadline of each session that has one: 24 bytes, and O(log n) to set it, move it or take it out.

    A client that comes back takes its deadline out, however far ahead that was: what is kept here is bounded by the
    number of sessions, never by how often they were left.
    """

    def __dealloc__(self):
        cdef uint32_t place
        for place in range(self.count):
            Py_DECREF(<Session>self.heap[place].session)
        free(self.heap)

    cdef int start(self, Session session, int64_t gone_ms) except -1:
        if session.will is not None:
            session.will_due_ms = gone_ms + session.will.delay_interval_s * <int64_t>1000
        if session.expiry_interval_s != EXPIRY_NEVER:
            # 0 says that it does not end, and the machine may have been up for less than has passed.
            session.ends_ms = max(gone_ms + session.expiry_interval_s * <int64_t>1000, 1)
        return self.go_on(session)

    cdef int go_on(self, Session session) except -1:
        if session.will is not None and (session.ends_ms == 0 or session.will_due_ms < session.ends_ms):
            return self.set(session, session.will_due_ms)
        return self.set(session, session.ends_ms) if session.ends_ms else 0

    cdef int set(self, Session session, int64_t due_ms) except -1:
        cdef uint32_t place
        if session.deadline_place == 0:
            if self.count == self.capacity:
                self._resize(self.capacity * 2 if self.capacity else CAPACITY_MIN)
            Py_INCREF(session)
            self.heap[self.count].session = <void*>session
            self.count += 1
            session.deadline_place = self.count
        place = session.deadline_place - 1
        self.sequence += 1
        self.heap[place].due_ms = due_ms
        self.heap[place].sequence = self.sequence
        self._up(place)
        return self._down(session.deadline_place - 1)

    cdef int remove(self, Session session) except -1:
        cdef uint32_t place
        if session.deadline_place == 0:
            return 0
        place = session.deadline_place - 1
        assert place < self.count and self.heap[place].session == <void*>session, session.client_identifier
        session.deadline_place = 0
        self.count -= 1
        if place != self.count:
            self.heap[place] = self.heap[self.count]
            (<Session>self.heap[place].session).deadline_place = place + 1
            self._up(place)
            self._down((<Session>self.heap[place].session).deadline_place - 1)
        if self.capacity > CAPACITY_MIN and self.count * 4 <= self.capacity:
            self._resize(self.capacity // 2)
        Py_DECREF(session)
        return 0

    cdef Session due(self, int64_t now_ms):
        if self.count == 0 or self.heap[0].due_ms > now_ms:
            return None
        return <Session>self.heap[0].session

    @property
    def next_ms(self) -> int:
        """The earliest deadline, monotonic ms; 0 if there is none."""
        return self.heap[0].due_ms if self.count else 0

    cdef int _resize(self, uint32_t capacity) except -1:
        cdef Deadline* heap = <Deadline*>realloc(self.heap, capacity * sizeof(Deadline))
        if heap == NULL:
            raise MemoryError()
        self.heap = heap
        self.capacity = capacity
        return 0

    cdef int _up(self, uint32_t place) noexcept:
        cdef Deadline moved = self.heap[place]
        cdef uint32_t parent
        while place and before(&moved, &self.heap[(place - 1) // 2]):
            parent = (place - 1) // 2
            self.heap[place] = self.heap[parent]
            (<Session>self.heap[place].session).deadline_place = place + 1
            place = parent
        self.heap[place] = moved
        (<Session>moved.session).deadline_place = place + 1
        return 0

    cdef int _down(self, uint32_t place) noexcept:
        cdef Deadline moved = self.heap[place]
        cdef uint32_t child
        while True:
            child = 2 * place + 1
            if child >= self.count:
                break
            if child + 1 < self.count and before(&self.heap[child + 1], &self.heap[child]):
                child += 1
            if not before(&self.heap[child], &moved):
                break
            self.heap[place] = self.heap[child]
            (<Session>self.heap[place].session).deadline_place = place + 1
            place = child
        self.heap[place] = moved
        (<Session>moved.session).deadline_place = place + 1
        return 0
