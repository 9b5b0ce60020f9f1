"""The loads of a soak, each at a low rate, and what must be true of them at the end."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import trio

from broker.wire.packets import Connect, Pingreq, Publish, Subscribe, Will, encode, subscription
from tests.inprocess.test_churn import one_client
from tests.tools.fuzz import connection as fuzzed
from tests.tools.soak.client import GoneError, Person, connected

TRACKED_PER_S = 10.0  # messages of each tracked pair
SLOW_BYTES = 16_384
SLOW_S = 20.0  # how long somebody does not read
IDLE_CLIENTS = 200
TOPICS_RETAINED = 50
CATCH_UP_S = 60.0  # for what is owed when the loads have ended


class Seen:
    """Which numbers from 1 on came: all up to `low`, and those in `above`."""

    def __init__(self) -> None:
        self.low = 0
        self.above: set[int] = set()
        self.repeated = 0

    def add(self, number: int) -> None:
        """A number came."""
        if number <= self.low or number in self.above:
            self.repeated += 1
            return
        self.above.add(number)
        while self.low + 1 in self.above:
            self.low += 1
            self.above.discard(self.low)


@dataclass
class Soak:
    """What the loads share.

    Attributes:
        port: the broker's.
        draw: chance, from the seed.
        over: set when the loads are to end; who is owed something catches up then.
        counts: what was done, for the reader of the report.
        faults: promises that were broken, in words.
    """

    port: int
    draw: random.Random
    over: trio.Event = field(default_factory=trio.Event)
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        """Whether the loads go on."""
        return not self.over.is_set()

    async def rest(self, seconds: float) -> None:
        """Wait, but not beyond the end."""
        with trio.move_on_after(seconds):
            await self.over.wait()


async def tracked(soak: Soak, name: str, version: int, qos: int, shares: int = 0) -> None:
    """A publisher, and one durable subscriber or several that share, who come and go: what is acknowledged arrives."""
    seen = Seen()
    topic_filter = f"$share/{name}/soak/{name}/#" if shares else f"soak/{name}/#"
    ready = [trio.Event() for _ in range(shares or 1)]
    published = trio.Event()
    acknowledged = 0

    async def publish() -> None:
        nonlocal acknowledged
        for event in ready:
            await event.wait()
        async with connected(soak.port, Person(f"{name}-publisher", version)) as client:
            while soak.goes_on:
                number = acknowledged + 1
                await client.publish(f"soak/{name}/{number % 7}", b"%d" % number, qos)
                acknowledged = number
                soak.counts["tracked messages acknowledged"] += 1
                await soak.rest(soak.draw.expovariate(TRACKED_PER_S))
        published.set()

    async def come_and_go(member: int) -> None:
        person = Person(f"{name}-subscriber-{member}", version, False, lambda message: seen.add(int(message.payload)))
        while not published.is_set():
            try:
                async with connected(soak.port, person, goodbye=soak.draw.random() < 0.5) as client:
                    if ready[member].is_set():
                        if not client.session_present:
                            soak.faults.append(f"{person.identifier}: the session was lost")
                    else:
                        await client.subscribe(topic_filter, qos)
                        ready[member].set()
                    await soak.rest(soak.draw.uniform(0.5, 8))
                    if soak.goes_on and soak.draw.random() < 0.3:
                        soak.counts["takeovers"] += 1
                        # Its reader goes on until the broker ends the older connection.
                        async with connected(soak.port, person):
                            await soak.rest(1)
            except GoneError:
                pass
            await soak.rest(soak.draw.uniform(0, 3))
            soak.counts["durable sessions left and resumed"] += 1
            if not soak.goes_on:
                with trio.move_on_after(1):
                    await published.wait()
        async with connected(soak.port, person):
            with trio.move_on_after(CATCH_UP_S):
                while seen.low < acknowledged:  # noqa: ASYNC110  (what comes is noted by a callback)
                    await trio.sleep(0.1)
        async with connected(soak.port, Person(person.identifier, version)):
            pass  # a clean start ends the session

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish)
        for member in range(shares or 1):
            nursery.start_soon(come_and_go, member)
    if seen.low < acknowledged:
        soak.faults.append(f"{name}: {acknowledged} messages were acknowledged, number {seen.low + 1} never came")
    if qos == 2 and not shares and seen.repeated:
        soak.faults.append(f"{name}: {seen.repeated} messages came twice at QoS 2")


async def retained(soak: Soak) -> None:
    """Retained messages are replaced all the time; at the end each topic has the one acknowledged last."""
    last: dict[str, bytes] = {}
    found: dict[str, bytes] = {}
    async with connected(soak.port, Person("retained-publisher")) as client:
        while soak.goes_on:
            topic = f"soak/retained/{soak.draw.randrange(TOPICS_RETAINED)}"
            payload = b"" if soak.draw.random() < 0.2 else soak.draw.randbytes(soak.draw.randrange(1, 400))
            await client.publish(topic, payload, 1, True)
            last[topic] = payload
            soak.counts["retained messages set"] += 1
            await soak.rest(soak.draw.expovariate(10))

    def take(message: Publish) -> None:
        found[message.topic.decode()] = message.payload

    expected = {topic: payload for topic, payload in last.items() if payload}
    async with connected(soak.port, Person("retained-reader", on_message=take)) as client:
        await client.subscribe("soak/retained/#", 1)
        with trio.move_on_after(CATCH_UP_S):
            while len(found) < len(expected):  # noqa: ASYNC110  (what comes is noted by a callback)
                await trio.sleep(0.1)
    wrong = [topic for topic in expected if found.get(topic) != expected[topic]]
    async with connected(soak.port, Person("retained-publisher")) as client:
        for topic in expected:
            await client.publish(topic, b"", 1, True)
    if wrong or len(found) != len(expected):
        soak.faults.append(f"retained messages of {wrong or set(found) - set(expected)} are not those set last")


async def wills(soak: Soak) -> None:
    """Clients break, and their wills come; clients say goodbye, and theirs do not."""
    seen: set[bytes] = set()
    owed: set[bytes] = set()
    person = Person("will-reader", 5, on_message=lambda message: seen.add(message.payload))
    async with connected(soak.port, person) as reader:
        await reader.subscribe("soak/wills", 1)
        number = 0
        while soak.goes_on:
            number += 1
            breaks = soak.draw.random() < 0.7
            payload = b"%d" % number
            will = Will(b"soak/wills", payload, 1)
            async with connected(soak.port, Person(f"will-{number % 5}", soak.draw.choice((4, 5))), will, not breaks):
                await soak.rest(soak.draw.random())
            if breaks:
                owed.add(payload)
                soak.counts["wills"] += 1
            if seen - owed:
                await trio.sleep(0.5)
            if unexpected := seen - owed:
                soak.faults.append(f"wills {unexpected} came though their clients said goodbye")
            owed, seen_now = owed - seen, seen & owed
            seen -= seen_now
        with trio.move_on_after(CATCH_UP_S):
            while owed - seen:  # noqa: ASYNC110  (what comes is noted by a callback)
                await trio.sleep(0.1)
    if owed - seen:
        soak.faults.append(f"wills {owed - seen} never came")


async def slow_readers(soak: Soak) -> None:
    """Somebody subscribes and does not read, until the output is full; then it breaks, and the next one comes."""

    async def publish() -> None:
        async with connected(soak.port, Person("slow-publisher")) as client:
            number = 0
            while soak.goes_on:
                number += 1
                await client.publish("soak/slow", soak.draw.randbytes(SLOW_BYTES), number % 2)
                await soak.rest(soak.draw.expovariate(15))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish)
        while soak.goes_on:
            stream = await trio.open_tcp_stream("127.0.0.1", soak.port)
            stream.setsockopt(1, 8, 4096)  # SOL_SOCKET, SO_RCVBUF: the kernel takes little
            await stream.send_all(
                encode(Connect(4, b"slow-reader"), 4) + encode(Subscribe(1, (subscription(b"soak/slow", 1),)), 4)
            )
            soak.counts["slow readers"] += 1
            await soak.rest(SLOW_S)
            await trio.aclose_forcefully(stream)


async def churn(soak: Soak) -> None:
    """Clients that come under a few identifiers, do all sorts of things, take each other over, and leave."""
    seed = 0
    async with trio.open_nursery() as nursery:
        while soak.goes_on:
            seed += 1
            soak.counts["clients that came and went"] += 1
            nursery.start_soon(one_client, soak.port, random.Random(seed))
            await soak.rest(soak.draw.expovariate(12))


async def wrong_bytes(soak: Soak) -> None:
    """What the fuzz target of whole connections draws, over sockets."""
    while soak.goes_on:
        script = fuzzed.make(soak.draw)
        streams: dict[int, trio.SocketStream] = {}
        for what, client, data in fuzzed.steps(script):
            if what == fuzzed.OPEN and client in streams:
                await trio.aclose_forcefully(streams.pop(client))
            if client not in streams:
                streams[client] = await trio.open_tcp_stream("127.0.0.1", soak.port)
            if what == fuzzed.FEED:
                try:
                    with trio.move_on_after(0.5):
                        await streams[client].send_all(data)
                except trio.BrokenResourceError:
                    pass  # thrown out
        soak.counts["connections with wrong bytes"] += len(streams)
        await soak.rest(0.3)
        for stream in streams.values():
            await trio.aclose_forcefully(stream)
        await soak.rest(soak.draw.expovariate(2))


async def tidy(soak: Soak) -> None:
    """Remove what wrong bytes and churn left retained, so that it does not add up."""
    topics: set[bytes] = set()
    while True:
        topics.clear()
        person = Person("tidy", on_message=lambda message: topics.add(message.topic) if message.retain else None)
        async with connected(soak.port, person) as client:
            await client.subscribe("#", 0)
            await client.send(Pingreq())
            await trio.sleep(2)
        async with connected(soak.port, Person("tidy")) as client:
            for topic in topics:
                if not topic.startswith(b"soak/"):
                    await client.send(Publish(topic, b"", 0, True))
        if not soak.goes_on:
            return
        await soak.rest(20)


async def idle(soak: Soak) -> None:
    """Clients that are just there, and say so now and then."""

    async def one(number: int) -> None:
        while soak.goes_on:
            async with connected(soak.port, Person(f"idle-{number}", 4 + number % 2)) as client:
                await client.subscribe(f"soak/idle/{number}", 1)
                while soak.goes_on:
                    await client.send(Pingreq())
                    await soak.rest(soak.draw.uniform(10, 25))

    async with trio.open_nursery() as nursery:
        for number in range(IDLE_CLIENTS):
            nursery.start_soon(one, number)


async def all_loads(soak: Soak) -> None:
    """Run all loads until they are over and have caught up."""
    async with trio.open_nursery() as nursery:
        for version in (4, 5):
            for qos in (1, 2):
                nursery.start_soon(tracked, soak, f"pair-{version}-{qos}", version, qos)
            nursery.start_soon(tracked, soak, f"group-{version}", version, 1, 3)
        for load in (retained, wills, slow_readers, churn, wrong_bytes, tidy, idle):
            nursery.start_soon(load, soak)
