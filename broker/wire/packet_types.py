"""The control packets as values: what they carry, in MQTT's own words, whatever the version.

Topic names and topic filters are UTF-8 bytes. `properties` are as `properties.decode_properties` returns them, and
empty before 5.0. Packets are not to be changed after they are made, their dicts included.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from broker.wire.properties import PacketType
from broker.wire.reasons import ConnectReturn, Reason
from router.core.receiver import encode_options

Properties: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Will:
    """The will message of a CONNECT."""

    topic: bytes  # 1..65535 bytes, no wildcards
    payload: bytes = b""  # 0..65535 bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=dict)  # those of a PUBLISH; the delay is not among them
    delay_interval_s: int = 0


@dataclass(frozen=True, slots=True)
class Connect:
    version: int  # 3, 4 or 5
    client_identifier: bytes = b""  # well-formed UTF-8, 0..65535 bytes
    clean_start: bool = True  # Clean Session before 5.0
    keep_alive_s: int = 0  # 0: none
    will: Will | None = None
    # Not in repr(): passwords and tokens, which may be a user name, too.
    user_name: str | None = field(default=None, repr=False)
    password: bytes | None = field(default=None, repr=False)
    properties: Properties = field(default_factory=dict, repr=False)
    bridge: bool = False  # the high bit of the level, by which brokers that bridge say so (3.1, 3.1.1)


@dataclass(frozen=True, slots=True)
class Connack:
    session_present: bool = False
    reason: Reason | ConnectReturn = Reason.SUCCESS  # decoded: ConnectReturn before 5.0
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Publish:
    topic: bytes  # empty only with a topic alias (5.0)
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_identifier: int = 0  # 1..65535 at QoS 1 and 2, else 0
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ack:
    type: PacketType  # PUBACK, PUBREC, PUBREL or PUBCOMP
    packet_identifier: int
    reason: Reason = Reason.SUCCESS
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic filter of a SUBSCRIBE; `options` is its byte as sent, the other fields are what it says."""

    topic_filter: bytes
    options: int = 0
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0  # 0: send retained messages; 1: if the subscription is new; 2: do not


@dataclass(frozen=True, slots=True)
class Subscribe:
    packet_identifier: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Suback:
    packet_identifier: int
    reasons: tuple[Reason, ...]
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    packet_identifier: int
    topic_filters: tuple[bytes, ...]
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unsuback:
    packet_identifier: int
    reasons: tuple[Reason, ...] = ()  # none before 5.0
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pingreq:
    pass


@dataclass(frozen=True, slots=True)
class Pingresp:
    pass


@dataclass(frozen=True, slots=True)
class Disconnect:
    reason: Reason = Reason.NORMAL_DISCONNECTION
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Auth:
    reason: Reason = Reason.SUCCESS
    properties: Properties = field(default_factory=dict, repr=False)


Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Ack
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)


def subscription(
    topic_filter: bytes,
    qos: int = 0,
    *,
    no_local: bool = False,
    retain_as_published: bool = False,
    retain_handling: int = 0,
) -> Subscription:
    """Return a Subscription whose options byte agrees with its fields."""
    options = encode_options(qos, no_local, retain_as_published, retain_handling)
    return Subscription(topic_filter, options, qos, no_local, retain_as_published, retain_handling)
