"""Deadlines of sessions and wills: what falls due and when, and that none is kept for who has come back."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import dataclass

import pytest

from router.core.message import message
from router.router import Router
from router.sessions.ledger import Ledger


@dataclass
class DelayedWill:
    """A will that notes when it is published."""

    name: bytes
    delay_interval_s: int
    published: list[tuple[int, bytes]]
    qos: int = 0

    def message(self, now_ms: int) -> object:
        """Return it as a message."""
        self.published.append((now_ms, self.name))
        return message(b"will", self.name, self.qos)


def left(router: Router, name: bytes, expiry_s: int, will: DelayedWill | None = None) -> None:
    """A client comes, and goes."""
    session, _ = router.open_session(name, False, expiry_s, will)
    router.detach_session(session, True)


def test_who_comes_back_has_no_deadline_and_leaves_none_behind() -> None:
    router = Router(Ledger())
    for _ in range(1000):
        left(router, b"c", 1_000_000_000, DelayedWill(b"w", 1_000_000_000, []))
    assert router.deadline_count == 1
    router.open_session(b"c", False, 1_000_000_000)
    assert router.deadline_count == 0
    assert router.expire() == 0


def test_reconnecting_takes_no_memory() -> None:
    router = Router(Ledger())
    for number in range(100):
        left(router, b"%d" % number, 1_000_000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(20_000):
            left(router, b"%d" % (number % 100), 1_000_000)
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seed", range(20))
def test_sessions_end_and_wills_are_published_in_their_time(seed: int) -> None:
    draw = random.Random(seed)
    router = Router(Ledger())
    published: list[tuple[int, bytes]] = []
    expected: list[tuple[int, bytes]] = []
    # Client identifier -> when its will is due and its session ends, if ever.
    due: dict[bytes, tuple[int | None, int | None]] = {}
    names: dict[bytes, bytes] = {}
    now_ms = 5000
    for step in range(600):
        name = b"%d" % draw.randrange(40)
        what = draw.random()
        if what < 0.4:
            expiry_s = draw.choice((0, 1, 5, 30, 0xFFFFFFFF))
            will = DelayedWill(b"%d" % step, draw.choice((0, 1, 7, 60)), published) if draw.random() < 0.5 else None
            router.ledger.now_ms = now_ms
            left(router, name, expiry_s, will)
            will_ms = None if will is None else now_ms + will.delay_interval_s * 1000
            ends_ms = None if expiry_s == 0xFFFFFFFF else now_ms + expiry_s * 1000
            if ends_ms is not None and will_ms is not None:
                will_ms = min(will_ms, ends_ms)
            if will_ms == now_ms and will is not None:
                expected.append((now_ms, will.name))
                will_ms = None
            due[name] = (will_ms, ends_ms)
            if expiry_s == 0:
                del due[name]
        elif what < 0.6 and name in due:
            router.ledger.now_ms = now_ms
            router.open_session(name, False, 0xFFFFFFFF)  # it is back, and stays
            del due[name]
        else:
            now_ms += draw.choice((1, 250, 1000, 9000))
            router.ledger.now_ms = now_ms
            for one, (will_ms, ends_ms) in list(due.items()):
                if will_ms is not None and will_ms <= now_ms:
                    expected.append((now_ms, names[one]))
                    due[one] = (None, ends_ms)
                if ends_ms is not None and ends_ms <= now_ms:
                    assert one in router.sessions
                    del due[one]
            following = router.expire()
            waiting = [time for times in due.values() for time in times if time is not None]
            assert following == min(waiting, default=0)
            assert set(due) <= set(router.sessions)
        names = names_of(router)
        assert router.deadline_count == sum(times != (None, None) for times in due.values())
        assert sorted(published) == sorted(expected)


def names_of(router: Router) -> dict[bytes, bytes]:
    """Return the name of each session's will."""
    return {one: session.will.name for one, session in router.sessions.items() if session.will is not None}
