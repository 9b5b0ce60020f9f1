"""paho-mqtt: a thread per client."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.clients.drivers.base import ANSWER_TIMEOUT_S, Driver, Message, Options

PROPERTY_NAMES = {
    "user_property": "UserProperty",
    "content_type": "ContentType",
    "response_topic": "ResponseTopic",
    "correlation_data": "CorrelationData",
    "message_expiry_interval": "MessageExpiryInterval",
    "payload_format_indicator": "PayloadFormatIndicator",
    "subscription_identifier": "SubscriptionIdentifier",
}


def to_paho(properties: dict[str, Any], packet_type: int) -> Properties:
    converted = Properties(packet_type)
    for name, value in properties.items():
        setattr(converted, PROPERTY_NAMES[name], value)
    return converted


def from_paho(properties: Properties | None) -> dict[str, Any]:
    return {name: getattr(properties, theirs) for name, theirs in PROPERTY_NAMES.items() if hasattr(properties, theirs)}


def to_options(qos: int, options: Options) -> SubscribeOptions:
    return SubscribeOptions(qos, options.no_local, options.retain_as_published, options.retain_handling)


class PahoDriver(Driver):
    name = "paho"

    def connect(self, client_identifier: str, *, durable: bool = False, will: Message | None = None) -> bool:
        protocol = paho.MQTTv5 if self.version == 5 else paho.MQTTv311
        self.answers: queue.Queue[Any] = queue.Queue()
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_identifier,
            protocol=protocol,
            reconnect_on_failure=False,
            clean_session=None if self.version == 5 else not durable,
            transport="websockets" if self.over == "ws" else "tcp",
        )
        if will is not None:
            properties = to_paho(will.properties, PacketTypes.WILLMESSAGE) if self.version == 5 else None
            self.client.will_set(will.topic, will.payload, will.qos, will.retain, properties)
        self.client.on_connect = lambda client, data, flags, reason, properties: self.answers.put((flags, reason))
        self.client.on_subscribe = lambda client, data, identifier, reasons, properties: self.answers.put(reasons)
        self.client.on_unsubscribe = lambda client, data, identifier, reasons, properties: self.answers.put(reasons)
        self.client.on_message = lambda client, data, message: self.inbox.put(
            Message(message.topic, message.payload, message.qos, message.retain, from_paho(message.properties))
        )
        if self.version == 5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 300 if durable else 0
            self.client.connect("127.0.0.1", self.port, clean_start=not durable, properties=properties)
        else:
            self.client.connect("127.0.0.1", self.port)
        self.client.loop_start()
        flags, reason = self.answers.get(timeout=ANSWER_TIMEOUT_S)
        assert not reason.is_failure, reason
        return bool(flags.session_present)

    def subscribe(self, topic_filter: str, qos: int = 0, options: Options | None = None) -> None:
        if options is None:
            self.client.subscribe(topic_filter, qos)
        else:
            self.client.subscribe(topic_filter, options=to_options(qos, options))
        (reason,) = self.answers.get(timeout=ANSWER_TIMEOUT_S)
        assert reason.value == qos, reason

    def unsubscribe(self, topic_filter: str) -> None:
        self.client.unsubscribe(topic_filter)
        self.answers.get(timeout=ANSWER_TIMEOUT_S)

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: dict[str, Any] | None = None
    ) -> None:
        converted = to_paho(properties, PacketTypes.PUBLISH) if properties else None
        info = self.client.publish(topic, payload, qos, retain, converted)
        info.wait_for_publish(ANSWER_TIMEOUT_S)
        assert info.is_published()

    def publish_all(self, topic: str, payloads: Iterable[bytes], qos: int = 0) -> None:
        for info in [self.client.publish(topic, payload, qos) for payload in payloads]:
            info.wait_for_publish(ANSWER_TIMEOUT_S)
            assert info.is_published()

    def disconnect(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def close(self) -> None:
        self.disconnect()


DRIVER = PahoDriver
