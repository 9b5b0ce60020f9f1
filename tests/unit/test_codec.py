"""The compiled codec: what it writes it reads back, and any bytes are a message or their sender's fault."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire.codec import decode_message, encode_message
from broker.wire.packets import Publish, decode, encode, next_frame
from broker.wire.reasons import ClientError
from router.core.message import message

TOPICS = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=30).map(str.encode)


@given(
    TOPICS,
    st.binary(max_size=400),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.integers(1, 65_535),
    st.sampled_from((3, 4, 5)),
)
def test_a_message_comes_back_as_it_went(
    topic: bytes, payload: bytes, qos: int, retain: bool, dup: bool, identifier: int, version: int
) -> None:
    frame = encode_message(message(topic, payload, qos, retain), version, identifier, qos, retain, dup and qos > 0)
    found, found_identifier, alias = decode_message(frame, version)
    assert (found.topic_name, found.body, found.quality_of_service, found.retained) == (topic, payload, qos, retain)
    assert found_identifier == (identifier if qos else 0)
    assert alias == 0
    # and the client's codec reads the same
    packet = decode(*next_frame(bytearray(frame)) or (0, b""), version)
    assert packet == Publish(topic, payload, qos, retain, dup and qos > 0, identifier if qos else 0)
    assert encode(packet, version) == frame


@given(st.integers(0, 15), st.binary(max_size=60), st.sampled_from((3, 4, 5)))
def test_any_bytes_are_a_message_or_their_senders_fault(flags: int, body: bytes, version: int) -> None:
    try:
        found, _, _ = decode_message(bytes((0x30 | flags, len(body))) + body, version)
    except ClientError:
        return
    assert found.quality_of_service == (flags >> 1) & 3


@pytest.mark.parametrize("version", [4, 5])
def test_qos_3_is_malformed(version: int) -> None:
    # Proves: [MQTT-3.3.1-4]
    with pytest.raises(ClientError):
        decode_message(b"\x36\x06\x00\x01t\x00\x01\x00", version)
