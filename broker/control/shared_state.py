"""Small things that all workers of a broker keep for one another: bans, for instance.

Each is a retained message below $shoal/, so it has what those have: it is in the log before whoever set it is answered,
every worker gets it, the newest one counts, and its end is its Message Expiry Interval. Clients neither publish nor
subscribe there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import msgspec
import trio

from broker.logs import get

if TYPE_CHECKING:
    from broker.control.inprocess_client import InProcess
    from router.core.message import Message
    from router.router import Router

log = get("state")

PREFIX: Final = "$shoal/"
SLICE_MESSAGES: Final = 1000
PUT_AT_ONCE_MAX: Final = 1000
EXPIRY_MAX_S: Final = 0xFFFFFFFF
LOOK_S: Final = 1.0  # between two looks at what was not sure
LOOKS: Final = 3  # at all there is, by how often another worker's process has written; two tables may wait for that
LOOKED_AT_PER_STEP: Final = 100

Value = dict[str, Any]
Apply = Callable[[str, "Value | None"], None]  # with the key, and what stands there now; None: nothing


class SharedState:
    """The values of all kinds, by key, as one worker sees them.

    Args:
        in_process: the worker's in-process clients.
        router: the worker's.
    """

    def __init__(self, in_process: InProcess, router: Router) -> None:
        self._in_process = in_process
        self._router = router
        self._kinds: dict[str, Apply] = {}
        self._applied: dict[str, int] = {}  # topic name to the hash of what was applied last; what is gone is left out
        self._unsure: set[str] = set()  # topic names: what was applied came ahead of its log
        self._written: dict[int, Any] = {}  # worker to its process and how far it had written, seen last
        self._looks: dict[int, int] = {}  # worker to the looks since its process began

    def follow(self, kind: str, apply: Apply) -> None:
        """Have a function called with each value of a kind that there is, and that changes; the same may come again.

        To be called before load().
        """
        self._kinds[kind] = apply

    def load(self, only: str = "") -> None:
        """Apply what is there at a start, before clients are let in; of one kind, or of all."""
        for kind in [only] if only else self._kinds:
            for messages in _retained(self._router, f"{PREFIX}{kind}/#".encode(), SLICE_MESSAGES):
                for message in messages:
                    if self._router.retaining.is_brought(message.topic_name):
                        self._unsure.add(message.topic_name.decode())
                    self._apply(message.topic_name.decode(), message.body)

    async def run(self) -> None:
        """Apply what any worker sets from now on. Runs until cancelled, or until the broker ends."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_looking)
            await self._follow_all()
            nursery.cancel_scope.cancel()

    async def _keep_looking(self) -> None:
        while True:
            await trio.sleep(LOOK_S)
            for _ in self.look_again():
                await trio.lowlevel.checkpoint()

    async def _follow_all(self) -> None:
        with suppress(trio.ClosedResourceError):  # it may end before all is subscribed
            async with self._in_process.connect_own("$shoal") as client:
                for kind in self._kinds:
                    await client.subscribe(f"{PREFIX}{kind}/#", qos=1)
                async for message in client:
                    # What came may be older than what stands there: a worker's that was away, for instance.
                    self._apply_newest(message.topic_name)

    def has(self, kind: str, key: str) -> bool:
        """Return whether there is a value, applied or not."""
        return self._router.retained_message(_topic_of(kind, key).encode()) is not None

    async def put_all(self, kind: str, values: Mapping[str, Value | None]) -> None:
        """Set or remove (None) some values, in any order; returns when that is durable here, and has been applied here.

        Raises as put().
        """
        payloads = {key: b"" if value is None else msgspec.json.encode(value) for key, value in values.items()}
        async with self._in_process.connect_own("$shoal") as client:
            for batch in batched(payloads, PUT_AT_ONCE_MAX):
                async with trio.open_nursery() as nursery:
                    for key in batch:
                        nursery.start_soon(
                            partial(client.publish, _topic_of(kind, key), payloads[key], qos=1, retain=True)
                        )
        for key in payloads:
            self._apply_newest(_topic_of(kind, key))

    async def put(self, kind: str, key: str, value: Value | None, expires_in_s: float | None = None) -> None:
        """Set a value, or remove it (None); returns when that is durable here, and has been applied here.

        Args:
            key: not empty; any text of up to some 20,000 characters.
            expires_in_s: after which it is gone; None: never.

        Raises:
            trio.ClosedResourceError: the broker ended before it was durable.
        """
        topic = _topic_of(kind, key)
        payload = b"" if value is None else msgspec.json.encode(value)
        properties = None
        if expires_in_s is not None and value is not None:
            properties = {"message_expiry_interval": min(max(1, round(expires_in_s)), EXPIRY_MAX_S)}
        async with self._in_process.connect_own("$shoal") as client:
            await client.publish(topic, payload, qos=1, retain=True, properties=properties)
        self._apply_newest(topic)

    def look_again(self) -> Iterator[None]:
        """Apply what stands there and was not to be seen before; yields after some milliseconds of it.

        What a link brings is taken for newer than all that was there, until its log has it: then its stamp counts, or
        it is lost with its worker. And what a worker has set shortly before this one heard of it, or is brought back by
        its log, is seen when its worker writes it to the index.
        """
        for topic_name in list(self._unsure):
            self._apply_if_other(topic_name)
        if self._has_more_been_written():
            missing = set(self._applied)
            for kind in self._kinds:
                for messages in _retained(self._router, f"{PREFIX}{kind}/#".encode(), LOOKED_AT_PER_STEP):
                    for message in messages:
                        topic_name = message.topic_name.decode()
                        missing.discard(topic_name)
                        self._apply_if_other(topic_name)
                    yield
            for topic_names in batched(sorted(missing), LOOKED_AT_PER_STEP):
                for topic_name in topic_names:
                    self._apply_if_other(topic_name)
                yield

    def _has_more_been_written(self) -> bool:
        """Return whether a worker has written to the index, other than a few times since its process began."""
        more = False
        for worker, written in self._router.retaining.written().items() if self._router.retaining.is_shared else ():
            before = self._written.get(worker)
            if written == before:
                continue
            if before is None or before[0] != written[0]:
                self._looks[worker] = 0
            self._written[worker] = written
            self._looks[worker] += 1
            more |= self._looks[worker] <= LOOKS
        return more

    def _apply_if_other(self, topic_name: str) -> None:
        payload = self._newest(topic_name)
        if hash(payload) != self._applied.get(topic_name, hash(b"")):
            self._apply(topic_name, payload)

    def _newest(self, topic_name: str) -> bytes:
        encoded = topic_name.encode()
        newest = self._router.retained_message(encoded)
        if self._router.retaining.is_brought(encoded):
            self._unsure.add(topic_name)
        else:
            self._unsure.discard(topic_name)
        return b"" if newest is None else newest.body

    def _apply_newest(self, topic_name: str) -> None:
        """Apply what stands there now: of what several workers have set, the same to all of them."""
        self._apply(topic_name, self._newest(topic_name))

    def _apply(self, topic_name: str, payload: bytes) -> None:
        if payload:
            self._applied[topic_name] = hash(payload)
        else:
            self._applied.pop(topic_name, None)
        kind, _, quoted = topic_name.removeprefix(PREFIX).partition("/")
        try:
            value = msgspec.json.decode(payload, type=Value) if payload else None
            self._kinds[kind](unquote(quoted), value)
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
            # A newer worker may write what this one does not know: the others go on.
            log.exception("state_not_understood", topic=topic_name)


def _topic_of(kind: str, key: str) -> str:
    return f"{PREFIX}{kind}/{quote(key, safe='')}"


def batched(keys: Iterable[str], count: int) -> Iterator[list[str]]:
    """Go through keys, so many at a time."""
    left = iter(keys)
    while batch := list(islice(left, count)):
        yield batch


def _retained(router: Router, topic_filter: bytes, count: int) -> Iterator[list[Message]]:
    """Return all that is retained under a topic filter, so many at a time."""
    found = router.retaining.match(topic_filter)
    if isinstance(found, list):
        yield found
        return
    while not found.done:
        yield found.next_slice(count, router.ledger.now_us, router.ledger.now_ms)
