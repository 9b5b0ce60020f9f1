"""A worker's connections and the order of things in a turn, without sockets of its own.

The reactor adds epoll and sockets. Tests and the simulator use the hub as it is: bytes go in by
`Connection.feed_bytes`, come out by `Connection.take_output`, and time moves by `advance`.
"""

cimport cython
from broker.wire.output_buffer import chunk_counts, trim_pools
from broker.wire.output_buffer cimport list_push
from broker.wire.codec cimport PUBLISH
from broker.reactor.connection cimport LINGER_MS
from broker.reactor.histogram cimport durations_of
from broker.wire.properties import PacketType
from broker.reactor.protocol cimport (
    CLOSING, LINGERED, LINGERING, OPEN, PAUSE_PARKED, PAUSE_PUSHED_BACK, PAUSE_UNSETTLED, Protocol, Turn, VERDICTS,
)
from broker.reactor.rates cimport Rates
from broker.reactor.socket_end cimport NO_SOCKET
from libc.stdlib cimport calloc, free
from libc.string cimport memmove, memset
from router.router cimport Router


cdef extern from "<malloc.h>" nogil:
    int malloc_trim(size_t pad)

cdef enum:
    ROUNDS_MAX = 64
    LATER_PER_TURN = 4                   # connections that read a slice of the disk in a turn: some two ms in all
    LATER_PER_TURN_BUSY = 1              # the same while messages are published, with a short slice: some 15 us
    BUSY_MS = 100                        # since the last publish, for which a worker counts as busy
    GATHER_BYTES = 8192                  # of short slices that are sent at once: a send() takes as long as a slice
    GATHER_MS = 2                        # for which a short slice is kept back at most
    MEMORY_CHECK_BYTES = 16777216        # received between two looks at the memory that is used
    EXPIRED_MAX = 64                     # sessions that end, or whose wills are published, in a turn: some ms
    EXPIRED_MAX_BUSY = 8                 # the same while messages are published
    EXPIRED_SENT = 8192                  # messages sent or queued after which the others wait: wills may have many receivers

PHASES = ("input", "control", "pump", "flush", "guest")
assert len(PHASES) == PHASE_COUNT, PHASES
PACKET_NAMES = {int(packet_type): packet_type.name.lower() for packet_type in PacketType if packet_type}


cdef inline bint is_listed(Hub hub) noexcept:
    """Return whether anything is listed that is dealt with before the turn ends; unfinished() says whether it still is."""
    return (hub.turn.parked.count | hub.turn.waiting.count) != 0 or hub.ended < hub.turn.closing.count


cdef class Hub(ConnectionTable):
    """Connections of one worker and what happens when.

    Args:
        router: the worker's.
        controller: deals with control packets and ends (broker.control.Controller).
        pump: the router's pump.
        packet_bytes_max, payload_bytes_max, control_bytes_max, receive_maximum, receive_maximum_waits, alias_max,
        alias_bytes_max, output_bytes_max, pending_bytes_max, connect_bytes_max, topic_levels_max, topic_bytes_max,
        maximum_qos, retain_available, packet_timeout_ms, messages_per_second_max, bytes_per_second_max: the terms of
        every connection, as broker.worker.terms makes them of the settings; a rate of 0 is none.
        connect_timeout_ms: from accept to CONNECT, and to the end of authentication.
        now_ms: monotonic milliseconds at the start.
    """

    def __cinit__(self, *args, **kwargs):
        self.turn.verdicts = <uint64_t*>calloc(VERDICTS, sizeof(uint64_t))
        if self.turn.verdicts == NULL:
            raise MemoryError()

    def __init__(self, Router router not None, controller, Pump pump not None, *, packet_bytes_max: int,
                 payload_bytes_max: int, control_bytes_max: int, receive_maximum: int, receive_maximum_waits: bool,
                 alias_max: int, alias_bytes_max: int, output_bytes_max: int, pending_bytes_max: int,
                 connect_timeout_ms: int, now_ms: int,
                 connect_bytes_max: int, topic_levels_max: int,
                 topic_bytes_max: int, maximum_qos: int, retain_available: bool, packet_timeout_ms: int,
                 messages_per_second_max: int, bytes_per_second_max: int):
        self.begin_table(router, controller, now_ms, connect_timeout_ms)
        self.pump = pump
        self.arrivals = []
        self.after_control = []
        self.turn.visited = &self.router.tree.filters.visited
        self.turn.packet_bytes_max = packet_bytes_max
        self.turn.payload_bytes_max = payload_bytes_max
        self.turn.control_bytes_max = control_bytes_max
        self.turn.receive_maximum = receive_maximum
        self.turn.receive_maximum_from = 6 if receive_maximum_waits else 5
        self.turn.alias_max = alias_max
        self.turn.output_bytes_max = output_bytes_max
        self.turn.pending_bytes_max = pending_bytes_max
        self.turn.alias_bytes_max = alias_bytes_max
        self.turn.connect_bytes_max = connect_bytes_max
        self.turn.topic_levels_max = topic_levels_max
        self.turn.topic_bytes_max = topic_bytes_max
        self.turn.maximum_qos = maximum_qos
        self.turn.retain_available = retain_available
        self.turn.packet_timeout_ms = packet_timeout_ms
        self.turn.pushes_back = router.ledger.overflow.pushes_back
        if messages_per_second_max or bytes_per_second_max:
            self.rates = Rates(messages_per_second_max, bytes_per_second_max)
        self.turn.now_ms = self.started_ms = now_ms
        self.live_ms = now_ms - BUSY_MS
        self.turn.wake_fd = -1
        router.ledger.now_ms = now_ms
        router.ledger.now_us = self.turn.now_ms * 1000

    def __dealloc__(self):
        free(self.turn.verdicts)
        free(self.turn.parked.items)
        free(self.turn.closing.items)
        free(self.turn.waiting.items)
        free(self.turn.later.items)
        free(self.turn.throttled.items)
        free(self.turn.pushed_back.items)
        free(self.due.items)

    def forget_verdicts(self) -> None:
        """The ACL may say something else now of who may publish where."""
        memset(self.turn.verdicts, 0, VERDICTS * sizeof(uint64_t))
        self.turn.rights += 1

    # One turn, after the sockets have been read ---------------------------------------------------------------------

    cdef bint unfinished(self) noexcept:
        """Something was listed that is to be dealt with before the turn ends."""
        return ((self.turn.waiting.count != 0 and self.resumes.left != 0)
                or (self.ended < self.turn.closing.count and self.ends.left != 0)
                or (self.turn.parked.count != 0 and not self.control_spent()))

    cdef bint has_more(self) noexcept:
        """Something waits for the next turn, which does not wait for events."""
        cdef Turn* turn = &self.turn
        return ((turn.parked.count | turn.waiting.count | turn.dirty.count | turn.wide.count | turn.cut.count
                 | turn.unread.count | turn.later.count) != 0 or self.ended < turn.closing.count
                or self.pump.more or self.overdue or self.router.ending.more or self.router.ended.count
                or (self.replays is not None and self.replays.more))

    cdef int end_turn(self) except -1:
        """Control packets and ends, then the pump, then one flush per connection; at last, closing.

        A flush may find a socket broken, or make room for what was held back: then there is another round. What is
        left after ROUNDS_MAX rounds is the next turn's, which does not wait.
        """
        cdef int rounds = 0
        cdef bint read_on = False, gone_on = False
        cdef bint busy = self.is_live()
        if self.overdue or self.router.ended.count:
            self.expire_some(busy)
        if self.replays is not None:
            self.run_replays(busy)
        if self.turn.pushed_back.count:
            self.take_up_pushed_back()
        while True:
            if is_listed(self):
                while self.unfinished() and rounds < ROUNDS_MAX:
                    rounds += 1
                    self.deal_with_parked()
                    if self.after_control:
                        self.call_after_control()
                    self.take_up_waiting()
                    self.end_closing()
                self.lap(PHASE_CONTROL)
            if self.router.recording:
                if self.pump.run():
                    self.lap(PHASE_PUMP)
            elif self.router.ledger.starved:
                self.router.settle(0)            # sessions that end go on with that
            if self.mesh is not None:
                self.mesh.flush()
                self.lap(PHASE_PUMP)
            self.flush_dirty()
            if self.turn.later.count and not read_on:
                # Behind the flush: what came live in this turn does not wait for it.
                read_on = True
                self.lap(PHASE_FLUSH)
                self.take_up_later()
                self.lap(PHASE_CONTROL)
                continue
            if self.turn.cut.count and not gone_on and self.turn.work < 2 * self.turn.share:
                gone_on = True           # behind the flush likewise
                self.lap(PHASE_FLUSH)
                self.go_on_cut()
                self.lap(PHASE_INPUT)
                continue
            if not is_listed(self) or rounds >= ROUNDS_MAX or not self.unfinished():
                break
            self.begun = True            # however few are sent to in each round
            self.lap(PHASE_FLUSH)
        if self.turn.closing.count:
            self.lap(PHASE_FLUSH)
            self.end_closing()
            self.reap()
            self.lap(PHASE_CONTROL)
        if self.memory is not None and self.turn.bytes_in - self.memory_checked_bytes > MEMORY_CHECK_BYTES:
            self.memory_checked_bytes = self.turn.bytes_in
            self.memory.check()
        if self.arrivals:
            self.tell_arrivals()
        return 0

    cdef int64_t clock_ns(self) noexcept:
        return self.turn.now_ms * 1000000        # without a reactor, time is what the host says

    cdef int lap(self, int phase) noexcept:
        cdef int64_t now_ns = self.clock_ns()
        self.phase_ns[phase] += now_ns - self.mark_ns
        self.mark_ns = now_ns
        return 0

    cdef int deal_with_parked(self) except -1:
        cdef PointerList items
        cdef uint32_t index
        cdef Connection connection
        if self.turn.parked.count == 0:
            return 0
        self.swap(&self.turn.parked)
        items = self.work
        for index in range(items.count):
            if self.control_spent():
                return self.put_back(&self.turn.parked, items.items + index, items.count - index)
            connection = <Connection>items.items[index]
            self.control_left -= 1
            if connection.state < CLOSING and self.controller.on_packet(
                    connection, connection.parked_first, connection.parked_body):
                connection.unpark()
        return 0

    cdef int call_after_control(self) except -1:
        cdef list calls = self.after_control
        self.after_control = []
        for call in calls:
            call()
        return 0

    cdef int take_up_waiting(self) except -1:
        cdef PointerList items
        cdef uint32_t index
        cdef Connection connection
        if self.turn.waiting.count == 0 or self.resumes.left == 0:
            return 0
        self.begun = True
        self.swap(&self.turn.waiting)
        items = self.work
        for index in range(items.count):
            if not self.may_resume():
                return self.put_back(&self.turn.waiting, items.items + index, items.count - index)
            connection = <Connection>items.items[index]
            if connection.state >= CLOSING:
                continue
            if connection.pauses & (PAUSE_UNSETTLED | PAUSE_PUSHED_BACK) and not connection.pauses & PAUSE_PARKED:
                connection.unpark()
            connection.resume()
            if connection.backlog is not None:
                self.controller.send_backlog(connection)
            if connection.replays_wait and connection.session is not None:
                self.replays.take_up(connection)
        return 0

    cdef bint is_live(self) noexcept:
        cdef uint64_t messages = self.turn.publishes_in[0] + self.turn.publishes_in[1] + self.turn.publishes_in[2]
        if messages == self.messages_seen:
            return False
        self.messages_seen = messages
        self.live_ms = self.turn.now_ms
        return True

    cdef int run_replays(self, bint busy) except -1:
        """Once per turn, and less of it if clients published."""
        if self.replays.waits():
            self.turn.in_router = True
            self.replays.run(busy)
            self.turn.in_router = False
            self.lap(PHASE_PUMP)
        return 0

    cdef bint has_replays(self) noexcept:
        return self.replays is not None and self.replays.more

    cdef int take_up_later(self) except -1:
        """Let the first few connections that have much to read go on; one that has not come to its end lines up again.

        Only one, with a short slice, while messages are published: the next one may come while it reads, and waits.
        """
        cdef PointerList* later = &self.turn.later
        cdef bint busy = self.turn.now_ms < self.live_ms + BUSY_MS
        cdef uint32_t count = min(later.count, <uint32_t>(LATER_PER_TURN_BUSY if busy else LATER_PER_TURN))
        cdef uint32_t index
        cdef Connection connection
        for index in range(count):
            connection = <Connection>later.items[index]
            connection.later = False
            if connection.state == OPEN:
                self.controller.read_on(connection, busy)
            self.gather_slices(connection, busy)
        later.count -= count
        memmove(later.items, later.items + count, later.count * sizeof(void*))
        return 0

    cdef int gather_slices(self, Connection connection, bint busy) except -1:
        """Keep back a short slice that has just been read, and send it with the next ones, unless there is none to come.

        Whatever else is written to the connection has it sent along.
        """
        cdef PointerList* dirty = &self.turn.dirty
        if busy and connection.later and connection.out.pending < GATHER_BYTES:
            if connection.gathered_ms == 0:
                connection.gathered_ms = self.turn.now_ms
            if self.turn.now_ms - connection.gathered_ms < GATHER_MS:
                # If the slice made it dirty, it is the last one listed. If it waits already, it goes on waiting.
                if connection.dirty and dirty.count and dirty.items[dirty.count - 1] == <void*>connection:
                    connection.dirty = False
                    dirty.count -= 1
                return 0
        connection.gathered_ms = 0
        if connection.out.pending:
            connection.touch()
        return 0

    cdef int end_closing(self) except -1:
        """Tell the controller of ends that it has not heard of, some in a turn; what it does may end more connections."""
        while self.ended < self.turn.closing.count and self.may_end():
            self.ended += 1
            self.controller.on_end(<Connection>self.turn.closing.items[self.ended - 1])
        return 0

    cdef int reap(self) except -1:
        """Close whose end was dealt with; a connection that we ended lingers until its peer has read our last words."""
        cdef PointerList items
        cdef uint32_t index
        cdef Connection connection
        cdef uint32_t count = self.ended
        self.swap(&self.turn.closing)
        self.ended = 0
        items = self.work
        self.put_back(&self.turn.closing, items.items + count, items.count - count)
        for index in range(count):
            connection = <Connection>items.items[index]
            if connection.fd != NO_SOCKET and connection.state != LINGERED and connection.has_last_words():
                connection.state = LINGERING
                self.wheel.arm(&connection.timer, self.turn.now_ms + LINGER_MS)
                if connection.unsent() == 0:
                    connection.end_output()
                continue
            self.dispose(connection)
        return 0

    cdef int before_deadlines(self, Connection connection) except -1:
        """A due connection is read once before it is judged: we may have been the ones who were stopped."""
        return 0

    cdef int tick(self) except -1:
        """Deadlines that fell due: connections, wills, sessions. Called at most once per 250 ms and turn."""
        cdef uint32_t index
        cdef Connection connection
        self.due.count = 0
        self.wheel.advance(self.turn.now_ms, &self.due)
        for index in range(self.due.count):
            connection = <Connection>self.due.items[index]
            self.before_deadlines(connection)
            if connection.timer.deadline_ms == 0:
                connection.on_deadline()
        if self.turn.throttled.count:
            self.take_up_throttled()
        if self.memory is not None:
            self.memory_checked_bytes = self.turn.bytes_in
            self.memory.check()
        if self.mesh is not None:
            self.mesh.tick(self.turn.now_ms)
        self.overdue = self.router.deadline_count != 0
        return 0

    cdef int expire_some(self, bint busy) except -1:
        """End some of the sessions whose time is up, and publish wills that are due; the next turn goes on with it."""
        cdef uint64_t sent_end = self.sent_or_queued() + EXPIRED_SENT
        cdef int left = EXPIRED_MAX_BUSY if busy else EXPIRED_MAX
        self.router.forget_some()
        self.turn.in_router = True
        while self.overdue and left > 0 and self.sent_or_queued() < sent_end:
            left -= 1
            self.overdue = self.router.expire(1) <= self.turn.now_ms and self.router.deadline_count != 0
        self.turn.in_router = False
        self.lap(PHASE_CONTROL)
        return 0

    cdef uint64_t sent_or_queued(self) noexcept:
        return (self.turn.publishes_out[0] + self.turn.publishes_out[1] + self.turn.publishes_out[2]
                + self.router.ledger.queued_messages)

    cdef int take_up_throttled(self) except -1:
        """Read again from those whose rate has come down; the others stay in the list, in order."""
        cdef uint32_t index, kept = 0
        cdef PointerList* throttled = &self.turn.throttled
        for index in range(throttled.count):
            if not (<Connection>throttled.items[index]).take_up_reading():
                throttled.items[kept] = throttled.items[index]
                kept += 1
        throttled.count = kept
        return 0

    cdef int take_up_pushed_back(self) except -1:
        """Read again from those whose receiver has room, or who have waited long enough; the others stay, in order."""
        cdef uint32_t index, kept = 0
        cdef PointerList* pushed_back = &self.turn.pushed_back
        cdef Connection connection
        for index in range(pushed_back.count):
            connection = <Connection>pushed_back.items[index]
            if connection.still_waits():
                pushed_back.items[kept] = pushed_back.items[index]
                kept += 1
            else:
                connection.waits_for = None
                list_push(&self.turn.waiting, <void*>connection)
        pushed_back.count = kept
        return 0

    def guard_memory(self, memory) -> None:
        """From now on look at the memory that is used: every 250 ms, and when much was received.

        Args:
            memory: broker.worker.memory_guard.MemoryGuard.
        """
        self.memory = memory

    def replay_from(self, ReplaySeam replays not None) -> None:
        """From now on turns give stored messages to those who subscribed to them."""
        self.replays = replays

    def trim(self) -> None:
        """Give memory that a burst needed back to the system."""
        trim_pools()
        malloc_trim(0)

    @property
    def output_bytes_max(self) -> int:
        """Bytes unsent to one connection over which QoS 0 is dropped and QoS 1/2 waits."""
        return self.turn.output_bytes_max

    @output_bytes_max.setter
    def output_bytes_max(self, value: int) -> None:
        self.turn.output_bytes_max = value

    def change(self, dict terms not None) -> None:
        """Go by other terms from now on, but for those that clients have been told: keyword arguments of the constructor."""
        self.turn.payload_bytes_max = terms["payload_bytes_max"]
        self.turn.control_bytes_max = terms["control_bytes_max"]
        self.turn.pending_bytes_max = terms["pending_bytes_max"]
        self.turn.alias_bytes_max = terms["alias_bytes_max"]
        self.turn.connect_bytes_max = terms["connect_bytes_max"]
        self.turn.topic_levels_max = terms["topic_levels_max"]
        self.turn.topic_bytes_max = terms["topic_bytes_max"]
        self.turn.packet_timeout_ms = terms["packet_timeout_ms"]
        self.connect_timeout_ms = terms["connect_timeout_ms"]
        # Who was made to wait by the rules before goes on doing so.
        self.turn.pushes_back = self.turn.pushes_back or self.router.ledger.overflow.pushes_back
        if terms["messages_per_second_max"] or terms["bytes_per_second_max"]:
            self.rates = Rates(terms["messages_per_second_max"], terms["bytes_per_second_max"])
        else:
            self.rates = None

    # Driven by hand: tests, the simulator ---------------------------------------------------------------------------

    def connect(self) -> Connection:
        """Make a connection without a socket."""
        return self.make(NO_SOCKET, NO_SOCKET)

    def run_turn(self, now_ms: int | None = None) -> None:
        """Finish a turn, at a time if one is given: control packets, deadlines, pump, ends."""
        if now_ms is not None:
            self.turn.now_ms = now_ms
            self.router.ledger.now_ms = now_ms
            self.router.ledger.now_us = self.turn.now_ms * 1000
        self.mark_ns = self.clock_ns()
        self.turn.work = self.turn.share_used = 0
        self.begin_shares()
        if self.mesh is not None and self.mesh.receive():
            self.live_ms = self.turn.now_ms
        self.tick()
        self.end_turn()

    def tell_arrivals(self) -> None:
        """Tell in-process clients what came for them: at the end of a turn, or between turns."""
        cdef list arrivals = self.arrivals
        cdef Py_ssize_t index
        for index in range(len(arrivals)):
            arrivals[index].arrived()
        arrivals.clear()

    def look_at_clock(self) -> int:
        """Return the time, monotonic ms. Without a clock of its own, time is what was last said."""
        return self.turn.now_ms

    @property
    def now_ms(self) -> int:
        """The turn's time, monotonic ms."""
        return self.turn.now_ms

    @property
    def terms(self) -> dict[str, int]:
        """What we accept from every client, and what we go by without telling."""
        turn = &self.turn
        return {"packet_bytes_max": turn.packet_bytes_max, "receive_maximum": turn.receive_maximum,
                "alias_max": turn.alias_max, "payload_bytes_max": turn.payload_bytes_max,
                "control_bytes_max": turn.control_bytes_max, "pending_bytes_max": turn.pending_bytes_max,
                "alias_bytes_max": turn.alias_bytes_max, "connect_bytes_max": turn.connect_bytes_max,
                "topic_levels_max": turn.topic_levels_max, "topic_bytes_max": turn.topic_bytes_max,
                "packet_timeout_ms": turn.packet_timeout_ms, "output_bytes_max": turn.output_bytes_max,
                "connect_timeout_ms": self.connect_timeout_ms, "pushes_back": turn.pushes_back,
                "messages_per_second_max": 0 if self.rates is None else self.rates.messages_per_second_max,
                "bytes_per_second_max": 0 if self.rates is None else self.rates.bytes_per_second_max}

    def counters(self) -> dict:
        """Numbers of this worker, under the names that broker.telemetry.metrics.Metrics gives them, with their meaning and unit."""
        cdef int qos
        messages_in = [self.turn.publishes_in[qos] for qos in range(3)]
        messages_out = [self.turn.publishes_out[qos] for qos in range(3)]
        return {"messages_in": sum(messages_in), "messages_out": sum(messages_out),
                "bytes_in": self.turn.bytes_in, "bytes_out": self.turn.bytes_out,
                "payload_bytes_in": self.turn.payload_bytes_in, "payload_bytes_out": self.turn.payload_bytes_out,
                "messages_in_by_qos": tuple(messages_in), "messages_out_by_qos": tuple(messages_out),
                "connections": self.connections_made, "connections_open": self.connection_count - self.relay_ends,
                "uptime_ms": self.turn.now_ms - self.started_ms,
                "output_buffer_bytes": chunk_counts()["in_use_bytes"], "guest_ticks": self.guest_ticks,
                "throttled": self.turn.throttled_count, "pushed_back": self.turn.pushed_back_count,
                "unsettled": self.turn.unsettled_count, "output_full": self.turn.output_full_count}

    def packets(self) -> tuple[dict[str, int], dict[str, int]]:
        """Packets received and sent since the start, by the name of their type in lower case."""
        received = {name: self.turn.packets_in[number] for number, name in PACKET_NAMES.items()}
        sent = {name: self.turn.packets_out[number] for number, name in PACKET_NAMES.items()}
        received["publish"] = self.turn.publishes_in[0] + self.turn.publishes_in[1] + self.turn.publishes_in[2]
        sent["publish"] = self.turn.publishes_out[0] + self.turn.publishes_out[1] + self.turn.publishes_out[2]
        return received, sent

    def phase_times_us(self) -> dict[str, int]:
        """Microseconds spent since the start, by phase of the turn.

        What reading and parsing take together is measured in every turn; how it divides into `receive`, the calls of
        the operating system, and `route`, parsing and routing, is measured in one turn of 61.
        """
        times = {name: self.phase_ns[index] // 1000 for index, name in enumerate(PHASES)}
        share = <double>self.turn.receive_ns / self.sampled_input_ns if self.sampled_input_ns else 0.0
        total = times.pop("input")
        received = min(int(total * share), total)
        return {"receive": received, "route": total - received, **times}

    def durations(self) -> dict[str, tuple]:
        """(count, total_us, max_us, counts by power of two) of turns, and of how late they and the guest's ticks were."""
        return {"turns": durations_of(&self.turn_times), "turn_lags": durations_of(&self.turn_lags),
                "guest_lags": durations_of(&self.guest_lags)}
