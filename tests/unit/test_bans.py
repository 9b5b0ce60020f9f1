"""Bans, delays after failed logins, and clients that connect again and again, without a broker."""

from __future__ import annotations

import ipaddress
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.auth import addresses, bans, flapping, login_delays
from broker.auth.bans import Ban, Bans, ban_of
from broker.auth.flapping import Flapping
from broker.auth.login_delays import FREE_OF_NETWORK, FREE_OF_USER, LoginDelays
from broker.wire.packets import Connect

OCTETS = st.integers(0, 3)


def of(*found: Ban) -> Bans:
    held = Bans()
    for one in found:
        held.apply(one, one.key)
    return held


@st.composite
def networks(draw: Any) -> str:
    """A few of those that lie close together, of both versions."""
    if draw(st.booleans()):
        return f"10.0.{draw(OCTETS)}.{draw(OCTETS)}/{draw(st.sampled_from([8, 22, 23, 24, 30, 31, 32]))}"
    return f"2001:db8::{draw(OCTETS):x}:{draw(OCTETS):x}/{draw(st.sampled_from([32, 96, 112, 126, 128]))}"


@settings(max_examples=300)
@given(st.lists(networks(), max_size=6), st.lists(st.integers(0, 5), max_size=3), OCTETS, OCTETS, st.booleans())
def test_an_address_is_banned_that_lies_in_a_network(
    names: list[str], ended: list[int], high: int, low: int, is_4: bool
) -> None:
    held = of(*(ban_of("address", name, "", None) for name in names))
    gone = {str(ipaddress.ip_network(names[index], strict=False)) for index in ended if index < len(names)}
    for name in gone:
        held.apply(None, f"address:{name}")
    host = f"10.0.{high}.{low}" if is_4 else f"2001:db8::{high:x}:{low:x}"
    peer = f"{host}:1234" if is_4 else f"[{host}]:1234"
    expected = any(
        ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False)
        for name in names
        if str(ipaddress.ip_network(name, strict=False)) not in gone
    )
    assert (held.find("c", "u", peer) is not None) == expected
    if is_4:
        assert (held.find("c", None, f"[::ffff:{host}]:1234") is not None) == expected


def test_a_name_is_banned_as_it_is_and_a_client_is_no_user() -> None:
    held = of(ban_of("client", "a", "", None), ban_of("user", "b", "", None))
    assert held.find("a", None, None) is not None
    assert held.find("b", None, None) is None
    assert held.find("c", "b", None) is not None
    assert held.find("c", "a", "/run/x.sock") is None
    assert [one.key for one in held] == ["client:a", "user:b"]


def test_a_ban_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.time()
    held = of(ban_of("client", "a", "", 10), ban_of("address", "10.0.0.0/8", "", 20))
    for later_s, left in ((9, 2), (11, 1), (21, 0)):
        monkeypatch.setattr(bans.time, "time", lambda later_s=later_s: now_s + later_s)
        assert len(list(held)) == left
        assert (held.find("a", None, None) is not None) == (later_s < 10)
        assert (held.find("x", None, "10.1.2.3:9") is not None) == (later_s < 20)


def test_bans_that_have_ended_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Bans()
    monkeypatch.setattr(bans, "TIDIED_FROM", 100)
    for number in range(10_000):
        ban = Ban(kind="client", name=str(number), since_s=0.0, until_s=1.0)
        held.apply(ban, ban.key)
    assert len(held._bans) <= 1000


@pytest.mark.parametrize("name", ["10.0.0.0/33", "host", "", "1.2.3", "::1/129"])
def test_what_is_no_address_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        ban_of("address", name, "", None)


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("192.0.2.7:1", "192.0.2.7"),
        ("[2001:db8:1:2:3::4]:1", "2001:db8:1:2::/64"),
        ("[::ffff:192.0.2.7]:1", "192.0.2.7"),
        ("[fe80::1%eth0]:1", "fe80::/64"),
        ("/run/mqtt.sock", ""),
        (None, ""),
    ],
)
def test_who_counts_as_one_subscriber(peer: str | None, expected: str) -> None:
    assert addresses.subscriber_of(peer) == expected


def test_one_user_that_fails_waits_longer_each_time_and_makes_nobody_else_wait() -> None:
    delays = LoginDelays(60)
    waits = []
    for number in range(12):
        begins = delays.failed("net", "ann", 100.0)
        assert begins == (number + 1 == FREE_OF_USER)
        waits.append(delays.of_user("net", "ann", 100.0))
    assert waits == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert delays.of_user("net", "ann", 159.0) == 1
    assert delays.of_user("net", "ann", 160.0) == 0
    assert delays.of_user("net", "bob", 100.0) == delays.of_user("other", "ann", 100.0) == 0
    assert delays.of_network("net", 100.0) == 0
    delays.succeeded("net", "ann")
    assert delays.of_user("net", "ann", 100.0) == 0


def test_an_address_that_tries_user_after_user_waits() -> None:
    delays = LoginDelays(60)
    begun = [delays.failed("net", f"u{number}", 5.0) for number in range(FREE_OF_NETWORK + 2)]
    assert begun.index(True) == FREE_OF_NETWORK - 1
    assert begun.count(True) == 1
    assert delays.of_network("net", 5.0) == 4
    assert delays.of_network("other", 5.0) == 0
    assert delays.of_network("net", 5.0 + login_delays.FORGOTTEN_S) == 0


def test_delays_take_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_delays, "ENTRIES_MAX", 50)
    delays = LoginDelays(60)
    for number in range(1000):
        delays.failed(f"10.0.0.{number}", "ann", 1.0)
    assert len(delays) <= 51


def connect(name: bytes) -> Connect:
    return Connect(5, name)


def test_a_client_that_flaps_waits_a_minute_and_then_two(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(flapping.time, "monotonic", lambda: now[0])
    guard = Flapping(3)
    assert [guard.admit(connect(b"a"), None) is None for _ in range(5)] == [True, True, True, False, False]
    assert guard.admit(connect(b"b"), None) is None
    assert all(guard.admit(connect(b""), None) is None for _ in range(10))
    now[0] += 59.9
    assert guard.admit(connect(b"a"), None) is not None
    now[0] += 0.2
    assert [guard.admit(connect(b"a"), None) is None for _ in range(4)] == [True, True, True, False]
    now[0] += 119.0
    assert guard.admit(connect(b"a"), None) is not None
    now[0] += 2.0
    assert guard.admit(connect(b"a"), None) is None
    now[0] += flapping.FORGOTTEN_S
    assert [guard.admit(connect(b"a"), None) is None for _ in range(4)] == [True, True, True, False]
    now[0] += 61.0
    assert guard.admit(connect(b"a"), None) is None


def test_a_client_that_connects_now_and_then_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(flapping.time, "monotonic", lambda: now[0])
    guard = Flapping(3)
    for _ in range(1000):
        now[0] += 21.0
        assert guard.admit(connect(b"a"), None) is None


def test_who_connects_from_elsewhere_makes_no_client_wait() -> None:
    guard = Flapping(3)
    for number in range(100):  # nobody has proved to be this client
        guard.admit(connect(b"a"), f"192.0.2.7:{number}")
        guard.admit(connect(b"a"), f"[2001:db8::{number:x}]:1")
    assert guard.admit(connect(b"a"), "192.0.2.7:1") is not None
    assert guard.admit(connect(b"a"), "[2001:db8::1]:1") is not None
    assert guard.admit(connect(b"a"), "192.0.2.8:1") is None
    assert guard.admit(connect(b"a"), None) is None


def test_long_names_of_clients_that_were_not_let_in_are_not_kept() -> None:
    guard, delays = Flapping(3), LoginDelays(60)
    tracemalloc.start()
    try:
        for number in range(200):
            name = f"{number:060000}"
            guard.admit(connect(name.encode()), "192.0.2.7:1")
            delays.failed("192.0.2.7", name, 0.0)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(delays) == 201
    assert held < 1_000_000  # and not 24 MB


def test_clients_that_are_looked_at_take_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flapping, "CLIENTS_MAX", 50)
    guard = Flapping(3)
    for number in range(1000):
        guard.admit(connect(b"%d" % number), None)
    assert len(guard._clients) <= 51
