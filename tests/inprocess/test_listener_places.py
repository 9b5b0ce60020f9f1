"""How many clients a listener has at most, whatever they have elsewhere."""

from __future__ import annotations

import trio

from broker.config.listener import Listener
from broker.config.loader import Config, Shutdown
from broker.wire.packets import Connect
from broker.wire.reasons import Reason
from broker.worker.worker import Worker, open_broker
from tests.support.embedded import TIMEOUT_S, Device

ADDRESS = "tcp://127.0.0.1:0"


async def came(broker: Worker, listener: int, name: bytes) -> tuple[Device, Reason]:
    """Come by a listener; returns the client, and what its CONNACK says."""
    client = Device(await trio.open_tcp_stream("127.0.0.1", broker.addresses[listener].port), 5)
    await client.send(Connect(5, name))
    return client, (await client.receive()).reason


async def test_who_takes_over_a_connection_of_another_listener_needs_a_place_at_this_one() -> None:
    config = Config(
        listen=(),
        shutdown=Shutdown(drain_s=0.1),
        listener=(Listener(address=ADDRESS), Listener(address=ADDRESS, connections_max=1)),
    )
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(config) as broker:
            elsewhere = [await came(broker, 0, name) for name in (b"one", b"two")]
            first, reason = await came(broker, 1, b"one")
            assert reason == Reason.SUCCESS
            refused, reason = await came(broker, 1, b"two")
            assert reason == Reason.QUOTA_EXCEEDED
            again, reason = await came(broker, 1, b"one")  # in the place that it has
            assert reason == Reason.SUCCESS
            back, reason = await came(broker, 0, b"one")
            assert reason == Reason.SUCCESS
            then, reason = await came(broker, 1, b"two")
            assert reason == Reason.SUCCESS
            for client, _ in (*elsewhere, (first, 0), (refused, 0), (again, 0), (back, 0), (then, 0)):
                await client.client.cut()
