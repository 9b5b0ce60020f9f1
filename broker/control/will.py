"""The will of a session, until it is published or cancelled."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.auth.principal import IN_PROCESS, Principal
from broker.logs import get
from broker.wire.properties import encode_message_block
from broker.wire.rendering import text_of
from router.core.message import message as make_message

if TYPE_CHECKING:
    from broker.auth.acl import WillAcl
    from broker.reactor.mount_point import MountPoint
    from broker.wire.packets import Connect, Will
    from router.core.message import Message

log = get("handshake")


def mounted_will(will: Will, mount_point: MountPoint) -> Will:
    """Return a client's will with the broker's names. Raises ClientError if one is too long."""
    properties = will.properties
    response_topic = properties.get("response_topic")
    if response_topic is not None:
        properties = {**properties, "response_topic": mount_point.mounted(response_topic.encode()).decode()}
    return replace(will, topic=mount_point.mounted(will.topic), properties=properties)


def without_request(connect: Connect, requests: Container[bytes]) -> Connect:
    """Return a CONNECT without its will, if that is to a topic name of the broker's own requests.

    It would not be executed, and what a request holds, a token or a password, would be a message like any other.
    """
    will = connect.will
    if will is None or will.topic not in requests:
        return connect
    log.info("will_refused", client=text_of(connect.client_identifier), topic=text_of(will.topic))
    return replace(connect, will=None)


class PendingWill:
    """A session's will message, until it is published or cancelled (3.1.2.5).

    Args:
        acl: is asked when it is published.
        principal: whose will it is.
        topic, payload, qos, retain: of the message.
        properties: of it, encoded, without their length.
        delay_interval_s: will delay interval.
        expiry_offset: where in properties the four bytes of Message Expiry Interval lie, or -1.
        expiry_interval_s: its value, or -1.
    """

    __slots__ = (
        "acl",
        "delay_interval_s",
        "expiry_interval_s",
        "expiry_offset",
        "payload",
        "principal",
        "properties",
        "qos",
        "retain",
        "topic",
    )

    def __init__(
        self,
        acl: WillAcl,
        principal: Principal,
        topic: bytes,
        payload: bytes,
        properties: bytes,
        qos: int,
        retain: bool,
        delay_interval_s: int,
        expiry_offset: int,
        expiry_interval_s: int,
    ) -> None:
        self.acl = acl
        self.principal = principal
        self.topic = topic
        self.payload = payload
        self.properties = properties
        self.qos = qos
        self.retain = retain
        self.delay_interval_s = delay_interval_s
        self.expiry_offset = expiry_offset
        self.expiry_interval_s = expiry_interval_s

    @classmethod
    def of(cls, will: Will, acl: WillAcl, principal: Principal) -> PendingWill:
        """Return the will of a CONNECT."""
        properties, expiry_offset = encode_message_block(will.properties) if will.properties else (b"", -1)
        return cls(
            acl,
            principal,
            will.topic,
            will.payload,
            properties,
            will.qos,
            will.retain,
            will.delay_interval_s,
            expiry_offset,
            will.properties.get("message_expiry_interval", -1),
        )

    @classmethod
    def recovered(
        cls,
        acl: WillAcl,
        client_identifier: bytes,
        topic: bytes,
        payload: bytes,
        properties: bytes,
        qos: int,
        retain: bool,
        delay_interval_s: int,
        expiry_offset: int,
        expiry_interval_s: int,
        identity: bytes,
        anonymous: bool,
    ) -> PendingWill:
        """Return the will that the log keeps so."""
        principal = Principal(None if anonymous else identity.decode(), client_identifier, None, IN_PROCESS)
        return cls(
            acl, principal, topic, payload, properties, qos, retain, delay_interval_s, expiry_offset, expiry_interval_s
        )

    def fields(self) -> tuple[bytes, bytes, bytes, int, bool, int, int, int, bytes, bool]:
        """Return what the log keeps of it, in the order of the record's fields behind the client identifier."""
        user_name = self.principal.user_name
        return (
            self.topic,
            self.payload,
            self.properties,
            self.qos,
            self.retain,
            self.delay_interval_s,
            self.expiry_offset,
            self.expiry_interval_s,
            (user_name or "").encode(),
            user_name is None,
        )

    def message(self, now_ms: int) -> Message | None:
        """Return the will as an application message that is published now; its expiry counts from here.

        None if the ACL does not let its client publish there now.
        """
        if not self.acl.may_leave_will(self.principal, self.topic, self.qos, self.retain):
            return None
        expires_ms = 0 if self.expiry_interval_s < 0 else now_ms + self.expiry_interval_s * 1000
        return make_message(
            self.topic, self.payload, self.qos, self.retain, self.properties, self.expiry_offset, now_ms, expires_ms
        )
