"""Replays: clients that subscribed to $replay are given what is stored in the log, and what is logged from then on.

A replay reads the logs of all workers and nothing else, also when it has caught up: it never joins the live path, so
nothing is missed or comes twice where stored messages end. It sends as far as its client takes what it is sent; nothing
of it waits in a queue. All replays together get a small part of each turn, in turns.
"""

cimport cython
from collections import deque
from broker.reactor.histogram cimport monotonic_ns
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy
from router.log.crc32c cimport crc32c
from router.core.message cimport Message
from router.core.varint cimport write_varint
from router.core.receiver cimport NARROWED, NO_LOCAL, QOS_MASK, RETAIN_AS_PUBLISHED
from router.matching.route_cache cimport write_identifier
from router.log.tail cimport TAIL_BUDGET, TAIL_END, LogTail, MergedTail, TailStep
from router.log.record_cursor cimport lend_message
from cpython.bytes cimport PyBytes_AS_STRING

from broker.logs import get
from router.sessions.replay_subscription import note

log = get("replay")

cdef int64_t LAST_SECOND = 253402300799      # of the year 9999
cdef const uint8_t* BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


cdef uint32_t write_token(uint8_t* to, uint8_t* content, uint32_t length) noexcept nogil:
    """Write the token of a position, as router.log.replay_position.encode_position does; returns its length.

    Its content is a 1, and of each log the worker and the number of a record, as write_varint() writes them.
    """
    cdef uint32_t check, index, group
    cdef uint8_t* start = to
    check = crc32c(0, content, length)
    for index in range(4):
        content[length] = <uint8_t>(check >> (8 * index))
        length += 1
    content[length] = content[length + 1] = 0
    to[0] = 0x70                         # p
    to += 1
    for index in range(0, length, 3):
        group = <uint32_t>content[index] << 16 | <uint32_t>content[index + 1] << 8 | content[index + 2]
        to[0] = BASE64[group >> 18]
        to[1] = BASE64[(group >> 12) & 63]
        to[2] = BASE64[(group >> 6) & 63]
        to[3] = BASE64[group & 63]
        to += 4
    # What stands for the bytes behind the content's end is left out.
    return <uint32_t>(to - start) - (3 - length % 3) % 3


cdef void put_digits(uint8_t* to, int64_t number, int count) noexcept nogil:
    while count:
        count -= 1
        to[count] = <uint8_t>(0x30 + number % 10)
        number //= 10


cdef void write_time(uint8_t* to, int64_t time_us) noexcept nogil:
    """Write a time, µs since 1970, as RFC 3339 in UTC to the microsecond, as router.log.replay_position.format_time does.

    Years have four digits; a clock that is further off than that is not shown as it is.
    """
    cdef int64_t seconds = min(max(time_us, 0) // 1000000, LAST_SECOND)
    cdef int64_t in_day = seconds % 86400
    # Days from the 1st of March of the year 0: the leap day is the last of its year, and 400 years have 146,097 days.
    cdef int64_t days = seconds // 86400 + 719468
    cdef int64_t era = days // 146097
    cdef int64_t of_era = days % 146097
    cdef int64_t year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    cdef int64_t of_year = of_era - (365 * year + year // 4 - year // 100)
    cdef int64_t month = (5 * of_year + 2) // 153
    memcpy(to, b"0000-00-00T00:00:00.000000Z", TIME_BYTES)
    put_digits(to + 8, of_year - (153 * month + 2) // 5 + 1, 2)
    month = month + 3 if month < 10 else month - 9
    put_digits(to, year + era * 400 + (month <= 2), 4)
    put_digits(to + 5, month, 2)
    put_digits(to + 11, in_day // 3600, 2)
    put_digits(to + 14, in_day // 60 % 60, 2)
    put_digits(to + 17, in_day % 60, 2)
    put_digits(to + 20, max(time_us, 0) % 1000000, 6)


cdef inline uint8_t* write_user_property(uint8_t* to, const char* name, uint8_t name_length) noexcept:
    """Begin a User Property of 5.0: its name; the value's length (two bytes) and the value are the caller's."""
    to[0] = 0x26
    to[1] = 0
    to[2] = name_length
    memcpy(to + 3, name, name_length)
    return to + 3 + name_length


@cython.final
cdef class Replay:
    """One subscription to stored messages whose client is connected."""


@cython.final
cdef class Replays(ReplaySeam):
    """All replays of one worker.

    Args:
        router: the worker's.
        logs: broker.replay.log_sources.ReplayLogs, read while they are written.
    """

    def __init__(self, Router router not None, logs):
        self.router = router
        self.logs = logs
        self.message = Message.__new__(Message)
        self.of_sessions = {}
        self.ready = deque()
        self.following = []
        self.failed = []
        self.beginning = []
        room = 16 + POSITION_BYTES * len(logs.windows)
        self.content = <uint8_t*>malloc(room)
        self.room = <uint8_t*>malloc(EXTRAS_BYTES + room // 3 * 4 + 8)
        if self.content == NULL or self.room == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.content)
        free(self.room)

    # Who replays ----------------------------------------------------------------------------------------------------

    def start(self, Connection connection not None, subscription) -> None:
        """Begin with a ReplaySubscription of the connection's session, or begin anew if it has one of this name."""
        cdef Replay replay = Replay.__new__(Replay)
        cdef int options = subscription.options
        self.stop(connection.session, subscription.topic_filter)
        replay.subscription = subscription
        replay.connection = connection
        replay.session = connection.session
        replay.qos = min(options & QOS_MASK, 1)
        replay.no_local = (options & NO_LOCAL) != 0
        replay.retain_as_published = (options & RETAIN_AS_PUBLISHED) != 0
        if subscription.identifier:
            replay.identifiers_length = <uint32_t>(
                write_identifier(replay.identifiers, subscription.identifier) - replay.identifiers)
        replay.noted_ms = self.router.ledger.now_ms
        self.of_sessions.setdefault(connection.session, {})[subscription.topic_filter] = replay
        self.beginning.append(replay)
        self.logs.ask()
        self.more = True

    def resume(self, Connection connection not None) -> None:
        """A client is back: what its session replays goes on."""
        for subscription in list(connection.session.replays.values()):
            self.start(connection, subscription)

    def stop(self, Session session not None, bytes topic_filter not None) -> None:
        """End a session's replay of this name, if it has one."""
        replays = self.of_sessions.get(session)
        if replays is not None and topic_filter in replays:
            (<Replay>replays.pop(topic_filter)).state = REPLAY_ENDED
            if not replays:
                del self.of_sessions[session]
                self.leave()

    def pause(self, Session session not None) -> None:
        """A client is gone: its session remembers how far it came."""
        cdef Replay replay
        for replay in self.of_sessions.pop(session, {}).values():
            self.note(replay, True)
            replay.state = REPLAY_ENDED
        self.leave()

    def leave(self) -> None:
        """A replay ended, and may have been the last one."""
        if not self.of_sessions:
            self.logs.leave()

    cdef int take_up(self, Protocol connection) except -1:
        """A client takes more than it did."""
        cdef Replay replay
        connection.replays_wait = False
        for replay in self.of_sessions.get(connection.session, {}).values():
            if replay.state == REPLAY_BLOCKED:
                replay.state = REPLAY_READY
                self.ready.append(replay)
                self.more = True
        return 0

    @property
    def count(self) -> int:
        """How many replays there are of clients that are connected."""
        return sum([len(replays) for replays in self.of_sessions.values()])

    def close(self) -> None:
        """Let go of files."""
        self.logs.close()

    # A turn ---------------------------------------------------------------------------------------------------------

    cdef bint waits(self) except -1:
        """Return whether a client replays, or waits to."""
        return len(self.ready) != 0 or len(self.following) != 0 or len(self.beginning) != 0 or len(self.failed) != 0

    cdef int run(self, bint busy) except -1:
        """Give what there is, for one turn; `more` says whether the next turn need not wait.

        Args:
            busy: clients published in this turn: less of it is for replays.
        """
        cdef Replay replay
        cdef uint64_t readable
        cdef int64_t left = TURN_BYTES_BUSY if busy else TURN_BYTES
        cdef int64_t budget, ends_ns
        cdef ReplayState state
        self.more = False
        if self.failed_ms and self.router.ledger.now_ms < self.failed_ms + RETRY_MS:
            pass                             # nothing is tried again yet, and who can go on does
        elif self.failed or self.beginning or self.following:
            self.failed_ms = 0
            self.get_ready(self.failed)
            self.begin_replays()
        if self.following:
            readable = self.logs.readable
            if readable > self.readable:
                self.readable = readable
                self.get_ready(self.following)
        if not self.ready:
            return 0
        self.readable = self.logs.readable
        ends_ns = monotonic_ns() + (TURN_NS_BUSY if busy else TURN_NS)
        while self.ready and left > 0:
            replay = self.ready.popleft()
            if replay.state != REPLAY_READY:
                continue
            budget = min(left, <int64_t>SLICE_BYTES)
            left -= budget
            try:
                state = self.slice(replay, &budget)
            except OSError as error:
                log.warning("replay_failed", client=name_of(replay), topic_filter=filter_of(replay), error=str(error))
                self.failed_ms = self.router.ledger.now_ms
                state = REPLAY_FAILED
            left += budget
            self.note(replay, False)
            if state == REPLAY_READY:
                self.ready.append(replay)
                if len(self.ready) > WINDOWS_MAX:
                    replay.tail.rest()
            else:
                replay.state = state
                replay.tail.rest()
                if state == REPLAY_FOLLOWING:
                    self.following.append(replay)
                elif state == REPLAY_BLOCKED:
                    replay.connection.replays_wait = True
                elif state == REPLAY_FAILED:
                    self.failed.append(replay)
            if monotonic_ns() >= ends_ns:
                break
        self.more = len(self.ready) != 0
        return 0

    cdef int begin_replays(self) except -1:
        """Take in how far the logs reach, and begin the replays that have waited for that."""
        cdef Replay replay
        try:
            if not self.logs.is_ready():
                return 0
        except OSError as error:
            log.warning("replay_failed", error=str(error))
            self.failed_ms = self.router.ledger.now_ms
            return 0
        for replay in self.beginning:
            if replay.state == REPLAY_ENDED:
                continue
            subscription = replay.subscription
            since_us = subscription.since_us
            replay.tail = MergedTail([
                LogTail(windows, subscription.inner_filter, subscription.numbers.get(worker, 0),
                        None if worker in subscription.numbers else since_us)
                for worker, windows in self.logs.windows.items()])
            replay.noted = replay.tail.progress()
            self.ready.append(replay)
        self.beginning.clear()
        return 0

    def get_ready(self, list replays not None) -> None:
        """What waited for something else than its client goes on."""
        cdef Replay replay
        for replay in replays:
            if replay.state != REPLAY_ENDED:
                replay.state = REPLAY_READY
                self.ready.append(replay)
        replays.clear()

    cdef ReplayState slice(self, Replay replay, int64_t* budget) except? REPLAY_ENDED:
        """Give one client some messages: as far as the budget allows, it takes them, and there are any."""
        cdef MergedTail tail = replay.tail
        cdef TailStep step
        tail.begin()
        while True:
            if not replay.connection.has_room(replay.qos):
                return REPLAY_BLOCKED
            step = tail.step(budget)
            if tail.missing:
                self.take_gaps(replay)
            if step == TAIL_END:
                return REPLAY_FOLLOWING
            if step == TAIL_BUDGET:
                return REPLAY_READY
            self.deliver(replay)
            if replay.state != REPLAY_READY:
                return <ReplayState>replay.state

    cdef int deliver(self, Replay replay) except -1:
        """Give the message that the tail stands at, unless it has expired or is the client's own and not wanted."""
        cdef LogTail tail = replay.tail.current
        cdef bytes own = replay.session.client_identifier
        cdef uint32_t length = 0
        if tail.fields.expires_us and tail.fields.expires_us <= self.router.ledger.now_us:
            return 0
        if replay.no_local and tail.fields.publisher_length == len(own) and memcmp(
                tail.fields.publisher, PyBytes_AS_STRING(own), len(own)) == 0:
            return 0                         # [MQTT-3.8.3-3]
        if self.router.tree.rights is not None and replay.subscription.options & NARROWED and (
                not self.router.tree.rights.may_read(replay.session, tail.fields.topic, tail.fields.topic_length)):
            return 0
        if replay.connection.version == 5:
            length = self.extras(replay)
        lend_message(self.message, &tail.fields, self.router.ledger.now_us, self.router.ledger.now_ms)
        self.messages += 1
        replay.given = True
        replay.missing = 0
        self.router.deliver_replayed(
            replay.session, self.message, min(replay.qos, tail.fields.qos),
            tail.fields.retain and replay.retain_as_published, self.room, length)
        return 0

    cdef uint32_t extras(self, Replay replay) noexcept:
        """Put the properties that a stored message comes with into `room`: subscription identifier, position, gap."""
        cdef uint8_t* at = self.room
        cdef LogTail tail
        cdef uint32_t length = 1
        cdef uint8_t[20] digits
        cdef uint32_t count = 0
        cdef uint64_t missing = replay.missing
        memcpy(at, replay.identifiers, replay.identifiers_length)
        at = write_user_property(at + replay.identifiers_length, b"shoal-time", 10)
        at[0] = 0
        at[1] = TIME_BYTES
        write_time(at + 2, replay.tail.current.time_us)
        at = write_user_property(at + 2 + TIME_BYTES, b"shoal-position", 14)
        self.content[0] = 1
        for tail in replay.tail.tails:
            length = <uint32_t>(write_varint(self.content + length, tail.worker) - self.content)
            length = <uint32_t>(write_varint(self.content + length, tail.passed()) - self.content)
        length = write_token(at + 2, self.content, length)
        at[0] = <uint8_t>(length >> 8)
        at[1] = <uint8_t>length
        at += 2 + length
        if missing:
            at = write_user_property(at, b"shoal-replay-gap", 16)
            while missing:
                digits[count] = <uint8_t>(0x30 + missing % 10)
                missing //= 10
                count += 1
            at[0] = 0
            at[1] = <uint8_t>count
            at += 2
            while count:
                count -= 1
                at[0] = digits[count]
                at += 1
        return <uint32_t>(at - self.room)

    cdef int take_gaps(self, Replay replay) except -1:
        """Retention has overtaken a replay, or damage has: say so."""
        for worker, first, missing in replay.tail.take_gaps():
            replay.missing += missing
            self.gaps += 1
            self.records_missing += missing
            log.warning("replay_gap", client=name_of(replay), topic_filter=filter_of(replay), of_worker=worker,
                        first_record=first, records=missing)
        return 0

    cdef int note(self, Replay replay, bint at_once) except -1:
        """Remember how far a replay has come, and record it, now or if it is time.

        Behind the deliveries in the log: after a crash some may come again, and none is left out.
        """
        cdef uint64_t progress
        cdef int64_t now_ms = self.router.ledger.now_ms
        if replay.tail is None:
            return 0
        progress = replay.tail.progress()
        if progress == replay.noted:
            return 0
        positions = replay.tail.positions()
        # What is known of a log that is not there now may be of use when it is back.
        replay.subscription.numbers = replay.subscription.numbers | positions
        if len(positions) == len(self.logs.windows):
            replay.subscription.since_us = None
        if not replay.session.durable:
            return 0
        if not at_once and progress - replay.noted < NOTE_RECORDS and not (
                replay.given and (replay.qos or now_ms - replay.noted_ms >= NOTE_MS)):
            return 0
        note(self.router, replay.session, replay.subscription)
        replay.noted = progress
        replay.noted_ms = now_ms
        replay.given = False
        return 0


cdef object name_of(Replay replay):
    return replay.session.client_identifier.decode("utf-8", "replace")


cdef object filter_of(Replay replay):
    return replay.subscription.topic_filter.decode("utf-8", "replace")


def time_text(time_us: int) -> str:
    """write_time() for tests."""
    cdef uint8_t[TIME_BYTES] text
    write_time(text, time_us)
    return text[:TIME_BYTES].decode()


def position_token(numbers: dict) -> str:
    """write_token() for tests."""
    cdef uint8_t[1024] content
    cdef uint8_t[2048] token
    cdef uint32_t length = 1
    content[0] = 1
    for worker, number in sorted(numbers.items()):
        length = <uint32_t>(write_varint(content + length, worker) - content)
        length = <uint32_t>(write_varint(content + length, number) - content)
    length = write_token(token, content, length)
    return token[:length].decode()
