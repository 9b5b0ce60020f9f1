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

    def follow(self, kind: str, apply: Apply) -> None:
        """Have a function called with each value of a kind that there is, and that changes; the same may come again.

        To be called before load().
        """
        self._kinds[kind] = apply

    def load(self, only: str = "") -> None:
        """Apply what is there at a start, before clients are let in; of one kind, or of all."""
        for kind in [only] if only else self._kinds:
            for message in _retained(self._router, f"{PREFIX}{kind}/#".encode()):
                self._apply(message.topic_name.decode(), message.body)

    async def run(self) -> None:
        """Apply what any worker sets from now on. Runs until cancelled, or until the broker ends."""
        with suppress(trio.ClosedResourceError):  # it may end before all is subscribed
            async with self._in_process.connect_own("$shoal") as client:
                for kind in self._kinds:
                    await client.subscribe(f"{PREFIX}{kind}/#", qos=1)
                async for message in client:
                    # What came may be older than what stands there: a worker's that was away, for instance.
                    self._apply_newest(message.topic_name)

    def has(self, kind: str, key: str) -> bool:
        """Return whether there is a value, applied or not."""
        return bool(_retained(self._router, _topic_of(kind, key).encode()))

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

    def _apply_newest(self, topic_name: str) -> None:
        """Apply what stands there now: of what several workers have set, the same to all of them."""
        newest = self._router.retained_message(topic_name.encode())
        self._apply(topic_name, b"" if newest is None else newest.body)

    def _apply(self, topic_name: str, payload: bytes) -> None:
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


def _retained(router: Router, topic_filter: bytes) -> list[Message]:
    """Return all that is retained under a topic filter."""
    found = router.retaining.match(topic_filter)
    if isinstance(found, list):
        return found
    messages = []
    while not found.done:
        messages += found.next_slice(SLICE_MESSAGES, router.ledger.now_us, router.ledger.now_ms)
    return messages
