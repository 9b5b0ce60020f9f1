"""Durable clients of a broker that is killed again and again, and what must be true of what they get."""

from __future__ import annotations

import random
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from broker.wire.packets import Will
from tests.support.client_session import ClientSession, WrongPacketError
from tests.tools.soak.loads import Seen

PACE_S = 0.02
WINDOW = 100  # messages of one publisher without their end
TRY_AGAIN_S = 0.05
ANSWER_S = 60.0  # for what must come: a will, a SUBACK, a retained message
TOPICS = 3  # of one publisher
RETAINED_TOPICS = 20
RETAINED_PER_S = 10.0
WILL_DELAY_S = 1
FAULTS_MAX = 20  # then it ends early


@dataclass
class Scene:
    """What all clients share.

    Attributes:
        port: of the broker that runs now; 0 while none does.
        context: what clients connect with; None: without TLS.
        starts: how often the broker or one of its workers began anew. What was sent before may never have been read.
        over: set when no new messages are to be made; what is owed is caught up with then.
        done: set when everything has been caught up with; everybody goes.
        ready: publishers wait for it: all subscriptions stand.
        counts: what was done. faults: promises that were broken, in words.
    """

    seed: int
    rate: float
    port: int = 0
    context: ssl.SSLContext | None = None
    starts: int = 0
    over: trio.Event = field(default_factory=trio.Event)
    done: trio.Event = field(default_factory=trio.Event)
    ready: trio.Event = field(default_factory=trio.Event)
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def fault(self, what: str) -> None:
        """A promise was broken; after FAULTS_MAX of them it ends early, and what follows from that is no news."""
        if self.done.is_set():
            return
        self.faults.append(what)
        print(f"FAULT: {what}", flush=True)
        if len(self.faults) >= FAULTS_MAX:
            self.over.set()
            self.done.set()

    def draw(self, name: str) -> random.Random:
        """Return a client's own chance, so that it does not depend on what the others do."""
        return random.Random(f"{self.seed} {name}")

    async def connect(self) -> trio.abc.Stream:
        """Connect to the broker, with TLS if clients have it. Raises OSError."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        return stream if self.context is None else trio.SSLStream(stream, self.context, server_hostname="localhost")

    async def rest(self, seconds: float, until: trio.Event) -> None:
        """Wait, but not beyond an event."""
        with trio.move_on_after(seconds):
            await until.wait()


class Actor:
    """A session with its connections."""

    def __init__(self, scene: Scene, session: ClientSession) -> None:
        self.scene = scene
        self.session = session
        self.wake = trio.Event()
        self.changed = trio.Event()  # something came; replaced then
        self.online = False
        self.left_at_start = -1  # the scene's count of starts when a connection was last good

    def push(self) -> None:
        """Have what the session wants to send sent."""
        self.wake.set()

    async def stay(self, leave_after_s: float, goodbye: bool = False, leave: trio.Event | None = None) -> str:
        """Connect once and stay until the connection ends: returns `refused`, `gone` or `left`.

        Args:
            leave_after_s: seconds after CONNACK at which we leave; `leave` may be set before.
            goodbye: leave by DISCONNECT, else just break.
        """
        scene, session = self.scene, self.session
        if not scene.port:
            return "refused"
        try:
            stream = await scene.connect()
        except OSError:
            return "refused"
        session.start()
        outcome = "gone"
        finishing = False
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                while True:
                    await self.wake.wait()
                    self.wake = trio.Event()
                    last = finishing
                    data = bytes(session.output)
                    session.output.clear()
                    if data:
                        await stream.send_all(data)
                    if last:
                        with trio.move_on_after(ANSWER_S):
                            await trio.sleep_forever()  # the broker ends the connection when it has read that
                        return

            async def read() -> None:
                while data := await stream.receive_some(65_536):
                    before = session.connected
                    session.feed(data)
                    if session.connected and not before:
                        self.on_connected()
                    if session.output:
                        self.wake.set()
                    if not self.changed.is_set():
                        self.changed.set()

            async def guarded(what: Callable[[], object]) -> None:
                try:
                    await what()  # type: ignore[misc]
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass
                except WrongPacketError as error:
                    scene.fault(str(error))
                nursery.cancel_scope.cancel()

            async def leaving() -> None:
                nonlocal outcome, finishing
                while not session.connected:
                    await self.next_change()
                with trio.move_on_after(leave_after_s):
                    await (scene.done if leave is None else leave).wait()
                outcome = "left"
                if goodbye:
                    session.goodbye()
                    finishing = True
                    self.wake.set()
                    await trio.sleep_forever()

            self.wake = trio.Event()
            self.wake.set()
            self.online = True
            for what in (write, read, leaving):
                nursery.start_soon(guarded, what)
        self.online = False
        session.connected = False
        await trio.aclose_forcefully(stream)
        return outcome

    async def next_change(self) -> None:
        """Wait until something came."""
        if self.changed.is_set():
            self.changed = trio.Event()
        await self.changed.wait()

    def on_connected(self) -> None:
        """CONNACK came: the session must be there, if we had one."""
        scene, session = self.scene, self.session
        if self.left_at_start >= 0 and session.session_expiry_s:
            if not session.session_present:
                scene.fault(f"{session.identifier}: the session was lost")
            elif self.left_at_start != scene.starts:
                scene.counts["sessions resumed after a crash or restart"] += 1
            else:
                scene.counts["sessions resumed"] += 1
        self.left_at_start = scene.starts

    async def keep(self, until: trio.Event) -> None:
        """Be connected, again and again, until an event."""
        while not until.is_set():
            if await self.stay(1e9, goodbye=False, leave=until) == "refused":
                await self.scene.rest(TRY_AGAIN_S, until)


# Publishers and subscribers -----------------------------------------------------------------------------------------


class Stream:
    """Numbers 1, 2, 3, ... of one publisher, topic and QoS."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged = Seen()


class Publisher(Actor):
    """Publishes numbered messages at QoS 1 and 2 as fast as its share of the rate asks for."""

    def __init__(self, scene: Scene, name: str, version: int, rate: float) -> None:
        super().__init__(scene, ClientSession(name, version, on_acknowledged=self.on_acknowledged))
        self.name = name
        self.rate = rate
        self.streams = {(f"kill/{name}/{topic}".encode(), qos): Stream() for topic in range(TOPICS) for qos in (1, 2)}

    def on_acknowledged(self, tag: tuple[Stream, int]) -> None:
        """PUBACK or PUBREC: it must arrive."""
        stream, number = tag
        stream.acknowledged.add(number)
        self.scene.counts["messages acknowledged"] += 1

    async def run(self) -> None:
        """Publish until it is over; then stay until all has been acknowledged."""
        scene = self.scene
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.keep, scene.done)
            await scene.ready.wait()
            draw = scene.draw(self.name)
            keys = list(self.streams)
            padding = b"." * 80
            start, made, per_step = trio.current_time(), 0, int(2 * self.rate * PACE_S) + 1
            while not scene.over.is_set():
                due = int((trio.current_time() - start) * self.rate) - made
                for _ in range(min(due, per_step)):
                    if not self.session.connected or len(self.session.in_flight) >= WINDOW:
                        break
                    topic, qos = draw.choice(keys)
                    stream = self.streams[topic, qos]
                    stream.sent += 1
                    made += 1
                    self.session.publish(
                        topic, b"%d %d %s" % (qos, stream.sent, padding), qos, tag=(stream, stream.sent)
                    )
                self.push()
                await scene.rest(PACE_S, scene.over)
            scene.counts["messages sent"] += made


class Subscriber(Actor):
    """Subscribes once and checks what comes; leaves and stays away as its habit is.

    Args:
        habit: seconds that it stays on the average, and stays away; 0: it never leaves by itself.
    """

    def __init__(
        self,
        scene: Scene,
        name: str,
        version: int,
        topic_filter: str,
        qos: int,
        publishers: list[Publisher],
        habit: tuple[float, float],
        receive_maximum: int = 65_535,
    ) -> None:
        super().__init__(
            scene, ClientSession(name, version, on_message=self.on_message, receive_maximum=receive_maximum)
        )
        self.topic_filter = topic_filter
        self.qos = qos
        self.habit = habit
        self.streams = {
            (topic, qos): stream for publisher in publishers for (topic, qos), stream in publisher.streams.items()
        }
        self.seen = {key: Seen() for key in self.streams}
        self.highest = dict.fromkeys(self.streams, 0)
        self.shared: dict[tuple[bytes, int], Seen] | None = None  # of all members of a group
        self.complaints = 0

    def on_message(self, topic: bytes, payload: bytes, qos: int, retain: bool, dup: bool) -> None:
        """A message: in order, and at QoS 2 not twice."""
        published, number, _ = payload.split(b" ", 2)
        key = topic, int(published)
        seen = self.seen[key]
        repeated, count = seen.repeated, int(number)
        seen.add(count)
        self.scene.counts["messages delivered"] += 1
        if self.shared is not None:
            self.shared[key].add(count)
        if seen.repeated != repeated:
            if qos == 2:
                self.complain(f"{topic!r}: number {count} came twice at QoS 2")
            else:
                self.scene.counts["messages repeated at QoS 1"] += 1
            return
        # In a group, what its publisher sends again at QoS 1 may come to another member, behind later messages.
        gap = count != self.highest[key] + 1 if self.shared is None else qos == 2 and count < self.highest[key]
        if gap:
            self.complain(f"{topic!r} QoS {key[1]}: number {count} came after {self.highest[key]}")
        self.highest[key] = max(count, self.highest[key])

    def complain(self, what: str) -> None:
        """A fault, but one client's are not to hide the others'."""
        self.complaints += 1
        if self.complaints <= 5:
            self.scene.fault(f"{self.session.identifier}: {what}")

    def on_connected(self) -> None:
        """Subscribe, where the session does not yet."""
        super().on_connected()
        if self.topic_filter not in self.session.subscribed:
            self.session.subscribe(self.topic_filter, self.qos)

    async def run(self) -> None:
        """Come and go until it is over, then stay."""
        scene, draw = self.scene, self.scene.draw(self.session.identifier)
        stay_s, away_s = self.habit
        while not scene.done.is_set():
            if scene.over.is_set() or not stay_s:
                outcome = await self.stay(1e9)
            elif not scene.ready.is_set():
                outcome = await self.stay(1e9, leave=scene.ready)
            else:
                outcome = await self.stay(draw.expovariate(1 / stay_s), draw.random() < 0.5, scene.over)
                if outcome == "left" and not scene.over.is_set():
                    await scene.rest(draw.expovariate(1 / away_s), scene.over)
            if outcome == "refused":
                await scene.rest(TRY_AGAIN_S, scene.done)

    def missing(self) -> list[str]:
        """Return what was acknowledged, or sent and to be acknowledged by now, and has not come, in words."""
        seen = self.shared if self.shared is not None else self.seen
        return [
            f"{self.session.identifier}: {topic!r} QoS {qos}: {stream.acknowledged.low} were acknowledged of "
            f"{stream.sent}, {seen[topic, qos].low + 1} never came"
            for (topic, qos), stream in self.streams.items()
            if seen[topic, qos].low < stream.sent
        ]


# Retained messages --------------------------------------------------------------------------------------------------


class Retainer(Actor):
    """Sets and removes retained messages, and knows which may stand."""

    def __init__(self, scene: Scene, name: str, version: int) -> None:
        super().__init__(scene, ClientSession(name, version, on_acknowledged=self.on_acknowledged))
        self.name = name
        self.history: dict[bytes, list[bytes]] = {
            f"retained/{name}/{number}".encode(): [b""] for number in range(RETAINED_TOPICS)
        }
        self.acknowledged = dict.fromkeys(self.history, 0)
        self.sent_again: set[tuple[bytes, int]] = set()  # these may come behind later ones

    def on_connected(self) -> None:
        """What was in flight has been sent again."""
        super().on_connected()
        self.sent_again.update(tag for _, tag in self.session.in_flight.values())

    def on_acknowledged(self, tag: tuple[bytes, int]) -> None:
        """PUBACK or PUBREC: older ones may not stand any more."""
        topic, number = tag
        self.acknowledged[topic] = max(self.acknowledged[topic], number)

    async def run(self) -> None:
        """Publish until it is over."""
        scene, draw = self.scene, self.scene.draw(self.name)
        topics = list(self.history)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.keep, scene.done)
            await scene.ready.wait()
            while not scene.over.is_set():
                if self.session.connected and len(self.session.in_flight) < WINDOW:
                    topic = draw.choice(topics)
                    history = self.history[topic]
                    payload = b"" if draw.random() < 0.2 else b"%d" % len(history)
                    # At one QoS, since a message sent again may come behind a later one of another QoS.
                    self.session.publish(topic, payload, 1 + topics.index(topic) % 2, True, (topic, len(history)))
                    history.append(payload)
                    scene.counts["retained messages set"] += 1
                    self.push()
                await scene.rest(draw.expovariate(RETAINED_PER_S), scene.over)


async def read_retained(scene: Scene, retainers: list[Retainer]) -> None:
    """Subscribe anew and compare: what was acknowledged before stands, or what was sent later. Gives up at a kill."""
    history = {topic: values for retainer in retainers for topic, values in retainer.history.items()}
    at_least = {topic: number for retainer in retainers for topic, number in retainer.acknowledged.items()}
    found: dict[bytes, bytes] = {}
    starts, stale = scene.starts, []

    def on_message(topic: bytes, payload: bytes, qos: int, retain: bool, dup: bool) -> None:
        found[topic] = payload
        if retain and int(payload) < at_least[topic]:
            stale.append(f"{topic!r} has {payload!r} retained, {at_least[topic]} was acknowledged before")

    actor = Actor(
        scene, ClientSession(f"retained-reader-{starts}", 4 + starts % 2, on_message=on_message, session_expiry_s=0)
    )
    finished = trio.Event()

    def wrong() -> list[str]:
        return [
            f"{topic!r} has {found.get(topic, b'')!r} retained, which is none of {history[topic][number:][:9]}"
            for topic, number in at_least.items()
            if found.get(topic, b"") not in history[topic][number:]
        ]

    async def look() -> None:
        while not actor.session.connected:
            await actor.next_change()
        actor.session.subscribe("retained/#", 0)
        actor.push()
        with trio.move_on_after(ANSWER_S):
            while "retained/#" not in actor.session.subscribed or wrong():
                await actor.next_change()
        for what in stale + wrong():
            scene.fault(what)
        scene.counts["sets of retained messages compared"] += 1
        finished.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await actor.stay(1e9, goodbye=True, leave=finished)
        nursery.cancel_scope.cancel()


# Wills --------------------------------------------------------------------------------------------------------------


class Wills:
    """Who breaks has its will published once, over crashes too; who comes back in time or says goodbye does not."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.came: Counter[bytes] = Counter()
        self.waited_for: set[bytes] = set()
        self.renounced: set[bytes] = set()  # the broker has proved that it took note of a goodbye
        self.news = trio.Event()
        self.reader = Actor(scene, ClientSession("will-reader", 5, on_message=self.on_message))

    def on_message(self, topic: bytes, payload: bytes, qos: int, retain: bool, dup: bool) -> None:
        """A will came."""
        self.came[payload] += 1
        if self.came[payload] > 1 and qos == 2:
            self.scene.fault(f"the will {payload!r} came {self.came[payload]} times")
        if payload.startswith(b"loyal"):
            self.scene.fault(f"the will {payload!r} came, though its client always came back in time")
        self.news.set()
        self.news = trio.Event()

    async def read(self) -> None:
        """Keep the reader connected."""
        reader, scene = self.reader, self.scene
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.keep, scene.done)
            while "wills/#" not in reader.session.subscribed and not scene.done.is_set():
                await reader.next_change()
                if reader.session.connected and "wills/#" not in reader.session.subscribed:
                    reader.session.subscribe("wills/#", 2)
                    reader.push()

    async def breaker(self, name: str, qos: int) -> None:
        """Connect, break or be broken, stay away; the will must come."""
        scene, draw = self.scene, self.scene.draw(name)
        await scene.ready.wait()
        number = 0
        while not scene.over.is_set():
            number += 1
            payload = f"breaker {name} {number}".encode()
            will = Will(b"wills/" + name.encode(), payload, qos, delay_interval_s=draw.choice((0, WILL_DELAY_S)))
            actor = Actor(scene, ClientSession(name, 5, will=will))
            outcome = "refused"
            while outcome == "refused" and not scene.over.is_set():
                outcome = await actor.stay(draw.expovariate(0.5), leave=scene.over)
                if outcome == "refused":
                    await scene.rest(TRY_AGAIN_S, scene.over)
            if not actor.session.established:
                continue
            scene.counts["wills owed"] += 1
            self.waited_for.add(payload)
            # However long: a broker that is killed while it recovers, again and again, is late, and has lost nothing.
            while not self.came[payload] and not scene.done.is_set():
                with trio.move_on_after(1):
                    await self.news.wait()
            if self.came[payload]:
                self.waited_for.discard(payload)

    async def loyal(self, name: str) -> None:
        """Stay over all crashes: the will's delay never passes."""
        will = Will(b"wills/" + name.encode(), f"loyal {name}".encode(), 1, delay_interval_s=600)
        await Actor(self.scene, ClientSession(name, 5, will=will)).keep(self.scene.done)

    async def polite(self, name: str, version: int) -> None:
        """Say goodbye: no will. A goodbye has no answer, but the CONNACK of the next connection rests on it."""
        scene, draw = self.scene, self.scene.draw(name)
        await scene.ready.wait()
        actor = Actor(scene, ClientSession(name, version))
        number = starts = 0
        said = b""
        while not scene.over.is_set():
            number += 1
            payload = f"polite {name} {number}".encode()
            actor.session.will = Will(b"wills/" + name.encode(), payload, 1)
            actor.left_at_start = -1
            came_at_start = scene.starts
            outcome = await actor.stay(draw.expovariate(2), goodbye=True, leave=scene.over)
            if said and actor.left_at_start == starts:
                self.renounced.add(said)
                scene.counts["goodbyes"] += 1
            starts = scene.starts
            said = payload if outcome == "left" and scene.port and starts == came_at_start else b""
            await scene.rest(TRY_AGAIN_S, scene.over)


# All together -------------------------------------------------------------------------------------------------------


class Cast:
    """All clients of a run, and the verdict on them."""

    def __init__(self, scene: Scene, publishers: int) -> None:
        self.scene = scene
        rate = scene.rate / publishers
        self.publishers = [Publisher(scene, f"p{number}", 4 + number % 2, rate) for number in range(publishers)]
        self.subscribers: list[Subscriber] = []
        for number, publisher in enumerate(self.publishers):
            habit = ((0.0, 0.0), (4.0, 1.0), (6.0, 10.0))[number % 3]
            self.subscribers.append(Subscriber(
                scene, f"s{number}", 5 - number // 2 % 2, f"kill/{publisher.name}/#", (2, 2, 1)[number // 2 % 3],
                [publisher], habit, (65_535, 20)[number % 5 == 4]))  # fmt: skip
        # A group over the first publisher, and one that is connected for moments only over the second.
        members = [
            Subscriber(
                scene, f"m{number}", 4 + number % 2, "$share/group/kill/p0/#", 2, self.publishers[:1], (4.0, 3.0)
            )
            for number in range(3)
        ]
        shared = {key: Seen() for key in members[0].streams}
        for member in members:
            member.shared = shared
        self.shared = shared
        self.subscribers += [*members, Subscriber(scene, "away", 5, "kill/p1/#", 2, self.publishers[1:2], (1.0, 25.0))]
        self.retainers = [Retainer(scene, f"retainer{number}", 4 + number) for number in range(2)]
        self.wills = Wills(scene)

    async def play(self) -> None:
        """Run all clients until the scene is done."""
        async with trio.open_nursery() as nursery:
            for actor in (*self.publishers, *self.subscribers, *self.retainers):
                nursery.start_soon(actor.run)
            nursery.start_soon(self.wills.read)
            for number in range(4):
                nursery.start_soon(self.wills.breaker, f"breaker{number}", 1 + number % 2)
            nursery.start_soon(self.wills.loyal, "loyal")
            for version in (4, 5):
                nursery.start_soon(self.wills.polite, f"polite{version}", version)
            with trio.move_on_after(ANSWER_S):
                while not (
                    all(actor.topic_filter in actor.session.subscribed for actor in self.subscribers)
                    and self.wills.reader.session.subscribed
                ):
                    await self.scene.rest(0.01, self.scene.done)
                self.scene.ready.set()
            if not self.scene.ready.is_set():
                self.scene.fault("not all subscriptions were made in time")
                self.scene.ready.set()

    async def catch_up(self, seconds: float) -> None:
        """Wait until everything that was sent was acknowledged and has arrived; what has not is a fault."""
        scene = self.scene
        with trio.move_on_after(seconds):
            while not scene.done.is_set() and (
                any(actor.session.in_flight for actor in (*self.publishers, *self.retainers))
                or self.wills.waited_for
                or any(subscriber.missing() for subscriber in self.subscribers)
            ):
                await scene.rest(0.1, scene.done)
        if scene.done.is_set():
            return
        for actor in (*self.publishers, *self.retainers):
            if actor.session.in_flight:
                scene.fault(f"{actor.session.identifier}: {len(actor.session.in_flight)} messages have no answer")
        for subscriber in self.subscribers:
            for what in subscriber.missing()[:3]:
                scene.fault(what)
        for payload in self.wills.waited_for:
            scene.fault(f"the will {payload!r} never came")
        for payload in self.wills.renounced & self.wills.came.keys():
            scene.fault(f"the will {payload!r} came, though its client said goodbye")
        if repeated := sum(seen.repeated for (_, qos), seen in self.shared.items() if qos == 2):
            scene.fault(f"the group got {repeated} messages of QoS 2 twice")
        scene.counts["messages sent again by publishers"] = sum(p.session.resent for p in self.publishers)
