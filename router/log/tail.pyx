"""Reading logs from a place on, while they grow: the messages that a topic filter matches.

A tail never looks beyond what is durable, reads in windows, and does no more in one step than it is allowed to. What
is not there any more, or is damaged, it passes over and counts. It holds no file; at rest it holds no window either.
"""

cimport cython
from bisect import bisect_right
from cpython.bytes cimport PyBytes_AS_STRING
from router.log.record_cursor cimport CURSOR_BAD, CURSOR_SEALED, CURSOR_SHORT, RECORD_ACCEPTED, decode_message, message_of
from router.matching.topic_names cimport filter_matches

from router.log.segments import RECORDS_AT


def segment_number(header) -> int:
    """Return what segments are in the order of."""
    return header.segment


@cython.final
cdef class LogTail:
    """The accepted messages of one log that match a topic filter, from a place on.

    Args:
        windows: of the log (router.log.read_cache.LogWindows), shared by all its tails.
        topic_filter: valid, without $share prefix.
        after: the number of the record behind which to begin; 0 is the beginning. More than the log has is its end.
        since_us: begin with the first record of this time or later, µs since 1970, instead.

    Several tails are merged by (time_us, worker, number): each gives its messages in the order of its log, and `number`
    and `time_us` say how far it has come when it gives none.
    """

    def __init__(self, windows, bytes topic_filter not None, after: int = 0, since_us: int | None = None):
        self.windows = windows
        self.worker = windows.log.worker
        self.topic_filter = topic_filter
        self.filter = <const uint8_t*>PyBytes_AS_STRING(topic_filter)
        self.filter_length = len(topic_filter)
        self.window_bytes = WINDOW_BYTES_MIN
        if since_us is None:
            self.number = self.skip_number = min(after, windows.log.appended)
        else:
            self.waits_for_time = True
            self.since_us = since_us

    # One step -------------------------------------------------------------------------------------------------------

    cdef TailStep step(self, int64_t* budget) except? TAIL_END:
        """Go to the next message that matches. Raises OSError, after which it may be tried again.

        Args:
            budget: bytes that may be scanned; what was is taken off. The last record may be larger than what is left.
        """
        while True:
            if budget[0] <= 0:
                return TAIL_BUDGET
            if self.cursor is not None and self.walk(budget):
                return TAIL_MESSAGE
            if budget[0] <= 0:
                return TAIL_BUDGET
            if self.header is None and not self.place():
                return TAIL_END
            if not self.next_window(budget):
                return TAIL_END

    cdef bint walk(self, int64_t* budget) noexcept:
        """Go to the next message in the window; False: there is none, or the budget is used up."""
        cdef Cursor cursor = self.cursor
        cdef size_t before
        while cursor.number < self.trusted and budget[0] > 0:
            before = cursor.offset
            if not cursor.next():
                return False
            budget[0] -= cursor.offset - before
            self.scanned_bytes += cursor.offset - before
            self.number = cursor.number
            self.time_us = cursor.time_us
            self.offset = cursor.base + cursor.offset
            if cursor.kind != RECORD_ACCEPTED or cursor.number <= self.skip_number:
                continue
            if self.waits_for_time:
                # Only until the first one: a clock that is set back must not hide what comes then.
                if cursor.time_us < self.since_us:
                    continue
                self.waits_for_time = False
            if decode_message(cursor.kind, cursor.body, cursor.body_length, &self.fields):
                continue
            if filter_matches(self.filter, self.filter_length, self.fields.topic, self.fields.topic_length):
                return True
        return False

    # Windows and segments -------------------------------------------------------------------------------------------

    cdef bint place(self) except -1:
        """Find where in the log to begin; False while it is empty."""
        log = self.windows.log
        headers = log.headers
        self.cursor = None
        if not headers:
            return False
        self.skip_number = max(self.skip_number, self.number)
        if self.waits_for_time:
            position = log.locate_time(self.since_us)
        else:
            position = log.locate(self.number + 1)
            if position is None:
                self.miss(headers[0].first_number - 1)
                position = log.locate(self.number + 1)
        if position is None:
            return False
        at = bisect_right(headers, position.segment, key=segment_number) - 1
        self.header = headers[at] if at >= 0 else headers[0]
        if self.header.segment != position.segment:
            self.header = None               # it was removed while we looked
            return False
        self.offset = position.offset
        self.number = position.number - 1
        return True

    cdef bint next_window(self, int64_t* budget) except -1:
        """Read on; False: there is no more to be read now."""
        cdef uint64_t readable = self.windows.readable
        cdef uint64_t limit = readable + 1
        cdef Cursor cursor = self.cursor
        cdef bytes data
        cdef size_t length = self.window_bytes
        cdef size_t needed = 0
        headers = self.windows.log.headers
        at = bisect_right(headers, self.header.segment, key=segment_number)
        if at < len(headers):
            limit = headers[at].first_number
        if at == 0 or headers[at - 1] is not self.header:
            # Removed, or begun in vain: find out where the next record is.
            self.header = None
            return self.place()
        if self.number >= readable:
            return False
        if self.number + 1 >= limit:
            return self.next_segment(headers)
        if cursor is not None and cursor.number < self.trusted:
            if cursor.status == CURSOR_SEALED:
                return self.next_segment(headers)
            if cursor.status == CURSOR_BAD:
                return self.resynchronize(headers, budget)
            self.window_bytes = min(self.window_bytes * 2, <uint32_t>WINDOW_BYTES_MAX)
            length = self.window_bytes
            if cursor.status == CURSOR_SHORT:
                needed = cursor.needed()
                length = max(length, needed)
        try:
            data = self.windows.read(self.header, self.offset, length)
        except FileNotFoundError:
            return self.next_segment(headers)
        if <size_t>len(data) < needed:
            return self.resynchronize(headers, budget)
        if len(data) == 0:
            return self.next_segment(headers)            # its end is missing
        self.cursor = Cursor(data, self.offset, self.header.mark, self.number)
        self.trusted = limit - 1
        return True

    cdef bint next_segment(self, object headers) except -1:
        """Go on at the beginning of the segment behind the one that it stands in; False if there is none yet."""
        at = bisect_right(headers, self.header.segment, key=segment_number)
        self.cursor = None
        if at == len(headers):
            return False
        self.header = headers[at]
        self.miss(self.header.first_number - 1)
        self.offset = RECORDS_AT
        return True

    cdef bint resynchronize(self, object headers, int64_t* budget) except -1:
        """Bytes that are no record: go on at the next record of this segment, or else with the next segment."""
        cdef size_t length = WINDOW_BYTES_MAX
        cdef uint64_t last
        cdef bytes data
        cdef Cursor cursor
        while True:
            data = self.windows.read(self.header, self.offset, length)
            budget[0] -= len(data)
            cursor = Cursor(data, self.offset, self.header.mark, self.number)
            found = cursor.find(0)
            if found >= 0 or <size_t>len(data) < length:
                break
            length *= 4
        at = bisect_right(headers, self.header.segment, key=segment_number)
        last = headers[at].first_number - 1 if at < len(headers) else self.windows.readable
        if found < 0:
            if at < len(headers):
                return self.next_segment(headers)
            self.miss(last)              # what comes next is looked for from the same place
            self.cursor = None
            return False
        self.miss(min(self.number + cursor.resume(found), last))
        self.cursor = Cursor(data[found:], self.offset + found, self.header.mark, self.number)
        self.offset += found
        self.trusted = last
        return True

    cdef int miss(self, uint64_t through) except -1:
        """What comes before the record `through` + 1 is not there any more."""
        if through <= self.number:
            return 0
        # What would have been passed over anyway is not missed.
        if through > self.skip_number and not self.waits_for_time:
            if self.missing_first == 0:
                self.missing_first = max(self.number, self.skip_number) + 1
            self.missing_count += through - max(self.number, self.skip_number)
        self.number = through
        return 0

    cdef int put_back(self) noexcept:
        """The message that it stands at is still to come."""
        self.offset = self.cursor.base + self.cursor.start
        self.number -= 1
        self.cursor = None
        self.held = False
        return 0

    cdef uint64_t passed(self) noexcept:
        cdef uint64_t number = self.number - 1 if self.held else self.number
        return number if number > self.skip_number else self.skip_number

    # For Python callers ---------------------------------------------------------------------------------------------

    def read(self, messages_max: int, bytes_max: int, now_us: int = 0, now_ms: int = 0) -> list:
        """Return the next messages as (number, time in µs, Message), in the order of the log; perhaps none.

        Args:
            messages_max, bytes_max: how many messages at most, and how much of the log is looked at for them.
            now_us, now_ms: the same moment, since 1970 and monotonic, to tell when a message expires.

        Raises OSError, after which it may be called again.
        """
        cdef int64_t budget = bytes_max
        cdef list found = []
        while len(found) < messages_max and self.step(&budget) == TAIL_MESSAGE:
            found.append((self.number, self.time_us, message_of(&self.fields, now_us, now_ms)))
        return found

    @property
    def seen(self) -> int:
        """The number up to which nothing is still to come: where another tail goes on."""
        return self.passed()

    def at_end(self) -> bool:
        """Return whether all that is durable has been looked at."""
        return self.number >= self.windows.readable

    def rest(self) -> None:
        """Let go of the memory of what was read and not used: it is read again."""
        if self.held:
            self.put_back()
        self.cursor = None
        self.window_bytes = WINDOW_BYTES_MIN

    def take_gap(self) -> tuple[int, int] | None:
        """Return (first, how many) of the records that were not there any more, once; None if none are missing."""
        if self.missing_first == 0:
            return None
        gap = self.missing_first, self.missing_count
        self.missing_first = self.missing_count = 0
        return gap


@cython.final
cdef class MergedTail:
    """Several tails as one: always the oldest message of those that they stand at, by (time, worker, number).

    Each log keeps its order. Between logs, the order is that of their times as far as all of them have been read: what
    becomes durable in one log while another one is further comes when it is there.

    Args:
        tails: one of each log, by worker; one or more.
    """

    def __init__(self, list tails not None):
        assert tails, "no log to be read"
        self.tails = tails

    cdef int begin(self) noexcept:
        cdef LogTail tail
        for tail in self.tails:
            tail.ended = False
        return 0

    cdef TailStep step(self, int64_t* budget) except? TAIL_END:
        """Go to the next message; as LogTail.step(). Raises OSError."""
        cdef LogTail tail
        cdef LogTail oldest = None
        cdef TailStep step
        for tail in self.tails:
            if not tail.held:
                if tail.ended:
                    continue
                step = tail.step(budget)
                if tail.missing_first:
                    self.missing = True
                if step == TAIL_BUDGET:
                    return TAIL_BUDGET
                if step == TAIL_END:
                    tail.ended = True
                    continue
                tail.held = True
            if oldest is None or tail.time_us < oldest.time_us:
                oldest = tail
        if oldest is None:
            return TAIL_END
        oldest.held = False
        self.current = oldest
        return TAIL_MESSAGE

    cdef uint64_t progress(self) noexcept:
        """Return a number that rises whenever what is known of the way behind has changed."""
        cdef LogTail tail
        cdef uint64_t total = 0
        for tail in self.tails:
            if not tail.waits_for_time:
                total += tail.passed() + 1
        return total

    def positions(self) -> dict:
        """Return worker -> the number up to which nothing is still to come, of the logs where that is known.

        Where it is not, no message has been as young as was asked for.
        """
        cdef LogTail tail
        return {tail.worker: tail.passed() for tail in self.tails if not tail.waits_for_time}

    def rest(self) -> None:
        """As LogTail.rest()."""
        for tail in self.tails:
            tail.rest()

    def take_gaps(self) -> list:
        """Return (worker, first, how many) of the records that were not there any more, once."""
        cdef LogTail tail
        self.missing = False
        gaps = []
        for tail in self.tails:
            gap = tail.take_gap()
            if gap is not None:
                gaps.append((tail.worker, *gap))
        return gaps

    def read(self, messages_max: int, bytes_max: int, now_us: int = 0, now_ms: int = 0) -> list:
        """Return the next messages as (worker, number, time in µs, Message), as LogTail.read()."""
        cdef int64_t budget = bytes_max
        cdef list found = []
        self.begin()
        while len(found) < messages_max and self.step(&budget) == TAIL_MESSAGE:
            found.append((self.current.worker, self.current.number, self.current.time_us,
                          message_of(&self.current.fields, now_us, now_ms)))
        return found
