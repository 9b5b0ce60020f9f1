"""How a turn is shared out among connections, and what it leaves for the next.

Nobody waits long for what somebody else has sent. A connection parses until it has had its share, counted in work, and
the turn reads sockets until its budget is used up. Whose socket was not read is first in the next turn; who has had its
share goes on behind everybody's output, for a while. Output of messages to many receivers is sent some at a time, behind
the output of those who were sent little.
"""

from broker.wire.output_buffer cimport list_push
from broker.reactor.histogram cimport monotonic_ns
from broker.reactor.protocol cimport OPEN, PAUSE_BLOCKED, PAUSE_OUTPUT_FULL, PAUSE_UNREAD
from broker.reactor.socket_end cimport NO_SOCKET
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memmove

cdef enum:
    SHARE = 16000                # units of work that one connection does at a time: some 0.8 ms,
    SHARE_BYTES = 65536          # and bytes of packets that are little work each: some 2 ms, if they are tiny
    TURN_WORK_MAX = 1000000      # units of a turn: the clock is to say so before, for large payloads take less
    LOOK_WORK = 4000             # units between two looks at the clock
    INPUT_NS = 3000000           # in which a turn reads sockets,
    REST_NS = 2000000            # in which it goes on with those who have had their share,
    CONTROL_NS = 3000000         # and in which it deals with control packets
    CONTROL_MAX = 256            # of them in a turn
    RESUMES_MAX = 4096           # connections that a turn sends what waits for them,
    RESUMES_NS = 3000000         # as far as it gets in that time
    ENDS_MAX = 1024              # connections whose end a turn deals with,
    ENDS_NS = 3000000            # as far as it gets in that time
    SENDS_MAX = 1024             # connections that a turn sends to at most,
    SENDS_NS = 3000000           # as far as it gets in that time
    SENDS_WIDE_MAX = 512         # and of those that are sent messages to many, or wait already,
    WIDE_NS = 2000000            # as far as it gets with them in that time
    LOOK_SENDS = 32              # between two looks at the clock while it sends,
    LOOK_BYTES = 262144          # or between so many bytes: a send takes from 3 us to 300
    FEW_BYTES = 4096             # output of such a size is sent before that of others who wait


cdef inline int flush_one(Turn* turn, Connection connection) except -1:
    connection.dirty = False
    if connection.fd != NO_SOCKET and not connection.pauses & PAUSE_BLOCKED:
        connection.send_pending()
    if connection.out.pending > turn.output_bytes_max:
        connection.writable = False
        if not connection.pauses & PAUSE_OUTPUT_FULL and connection.state == OPEN:
            turn.output_full_count += 1
            connection.pauses |= PAUSE_OUTPUT_FULL       # who does not read our answers is not given more to answer
            connection.update_reading()
    return 0


cdef class Shares:
    """A worker's turn, and the lists of what is to be done in it.

    What its bounds are, see bound_turns().
    """

    def __cinit__(self, *args, **kwargs):
        self.turn.touched = &self.turn.dirty
        self.bound_turns()

    def __dealloc__(self):
        free(self.turn.dirty.items)
        free(self.turn.cut.items)
        free(self.turn.unread.items)
        free(self.turn.wide.items)
        free(self.work.items)

    cdef int begin_shares(self) noexcept:
        """A turn begins, and the last one has counted."""
        self.begun = False
        self.work_end = self.turn_work_max
        self.look_at = min(<uint32_t>LOOK_WORK, self.work_end)
        self.resumes.left = self.resumes_max
        self.resumes.ends_ns = 0
        self.ends.left = self.ends_max
        self.ends.ends_ns = 0
        self.dirty_sends.left = self.sends_max
        self.wide_sends.left = min(self.sends_max, <uint32_t>SENDS_WIDE_MAX)
        self.dirty_sends.ends_ns = self.wide_sends.ends_ns = 0
        self.input_ns = INPUT_NS
        self.control_left = self.control_max
        self.control_ends_ns = 0
        return 0

    cdef bint spent(self) noexcept:
        """Return whether the turn has used up its budget. Reads the clock every LOOK_WORK units only."""
        if self.turn.work < self.look_at:
            return False
        self.begun = True
        if self.turn.work >= self.work_end or (self.began_ns and monotonic_ns() >= self.began_ns + self.input_ns):
            return True
        self.look_at = min(self.turn.work + LOOK_WORK, self.work_end)
        return False

    cdef bint control_spent(self) noexcept:
        """Return whether the turn has dealt with so many control packets, or for so long, that the rest waits."""
        cdef int64_t now_ns
        self.begun = True
        if self.control_left == 0:
            return True
        if self.began_ns == 0 or self.control_left == self.control_max:
            return False                 # one is dealt with, whatever the clock says
        now_ns = monotonic_ns()
        if self.control_ends_ns == 0:
            self.control_ends_ns = now_ns + CONTROL_NS
        return now_ns >= self.control_ends_ns

    cdef int swap(self, PointerList* items) noexcept:
        """Move a list into `work`, so that working it through may fill it anew."""
        cdef PointerList empty = self.work
        self.work = items[0]
        items[0] = empty
        items.count = 0
        return 0

    cdef int put_back(self, PointerList* items, void** rest, uint32_t count) except -1:
        """Put what has not been worked through in front of what was listed meanwhile."""
        cdef uint32_t index, older = items.count
        if count == 0:
            return 0
        for index in range(count):
            list_push(items, NULL)
        memmove(items.items + count, items.items, older * sizeof(void*))
        memcpy(items.items, rest, count * sizeof(void*))
        return 0

    # Input ----------------------------------------------------------------------------------------------------------

    cdef int put_off(self, Connection connection) except -1:
        """Its socket is ready, but the turn has used up its budget: it is among the first in the next."""
        if not connection.pauses & PAUSE_UNREAD:
            connection.pauses |= PAUSE_UNREAD
            list_push(&self.turn.unread, <void*>connection)
        return 0

    cdef int read_unread(self) except -1:
        """Read those who were put off, in order, as far as the budget goes."""
        cdef PointerList* unread = &self.turn.unread
        cdef Connection connection
        cdef uint32_t index = 0
        while index < unread.count and not (index and self.spent()):
            connection = <Connection>unread.items[index]
            index += 1
            connection.pauses &= ~PAUSE_UNREAD
            self.read_one(connection)
        unread.count -= index
        memmove(unread.items, unread.items + index, unread.count * sizeof(void*))
        return 0

    cdef int read_one(self, Connection connection) except -1:
        return 0

    cdef int go_on_cut(self) except -1:
        """Let those go on who have had their share, one share each, as far as a budget of their own goes."""
        cdef PointerList items
        cdef uint32_t index
        if self.began_ns:
            self.began_ns = monotonic_ns()
        self.begun = True
        self.input_ns = REST_NS
        self.look_at = self.turn.work
        self.work_end = self.turn.work + self.turn_work_max
        self.swap(&self.turn.cut)
        items = self.work
        for index in range(items.count):
            if index and self.spent():
                return self.put_back(&self.turn.cut, items.items + index, items.count - index)
            (<Connection>items.items[index]).go_on()
        return 0

    # Output ---------------------------------------------------------------------------------------------------------

    cdef int flush_dirty(self) except -1:
        """Send to those who were sent little, then to some of the others, who were sent much, or to whom many were.

        Whom the turn does not get to is first in the next, but for those with more than a few bytes: they go behind the
        others, so that who has only an acknowledgement to get waits for nobody's bulk.
        """
        cdef PointerList* dirty = &self.turn.dirty
        cdef PointerList* wide = &self.turn.wide
        cdef uint32_t index = 0, kept = 0
        cdef Connection connection
        if not self.begun and wide.count == 0 and dirty.count <= self.sends_few:
            while index < dirty.count:
                flush_one(&self.turn, <Connection>dirty.items[index])
                index += 1
            dirty.count = 0
            return 0
        self.begun = True
        self.flush_some(dirty, &self.dirty_sends, self.sends_ns)
        if dirty.count:
            for index in range(dirty.count):
                connection = <Connection>dirty.items[index]
                if connection.out.pending > FEW_BYTES:
                    list_push(wide, <void*>connection)
                else:
                    dirty.items[kept] = <void*>connection
                    kept += 1
            dirty.count = kept
        if wide.count:
            self.flush_some(wide, &self.wide_sends, min(self.sends_ns, <int64_t>WIDE_NS))
        return 0

    cdef bint may_resume(self) noexcept:
        """Return whether the turn goes on with one more of those who wait; with one it always does."""
        if self.resumes.left != self.resumes_max:
            self.look(&self.resumes, RESUMES_NS)
        if self.resumes.left == 0:
            return False
        self.resumes.left -= 1
        return True

    cdef bint may_end(self) noexcept:
        """Return whether the turn deals with the end of one more connection; with one it always does."""
        if self.ends.left != self.ends_max:
            self.look(&self.ends, ENDS_NS)
        if self.ends.left == 0:
            return False
        self.begun = True
        self.ends.left -= 1
        return True

    cdef int look(self, Sends* sends, int64_t budget_ns) noexcept:
        cdef int64_t now_ns
        if self.began_ns:
            now_ns = monotonic_ns()
            if sends.ends_ns == 0:
                sends.ends_ns = now_ns + budget_ns
            elif now_ns >= sends.ends_ns:
                sends.left = 0
        return 0

    cdef int flush_some(self, PointerList* items, Sends* sends, int64_t budget_ns) except -1:
        """Send to the first in a list, as far as what is left for it in this turn goes; they leave the list."""
        cdef uint32_t index = 0, look_at
        cdef uint64_t bytes_at
        while index < items.count and sends.left:
            look_at = min(items.count, index + min(sends.left, <uint32_t>LOOK_SENDS))
            bytes_at = self.turn.bytes_out + LOOK_BYTES
            sends.left += index
            while index < look_at and self.turn.bytes_out < bytes_at:
                flush_one(&self.turn, <Connection>items.items[index])
                index += 1
            sends.left -= index
            self.look(sends, budget_ns)
        items.count -= index
        if items.count:
            memmove(items.items, items.items + index, items.count * sizeof(void*))
        return 0

    def bound_turns(self, *, work: int = TURN_WORK_MAX, sends: int = SENDS_MAX, sends_ns: int = SENDS_NS,
                    control: int = CONTROL_MAX, resumes: int = RESUMES_MAX, ends: int = ENDS_MAX,
                    share: int = SHARE, share_bytes: int = SHARE_BYTES) -> None:
        """Have turns do less, from the next one on, or more.

        Args:
            work: units of one turn, and as many for those who have had their share.
            sends: connections that are sent to, in either list.
            sends_ns: for how long.
            control: control packets of one turn.
            resumes: connections that are sent what waits for them.
            ends: connections whose end is dealt with.
            share: units of work that one connection does at a time.
            share_bytes: that it parses at a time.
        """
        self.turn_work_max, self.sends_max, self.sends_ns, self.control_max = work, sends, sends_ns, control
        self.resumes_max = resumes
        self.ends_max = ends
        self.sends_few = min(sends, <uint32_t>LOOK_SENDS)
        self.turn.share = share
        self.turn.share_bytes = share_bytes
        self.begin_shares()

    @property
    def turn_work(self) -> int:
        """Units of work done in this turn so far, or in the last."""
        return self.turn.work
