"""gmqtt: asyncio, with a codec of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import gmqtt
from gmqtt.mqtt.constants import MQTTv50, MQTTv311

from tests.clients.drivers.asynchronous import AsynchronousDriver
from tests.clients.drivers.base import Message, Options

REPEATING = ("user_property", "subscription_identifier")
BYTES = ("correlation_data",)


def _from_gmqtt(properties: dict[str, Any]) -> dict[str, Any]:
    converted = {}
    for name, values in properties.items():
        if name in ("dup", "retain"):
            continue
        if name not in REPEATING:
            (value,) = values
            converted[name] = value.encode() if name in BYTES and isinstance(value, str) else value
        else:
            converted[name] = values
    return converted


class GmqttDriver(AsynchronousDriver):
    name = "gmqtt"
    client: gmqtt.Client | None = None

    def connect(self, client_identifier: str, *, durable: bool = False, will: Message | None = None) -> bool:
        return bool(self.run(self._connect(client_identifier, durable, will)))

    async def _connect(self, client_identifier: str, durable: bool, will: Message | None) -> bool:
        arguments: dict[str, Any] = {"session_expiry_interval": 300} if durable and self.version == 5 else {}
        if will is not None:
            arguments["will_message"] = gmqtt.Message(will.topic, will.payload, will.qos, will.retain)
        self.client = gmqtt.Client(client_identifier, clean_session=not durable, **arguments)
        self.client.set_config({"reconnect_retries": 0, "reconnect_delay": 1})
        session_present = asyncio.get_running_loop().create_future()
        self.subscribed: asyncio.Queue[Any] = asyncio.Queue()
        self.client.on_connect = lambda client, flags, reason, properties: session_present.set_result(flags & 1)
        self.client.on_message = self._on_message
        self.client.on_subscribe = lambda client, mid, reasons, properties: self.subscribed.put_nowait(reasons)
        self.client.on_unsubscribe = lambda client, mid, reasons: self.subscribed.put_nowait(reasons)
        await self.client.connect("127.0.0.1", self.port, version=MQTTv50 if self.version == 5 else MQTTv311)
        return bool(await session_present)

    async def _on_message(
        self, client: gmqtt.Client, topic: str, payload: bytes, qos: int, properties: dict[str, Any]
    ) -> int:
        self.inbox.put(Message(topic, payload, qos, bool(properties["retain"]), _from_gmqtt(properties)))
        return 0

    def subscribe(self, topic_filter: str, qos: int = 0, options: Options | None = None) -> None:
        options = options or Options()
        (granted,) = self.run(
            self._ask(
                lambda client: client.subscribe(
                    gmqtt.Subscription(
                        topic_filter,
                        qos=qos,
                        no_local=options.no_local,
                        retain_as_published=options.retain_as_published,
                        retain_handling_options=options.retain_handling,
                    )
                )
            )
        )
        assert granted == qos, granted

    def unsubscribe(self, topic_filter: str) -> None:
        self.run(self._ask(lambda client: client.unsubscribe(topic_filter)))

    async def _ask(self, ask: Any) -> Any:
        ask(self.client)
        return await self.subscribed.get()

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: dict[str, Any] | None = None
    ) -> None:
        self.run(self._publish(topic, payload, qos, retain, properties or {}))

    async def _publish(self, topic: str, payload: bytes, qos: int, retain: bool, properties: dict[str, Any]) -> None:
        assert self.client is not None
        self.client.publish(gmqtt.Message(topic, payload, qos, retain, **properties))
        await self.client._persistent_storage.wait_empty()  # there is no public way to wait for the answer

    def disconnect(self) -> None:
        self.run(self.close_client())

    async def close_client(self) -> None:
        if self.client is None:
            return
        client, self.client = self.client, None
        client.stop_reconnect()
        if client.is_connected:
            await client.disconnect()


DRIVER = GmqttDriver
