"""The client's end of a WebSocket, without a socket: wsproto is the server."""

from __future__ import annotations

import collections
import random

import pytest
import wsproto
from hypothesis import given
from hypothesis import strategies as st
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

from broker.cli.mqtt_errors import WebSocketError
from broker.cli.websocket_client import WebSocketClient


def opened(path: str = "/mqtt") -> tuple[WebSocketClient, wsproto.WSConnection, bytes]:
    """A client, a server that has its request, and the server's answer."""
    client = WebSocketClient("broker.example:8083", path)
    server = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
    server.receive_data(client.take())
    (asked,) = server.events()
    assert isinstance(asked, Request)
    assert (asked.host, asked.target, asked.subprotocols) == ("broker.example:8083", path, ["mqtt"])
    return client, server, server.send(AcceptConnection(subprotocol="mqtt"))


@given(
    st.lists(st.binary(max_size=300) | st.sampled_from([b"x" * 126, b"y" * 70_000]), max_size=6),
    st.randoms(use_true_random=False),
)
def test_payloads_come_whole_however_they_are_cut(messages: list[bytes], draw: random.Random) -> None:
    client, server, sent = opened()
    pings = 0
    for message in messages:
        at = draw.randint(0, len(message))
        sent += server.send(BytesMessage(message[:at], message_finished=False))
        if draw.random() < 0.5:
            sent += server.send(Ping(b"p"))
            pings += 1
        sent += server.send(BytesMessage(message[at:]))
    received = b""
    while sent:
        size = draw.choice([1, 2, 3, 100, 5000, 100_000])
        received += client.receive(sent[:size])
        sent = sent[size:]
    assert client.opened
    assert received == b"".join(messages)
    server.receive_data(client.take())
    assert list(server.events()) == [Pong(b"p")] * pings


@given(st.lists(st.binary(max_size=300) | st.sampled_from([b"x" * 125, b"x" * 126, b"y" * 65_535, b"y" * 65_536])))
def test_what_is_sent_is_read_by_another_ones_server(messages: list[bytes]) -> None:
    client, server, answer = opened()
    client.receive(answer)
    for message in messages:
        client.send(message)
    server.receive_data(client.take())
    assert b"".join(bytes(event.data) for event in server.events()) == b"".join(messages)


def test_both_ends_can_close_it() -> None:
    client, server, answer = opened()
    assert client.receive(answer + server.send(BytesMessage(b"last")) + server.send(CloseConnection(1001))) == b"last"
    assert client.ended
    client.send(b"too late")
    server.receive_data(client.take())
    assert list(server.events()) == [CloseConnection(1001, "")]
    client, server, answer = opened()
    client.receive(answer)
    client.finish()
    server.receive_data(client.take())
    assert list(server.events()) == [CloseConnection(1000, "")]


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_taken_or_refused(data: bytes, is_open: bool) -> None:
    client, _, answer = opened()
    if is_open:
        client.receive(answer)
    try:
        for byte in data:
            client.receive(bytes((byte,)))
    except WebSocketError:
        pass


WRONG = {
    "masked": b"\x82\x81abcd\0",
    "reserved": b"\xc2\x00",
    "opcode": b"\x83\x00",
    "long ping": b"\x89\x7e\x00\x7e",
    "fragmented ping": b"\x09\x00",
}


@pytest.mark.parametrize("frame", WRONG.values(), ids=WRONG.keys())
def test_a_frame_that_may_not_be_ends_it_and_the_server_is_told(frame: bytes) -> None:
    client, server, answer = opened()
    client.receive(answer)
    with pytest.raises(WebSocketError, match="broke the protocol of WebSocket"):
        client.receive(frame)
    server.receive_data(client.take())
    assert list(server.events()) == [CloseConnection(1002, "")]


def test_a_text_frame_ends_it() -> None:
    client, server, answer = opened()
    with pytest.raises(WebSocketError, match="a text frame"):
        client.receive(answer + server.send(TextMessage("hello")))


@pytest.mark.parametrize(
    ("status", "fields", "body", "words", "for_now"),
    [
        (404, [], b"", "at /mqtt it answers 404", False),
        (400, [(b"content-type", b"text/plain; charset=utf-8")], b"no\x1b[2J room.\nmore", "400: no?[2J room", False),
        (400, [(b"content-type", b"text/html")], b"<h1>no</h1>", "at /mqtt it answers 400", False),
        (301, [(b"location", b"https://else.example/")], b"", "301, go to https://else.example/", False),
        (503, [], b"", "at /mqtt it answers 503", True),
        (429, [], b"", "429", True),
    ],
)
def test_what_came_in_place_of_101_is_shown(
    status: int, fields: list[tuple[bytes, bytes]], body: bytes, words: str, for_now: bool
) -> None:
    client = WebSocketClient("h", "/mqtt")
    server = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
    server.receive_data(client.take())
    list(server.events())
    answer = server.send(
        RejectConnection(
            status_code=status, headers=[*fields, (b"content-length", str(len(body)).encode())], has_body=True
        )
    )
    answer += server.send(RejectData(body))
    with pytest.raises(WebSocketError) as caught:
        collections.deque((client.receive(bytes((byte,))) for byte in answer), maxlen=0)
    assert str(caught.value).endswith(words), caught.value
    assert caught.value.for_now == for_now


@pytest.mark.parametrize(
    ("found", "put", "words"),
    [
        (b"Accept: ", b"Accept: x", "is not one to our request"),
        (b": mqtt", b": chat", "speaks chat there, not mqtt"),
        (
            b"\r\n\r\n",
            b"\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
            "an extension that nobody has offered",
        ),
        (b"HTTP/1.1 101", b"ICY 101", "speaks no HTTP"),
        (b"HTTP", b"\x15\x03\x01", "speaks TLS: wss://"),
    ],
)
def test_an_answer_that_does_not_fit_is_none(found: bytes, put: bytes, words: str) -> None:
    client, _, answer = opened()
    assert found in answer
    with pytest.raises(WebSocketError, match=words):
        client.receive(answer.replace(found, put))
    assert not client.opened
