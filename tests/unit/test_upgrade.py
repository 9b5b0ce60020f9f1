"""The request that opens a WebSocket: what is answered, what is refused and how that reads (RFC 6455, 4.2)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.transport.facts import Facts
from broker.transport.proxies import Proxies
from broker.transport.upgrade import Answered, Upgrade, Upgrades
from broker.wire.reasons import CloseReason
from tests.support.websockets import ACCEPT, cut, request

PEER = "10.0.0.1:5000"
PROXIES = Proxies(("10.0.0.0/8",), is_unix=False)


def upgrades(*, origins: tuple[str, ...] = (), required: bool = True) -> Upgrades:
    return Upgrades(("/mqtt", "/ws", "/"), origins, required, PROXIES)


def ask(data: bytes, *, peer: str | None = PEER, facts: Facts | None = None, **how: Any) -> Answered:
    answered = Upgrade(upgrades(**how), facts or Facts(listener=0), peer).receive(data)
    assert answered is not None
    return answered


def status(answered: Answered) -> int:
    """Return the status of an answer, which has to be a whole one."""
    head, _, body = answered.data.partition(b"\r\n\r\n")
    version, code, _ = head.split(b"\r\n")[0].split(b" ", 2)
    assert version == b"HTTP/1.1"
    if code == b"101":
        assert answered.error is None
        assert body == b""
        return 101
    assert answered.error is not None
    assert answered.error.close == CloseReason.WEBSOCKET_REFUSED
    assert f"{int(code)}: " in answered.error.detail
    assert answered.error.detail.isprintable()
    fields = fields_of(answered)
    assert fields["content-type"] == "text/plain; charset=utf-8"
    assert int(fields["content-length"]) in (len(body), len(answered.error.detail) - 5 + 2)
    assert "close" in fields["connection"]
    return int(code)


def fields_of(answered: Answered) -> dict[str, str]:
    lines = answered.data.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


def test_the_example_of_the_standard() -> None:
    answered = ask(request(sec_websocket_protocol="mqtt, chat"))
    assert answered.data == (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + ACCEPT + b"\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ("mqtt", "mqtt"),
        ("mqttv3.1", "mqttv3.1"),
        ("mqttv3.1.1", "mqttv3.1.1"),
        ("mqttv5", "mqttv5"),
        ("mqtt-v3", "mqtt-v3"),
        ("mqtt-v3.1.1", "mqtt-v3.1.1"),
        ("mqtt-v5", "mqtt-v5"),
        ("chat,mqttv3.1,mqtt", "mqttv3.1"),
        ("chat ,\tmqtt , mqttv5", "mqtt"),
        (",mqtt,", "mqtt"),
    ],
)
def test_the_first_subprotocol_that_is_known_is_echoed(offered: str, chosen: str) -> None:
    # Proves: [MQTT-6.0.0-4]
    answered = ask(request(sec_websocket_protocol=offered))
    assert status(answered) == 101
    assert fields_of(answered)["sec-websocket-protocol"] == chosen


def test_subprotocols_may_come_in_several_headers() -> None:
    data = request(sec_websocket_protocol="chat").replace(
        b"\r\n\r\n", b"\r\nSec-WebSocket-Protocol: soap\r\nSec-WebSocket-Protocol: mqttv5, mqtt\r\n\r\n"
    )
    assert fields_of(ask(data))["sec-websocket-protocol"] == "mqttv5"


@pytest.mark.parametrize("offered", [None, "", "chat", "MQTT", "mqtt5"])
def test_who_offers_no_subprotocol_of_mqtt_is_refused(offered: str | None) -> None:
    # Proves: [MQTT-6.0.0-3]
    assert status(ask(request(sec_websocket_protocol=offered))) == 400


def test_none_need_be_offered_if_the_setting_says_so() -> None:
    answered = ask(request(sec_websocket_protocol=None), required=False)
    assert status(answered) == 101
    assert "sec-websocket-protocol" not in fields_of(answered)
    assert status(ask(request(sec_websocket_protocol="chat"), required=False)) == 400


@pytest.mark.parametrize(
    "extensions", ["permessage-deflate", "permessage-deflate; client_max_window_bits", "x-webkit-deflate-frame"]
)
def test_compression_is_declined(extensions: str) -> None:
    answered = ask(request(sec_websocket_extensions=extensions))
    assert status(answered) == 101
    assert "sec-websocket-extensions" not in fields_of(answered)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/mqtt", 101),
        ("/ws", 101),
        ("/", 101),
        ("/mqtt?token=abc", 101),
        ("http://broker.example.org/ws?x", 101),
        ("/mqtt/", 404),
        ("/MQTT", 404),
        ("/other", 404),
        ("*", 404),
        ("//mqtt", 404),
        ("http://[", 101),
        ("https://x/other", 404),
        ("ftp://x/mqtt", 404),
        ("mqtt", 404),
    ],
)
def test_a_websocket_is_opened_at_certain_paths(path: str, expected: int) -> None:
    answered = ask(request(path))
    assert status(answered) == expected
    if expected == 404:
        assert answered.data.endswith(b"a WebSocket is opened at /mqtt, /ws, /.\n")


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, 101),
        ("https://app.example.org", 101),
        ("HTTPS://APP.example.org", 101),
        ("https://evil.example.org", 403),
        ("https://app.example.org:8443", 403),
        ("null", 403),
    ],
)
def test_only_web_pages_of_allowed_origins_may_connect(origin: str | None, expected: int) -> None:
    data = request(origin=origin)
    assert status(ask(data, origins=("https://app.example.org/",))) == expected
    assert status(ask(data)) == 101


def test_what_asks_for_no_websocket_is_told_how() -> None:
    for data in (b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", request(upgrade="h2c")):
        answered = ask(data)
        assert status(answered) == 426
        fields = fields_of(answered)
        assert (fields["upgrade"], fields["connection"]) == ("websocket", "Upgrade, close")
        assert fields["sec-websocket-version"] == "13"


@pytest.mark.parametrize("version", [None, "8", "0", "13, 8", ""])
def test_another_version_of_websocket_is_told_which(version: str | None) -> None:
    answered = ask(request(sec_websocket_version=version))
    assert status(answered) == 426
    assert fields_of(answered)["sec-websocket-version"] == "13"


@pytest.mark.parametrize("method", [b"POST", b"PUT", b"DELETE", b"OPTIONS", b"HEAD", b"BREW"])
def test_another_method_is_refused(method: bytes) -> None:
    answered = ask(request().replace(b"GET", method, 1))
    assert status(answered) == 405
    assert fields_of(answered)["allow"] == "GET"
    assert answered.data.endswith(b"\r\n\r\n") == (method == b"HEAD")


@pytest.mark.parametrize(
    "data",
    [
        request(sec_websocket_key=None),
        request(sec_websocket_key=""),
        request(sec_websocket_key="dGhlIHNhbXBsZQ=="),
        request(sec_websocket_key="not base64!"),
        request(connection="keep-alive"),
        request(connection=None),
        request().replace(b"\r\n\r\n", b"\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"),
        request(host=None),
        request(content_length="5"),
        request(transfer_encoding="chunked"),
        request().replace(b"HTTP/1.1", b"HTTP/1.0"),
        request().replace(b"HTTP/1.1", b"HTTP/2.0"),
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /mqtt HTTP/1.1\r\nhost x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\0\0\0",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    ],
)
def test_a_request_that_is_wrong_is_refused_in_words(data: bytes) -> None:
    assert status(ask(data)) in (400, 404)


@pytest.mark.parametrize("connection", ["Upgrade", "keep-alive, Upgrade", "upgrade,keep-alive", "UPGRADE"])
@pytest.mark.parametrize("upgrade", ["websocket", "WebSocket", "h2c, websocket"])
def test_tokens_are_found_in_lists_whatever_their_case(connection: str, upgrade: str) -> None:
    assert status(ask(request(connection=connection, upgrade=upgrade))) == 101


def test_who_speaks_something_else_is_named() -> None:
    tls = ask(b"\x16\x03\x01\x02\0")
    assert tls.error is not None
    assert tls.error.close == CloseReason.TLS_ON_PLAIN_PORT
    assert tls.data == b"\x15\x03\x01\x00\x02\x02\x28"
    mqtt = ask(b"\x10\x0c\0\x04MQTT")
    assert mqtt.error is not None
    assert (mqtt.error.close, mqtt.error.detail) == (CloseReason.WEBSOCKET_REFUSED, "a CONNECT without WebSocket")


@pytest.mark.parametrize("size", [1, 100, 5000])
def test_a_request_has_at_most_8_kib_however_it_comes(size: int) -> None:
    def outcome(data: bytes) -> int | None:
        upgrade = Upgrade(upgrades(), Facts(listener=0), PEER)
        for at in range(0, len(data), size):
            answered = upgrade.receive(data[at : at + size])
            if answered is not None:
                return status(answered)
        return None

    fits = request(x="a" * (8192 - len(request(x="a")) + 1))
    assert len(fits) == 8192
    assert outcome(fits) == 101
    assert outcome(request(x="a" * (8192 - len(request(x="a")) + 2))) == 431
    assert outcome(b"GET /mqtt HTTP/1.1\r\n" + b"x: y\r\n" * 3000) == 431
    assert outcome(b"x" * 9000) == 431


@given(st.lists(st.integers(0, 250), max_size=10), st.binary(max_size=20))
def test_a_request_may_come_in_pieces_and_frames_behind_it(at: list[int], behind: bytes) -> None:
    data = request() + behind
    upgrade = Upgrade(upgrades(), Facts(listener=0), PEER)
    taken = 0
    for piece in cut(data, at):
        taken += len(piece)
        answered = upgrade.receive(piece)
        if answered is not None:
            assert status(answered) == 101
            assert taken - answered.behind == len(request())
            return
    raise AssertionError("no answer")


# X-Forwarded-For -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "known", "address", "proxy"),
    [
        (PEER, None, "203.0.113.5:0", PEER),
        ("198.51.100.1:5", None, None, None),  # no proxy of ours: its word does not count
        (None, None, None, None),
        # A proxy with the PROXY protocol in front: the peer of HTTP is who that one names.
        (PEER, "198.51.100.1:5", "198.51.100.1:5", None),
        (PEER, "10.0.0.7:5", "203.0.113.5:0", "10.0.0.7:5"),
    ],
)
def test_x_forwarded_for_counts_from_a_trusted_proxy(
    peer: str | None, known: str | None, address: str | None, proxy: str | None
) -> None:
    facts = Facts(listener=0, address=known)
    ask(request(x_forwarded_for="1.1.1.1, 203.0.113.5"), peer=peer, facts=facts)
    assert (facts.address, facts.proxy) == (address, proxy)


def test_without_x_forwarded_for_the_peer_is_the_client() -> None:
    facts = Facts(listener=0)
    ask(request(), facts=facts)
    assert facts == Facts(listener=0)
