"""Clients inside the process that wait, are cancelled, or end, under both drivers of the reactor."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from broker.control.presence import Disconnected
from broker.wire.packets import Ack, Suback, Subscribe, subscription
from broker.wire.properties import PacketType
from broker.wire.reasons import CloseReason
from broker.worker.worker import Worker, open_broker
from shoal import InProcessClient
from tests.support.doubles import FakeLog
from tests.support.embedded import CONFIG, TIMEOUT_S, as_guest, as_task, both_drivers, device, take


@both_drivers
async def test_a_task_that_waits_for_a_message_wakes_when_one_comes_and_its_cancellation_loses_none(
    broker: Worker,
) -> None:
    async with broker.client("one") as one, device(broker) as network, trio.open_nursery() as nursery:
        await one.subscribe("t")
        got: list[bytes] = []
        ready = trio.Event()

        async def receive() -> None:
            got.append((await anext(one)).payload)
            ready.set()

        waiting = trio.CancelScope()

        async def be_cancelled() -> None:
            with waiting:
                await anext(one)

        nursery.start_soon(be_cancelled)
        nursery.start_soon(receive)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        waiting.cancel()
        await network.publish(b"t", b"after", 1)
        await ready.wait()
        assert got == [b"after"]
        # Cancelled before it looks: the message stays.
        await network.publish(b"t", b"kept", 1)
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(one)
        assert scope.cancelled_caught
        assert [message.payload for message in await take(one)] == [b"kept"]
        with trio.CancelScope() as scope:
            scope.cancel()
            await one.publish("t", b"never")
        assert scope.cancelled_caught
        assert one.waiting == 0


@pytest.mark.parametrize("driver", [as_task, as_guest])
def test_a_publish_returns_when_its_record_is_durable(driver: Callable[..., None]) -> None:
    log = FakeLog()

    async def recorded(payload: bytes) -> None:
        while not any(record.kind == "accepted" and record.fields["payload"] == payload for record in log.records):
            await trio.lowlevel.checkpoint()

    async def run(broker: Worker) -> None:
        async with (
            broker.client("one") as one,
            device(broker, clean_start=False, properties={"session_expiry_interval": 100}) as network,
        ):
            log.sync()
            await network.send(Subscribe(1, (subscription(b"t", 1),)))
            while log.records[-1].kind != "subscribe":
                await trio.lowlevel.checkpoint()
            log.sync()
            assert isinstance(await network.receive(), Suback)
            order: list[str] = []

            async def publish(payload: str, qos: int) -> None:
                await one.publish("t", payload.encode(), qos=qos)
                order.append(payload)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish, "first", 1)
                await recorded(b"first")  # the pump runs, though nothing came from outside
                await one.publish("t", b"zero", retain=True)  # QoS 0 waits for nobody
                assert order == []
                # A cancelled wait changes nothing for the message.
                with trio.CancelScope() as scope:
                    nursery.start_soon(cancel_soon, scope)
                    await one.publish("t", b"cancelled", qos=2)
                assert scope.cancelled_caught
                assert order == []
                await recorded(b"cancelled")
                log.sync()
            assert order == ["first"]
            payloads = []
            while len(payloads) < 3:
                packet = await network.receive()
                payloads.append(packet.payload)
                if packet.qos:
                    await network.send(Ack(PacketType.PUBACK, packet.packet_identifier))
            assert sorted(payloads) == [b"cancelled", b"first", b"zero"]
            assert one._settlements == {}

            async def publish_in_vain() -> None:
                with pytest.raises(trio.ClosedResourceError, match="before the message was durable"):
                    await publish("never known", 1)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish_in_vain)
                await recorded(b"never known")
                await one.disconnect()

    log.on_append = lambda: log.sync() if log.records[-1].kind in ("principal", "detached") else None
    driver(run, log_store=log)


@both_drivers
async def test_who_is_cancelled_on_the_way_in_leaves_no_client_behind(broker: Worker) -> None:
    """At every checkpoint between the call and the block, by both ways in."""

    async def by_client(entered: Callable[[], None]) -> None:
        async with broker.client("one"):
            entered()

    async def by_connect(entered: Callable[[], None]) -> None:
        async with await broker.connect("one"):
            entered()

    for way in (by_client, by_connect):
        for checkpoints in range(10):
            inside: list[bool] = []
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(way, partial(inside.append, True))
                    for _ in range(checkpoints):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            assert broker.in_process.clients == {}
        assert inside == [True]
    async with broker.client("one"):
        pass


async def cancel_soon(scope: trio.CancelScope) -> None:
    """Cancel it once its task waits."""
    for _ in range(5):
        await trio.lowlevel.checkpoint()
    scope.cancel()


@both_drivers
async def test_after_disconnect_nothing_is_left_and_the_name_is_free(broker: Worker) -> None:
    one = await broker.connect("one")
    await one.subscribe("t/#")
    with pytest.raises(ValueError, match="in-process client of this name is connected"):
        await broker.connect("one")
    await one.publish("t/1", b"not taken")
    await one.disconnect()
    await one.disconnect()
    assert [message async for message in one] == []
    assert (one.waiting, one.dropped) == (0, 1)
    for forbidden in (one.publish("t"), one.subscribe("t"), one.unsubscribe("t")):
        with pytest.raises(trio.ClosedResourceError):
            await forbidden
    async with broker.client("one") as again:
        assert await again.publish("t/1") == 0
        assert (await broker.clients())[0].subscriptions == 0
    assert await broker.clients() == []


@both_drivers
async def test_a_network_client_of_the_same_name_is_somebody_else(broker: Worker) -> None:
    async with broker.client("same") as inside, device(broker, b"same") as outside:
        await inside.subscribe("t", no_local=True)
        await outside.publish(b"t", b"x", 1)
        assert [message.payload for message in await take(inside)] == [b"x"]
        assert sorted(info.in_process for info in await broker.clients()) == [False, True]


def test_the_end_of_the_broker_ends_its_clients_once_they_have_taken_what_came() -> None:
    got: list[bytes] = []
    events: list[Any] = []

    async def main() -> None:
        async def receive(client: InProcessClient) -> None:
            got.extend([message.payload async for message in client])

        async def watch(broker: Worker, task_status: trio.TaskStatus[None]) -> None:
            async with broker.presence() as presence:
                task_status.started()
                events.extend([event async for event in presence])

        with trio.fail_after(TIMEOUT_S):
            async with trio.open_nursery() as nursery, open_broker(CONFIG) as broker:
                await nursery.start(watch, broker)
                client = await broker.connect("one")
                await client.subscribe("t")
                async with device(broker) as network:
                    await network.publish(b"t", b"1", 1)
                    await network.publish(b"t", b"2", 1)
                nursery.start_soon(receive, client)
            with pytest.raises(trio.ClosedResourceError):
                await client.publish("t")
            with pytest.raises(trio.ClosedResourceError):
                await broker.connect("late")

    trio.run(main)
    assert got == [b"1", b"2"]
    assert [type(event).__name__ for event in events] == ["Connected", "Connected", "Disconnected", "Disconnected"]
    assert Disconnected("one", CloseReason.SERVER_SHUTDOWN, in_process=True) in events


def test_a_cancelled_broker_ends_its_clients_too() -> None:
    async def main() -> None:
        async def receive(client: InProcessClient) -> None:
            assert [message async for message in client] == []
            ended.set()

        ended = trio.Event()
        with trio.fail_after(TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as scope:
                    async with open_broker(CONFIG) as broker:
                        nursery.start_soon(receive, await broker.connect("one"))
                        await trio.lowlevel.checkpoint()
                        scope.cancel()
                        await trio.sleep_forever()
                await ended.wait()

    trio.run(main)


def test_an_exception_out_of_the_block_leaves_as_it_is() -> None:
    async def run(broker: Worker) -> None:
        async with broker.client("one"):
            raise LookupError("the block's own")

    with pytest.raises(LookupError, match="the block's own"):
        as_task(run)


def test_a_router_that_fails_under_an_in_process_client_ends_the_worker() -> None:
    async def run(broker: Worker) -> None:
        async with broker.client("one") as one:
            # A router whose state is broken: nothing can be recorded while somebody looks at the records.
            with memoryview(broker.router.ledger.records), pytest.raises(AssertionError):
                await one.publish("t", b"x", retain=True)
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        as_task(run, log_store=FakeLog())
    assert caught.group_contains(AssertionError)
