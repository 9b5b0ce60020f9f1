"""aiomqtt: asyncio over paho."""

from __future__ import annotations

import asyncio
from typing import Any

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.clients.drivers.asynchronous import AsynchronousDriver
from tests.clients.drivers.base import ANSWER_TIMEOUT_S, Message, Options
from tests.clients.drivers.paho_driver import from_paho, to_options, to_paho


class AiomqttDriver(AsynchronousDriver):
    name = "aiomqtt"
    knows_session_present = False
    client: aiomqtt.Client | None = None

    def connect(self, client_identifier: str, *, durable: bool = False, will: Message | None = None) -> bool:
        self.run(self._connect(client_identifier, durable, will))
        return False

    async def _connect(self, client_identifier: str, durable: bool, will: Message | None) -> None:
        arguments: dict[str, Any] = {"clean_session": not durable}
        if self.version == 5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 300 if durable else 0
            arguments = {"clean_start": not durable, "properties": properties}
        if will is not None:
            arguments["will"] = aiomqtt.Will(will.topic, will.payload, will.qos, will.retain)
        self.client = aiomqtt.Client(
            "127.0.0.1",
            self.port,
            identifier=client_identifier,
            timeout=ANSWER_TIMEOUT_S,
            protocol=aiomqtt.ProtocolVersion.V5 if self.version == 5 else aiomqtt.ProtocolVersion.V311,
            transport="websockets" if self.over == "ws" else "tcp",
            **arguments,
        )
        await self.client.__aenter__()
        self.reader = asyncio.create_task(self._read(self.client))

    async def _read(self, client: aiomqtt.Client) -> None:
        try:
            async for message in client.messages:
                self.inbox.put(
                    Message(
                        str(message.topic),
                        bytes(message.payload),
                        message.qos,
                        message.retain,
                        from_paho(message.properties),
                    )
                )
        except aiomqtt.MqttError:
            pass

    def subscribe(self, topic_filter: str, qos: int = 0, options: Options | None = None) -> None:
        arguments = {"qos": qos} if options is None else {"options": to_options(qos, options)}
        (granted,) = self.run(self.client.subscribe(topic_filter, **arguments))
        assert getattr(granted, "value", granted) == qos, granted

    def unsubscribe(self, topic_filter: str) -> None:
        self.run(self.client.unsubscribe(topic_filter))

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: dict[str, Any] | None = None
    ) -> None:
        converted = to_paho(properties, PacketTypes.PUBLISH) if properties else None
        self.run(self.client.publish(topic, payload, qos, retain, converted))

    def disconnect(self) -> None:
        self.run(self.close_client())

    async def close_client(self) -> None:
        if self.client is None:
            return
        client, self.client = self.client, None
        self.reader.cancel()
        try:
            await client.__aexit__(None, None, None)
        except aiomqtt.MqttError:
            pass


DRIVER = AiomqttDriver
