"""A will's properties are a PUBLISH's but for its delay, and what is wrong with those is wrong with these."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.auth.acl import AllowAll
from broker.auth.authenticator import Anonymous
from broker.config.loader import Config
from broker.control.controller import Controller
from broker.reactor.pump import Pump
from broker.reactor.turn import Hub
from broker.wire.packets import Connect, decode_connect, encode
from broker.wire.properties import PacketType, encode_properties, put_binary
from broker.wire.reasons import ClientError, CloseReason, Reason
from broker.worker.terms import ledger, terms
from router.core.varint import encode_varint
from router.router import Router
from tests.tools.fuzz.corpus import odd_block
from tests.tools.fuzz.mutate import mutated

CONFIG = Config()


def judged_as_will(block: bytes) -> str | None:
    """Return what a CONNECT with these properties of its will is refused for, None if it is not."""
    body = b"\0\x04MQTT\x05\x06\0\0\0" + put_binary(b"c") + block + put_binary(b"w") + put_binary(b"")
    try:
        decode_connect(body)
    except ClientError as error:
        return error.reason.name
    return None


def judged_as_publish(block: bytes) -> str | None:
    """Return what a PUBLISH with these properties is refused for, None if it is not."""
    router = Router(ledger(CONFIG))
    hub: Any = Hub(router, Controller(CONFIG, router, Anonymous(), AllowAll()), Pump(router), now_ms=0, **terms(CONFIG))
    connection = hub.connect()
    connection.feed_bytes(encode(Connect(5, b"c"), 5))
    hub.run_turn()
    body = put_binary(b"w") + block
    connection.feed_bytes(b"\x30" + encode_varint(len(body)) + body)
    hub.run_turn()
    if connection.is_open:
        return None
    reason: CloseReason = connection.close_reason
    return reason.name


@pytest.mark.parametrize("topic", ["", "a/+", "#"])
def test_a_will_whose_response_topic_is_no_topic_name_is_a_protocol_error(topic: str) -> None:
    # Proves: [MQTT-3.3.2-14]
    block = encode_properties({"response_topic": topic})
    assert judged_as_will(block) == judged_as_publish(block) == Reason.PROTOCOL_ERROR.name


def test_what_is_refused_in_a_publish_is_refused_in_a_will() -> None:
    draw = random.Random(1)
    refused = 0
    for _ in range(4000):
        block = odd_block(draw, PacketType.WILL)
        if draw.random() < 0.2:
            whole = mutated(draw, block[1:], block)
            block = encode_varint(len(whole)) + whole
        as_will, as_publish = judged_as_will(block), judged_as_publish(block)
        if b"\x18" in block or b"\x23" in block or b"\x0b" in block:
            continue  # Will Delay Interval; Topic Alias, Subscription Identifier
        assert (as_will is None) == (as_publish is None), (block.hex(" "), as_will, as_publish)
        refused += as_will is not None
    assert refused > 200
