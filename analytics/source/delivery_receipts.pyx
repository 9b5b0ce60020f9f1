"""When what sessions are owed was acknowledged: the log, fed to a router as a restart would feed it.

Which message an acknowledgement is for does not stand in the log, because it follows from everything before: so the
router that recovery makes is asked before the acknowledgement is applied.
"""

cimport cython
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset
from router.log.record_cursor cimport ACKNOWLEDGED_HEADER, RECORD_ACCEPTED, RECORD_ACKNOWLEDGED, RECORD_FORWARDED, get16
from router.sessions.outgoing cimport Delivery
from router.sessions.session cimport Session
from router.sessions.sink cimport PUBACK, PUBREC

from router.recovery.open_log import feed_snapshot
from router.sessions.ledger import Ledger
from router.recovery.apply import Recovery as NewRecovery
from router.router import Router


@cython.final
cdef class Receipts:
    """The acknowledgements of one log, in its order.

    Memory: as the broker's worker, without connections, and eight bytes for each record of the log.
    """

    def __init__(self):
        self.recovery = NewRecovery(Router(Ledger(), retains=False), lambda *fields: fields, 0, 0)
        self.begin()

    def __dealloc__(self):
        free(self.times)

    def begin(self) -> None:
        """Begin a new batch."""
        self.rows = 0
        self.time, self.accepted, self.latency, self.record = [Values(width=8) for _ in range(4)]
        self.qos = Values(width=1)
        self.client = Values(offsets=True)

    def take(self) -> dict:
        """Return the columns of the batch by name, and begin a new one."""
        taken = {"time": self.time, "accepted": self.accepted, "latency_us": self.latency, "record": self.record,
                 "client": self.client, "qos": self.qos}
        self.begin()
        return taken

    def snapshot(self, disk, worker: int) -> tuple[int, int]:
        """Begin with the newest snapshot, where the log's beginning is gone; return the first segment and record behind it.

        Raises SegmentError, OSError.
        """
        segment, _, number = feed_snapshot(disk, worker, self.recovery)
        return segment, number

    def feed(self, Cursor cursor not None, rows_max: int) -> bool:
        """Run a cursor to its end; True if the batch was full before. Cost: as a restart of the broker."""
        cdef uint64_t most = rows_max
        while self.rows < most:
            if not cursor.next():
                return False
            if cursor.kind == RECORD_ACCEPTED or cursor.kind == RECORD_FORWARDED:
                self.note(cursor.number, cursor.time_us)
            elif cursor.kind == RECORD_ACKNOWLEDGED:
                self.acknowledged(cursor)
            self.recovery.apply(cursor)
        return True

    cdef int note(self, uint64_t number, int64_t time_us) except -1:
        cdef uint64_t index, capacity = self.capacity if self.capacity else 65536
        cdef int64_t* times
        if self.times == NULL:
            self.first = number
        index = number - self.first
        if index >= self.capacity:
            while capacity <= index:
                capacity *= 2
            times = <int64_t*>realloc(self.times, capacity * sizeof(int64_t))
            if times == NULL:
                raise MemoryError()
            self.times = times
            self.capacity = capacity
        if index > self.known:
            memset(self.times + self.known, 0, (index - self.known) * sizeof(int64_t))
        self.times[index] = time_us
        self.known = index + 1
        return 0

    cdef int acknowledged(self, Cursor cursor) except -1:
        cdef const uint8_t* body = cursor.body
        cdef Session session
        cdef Delivery* delivery
        cdef uint64_t number
        if cursor.body_length <= ACKNOWLEDGED_HEADER or (body[0] != PUBACK and body[0] != PUBREC) or body[1] >= 0x80:
            return 0
        session = self.recovery.recent_session(body + ACKNOWLEDGED_HEADER, cursor.body_length - ACKNOWLEDGED_HEADER)
        if session is None or session.peer or session.outgoing is None:
            return 0
        number = session.outgoing.number_of(get16(body + 2), session.outgoing.end_number)
        if number == session.outgoing.end_number:
            return 0
        delivery = session.outgoing.slot(number)
        if delivery.record < self.first or delivery.record - self.first >= self.known:
            return 0
        if self.times[delivery.record - self.first] == 0:
            return 0                     # a copy: when it was accepted is not known here
        self.rows += 1
        self.time.number(cursor.time_us)
        self.accepted.number(self.times[delivery.record - self.first])
        self.latency.number(cursor.time_us - self.times[delivery.record - self.first])
        self.record.number(<int64_t>delivery.record)
        self.qos.byte(delivery.qos)
        self.client.text(body + ACKNOWLEDGED_HEADER, cursor.body_length - ACKNOWLEDGED_HEADER)
        return 0
