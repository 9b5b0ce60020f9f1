"""Who is connected: the snapshot and the events, under both drivers of the reactor."""

import pytest
import trio

from broker.control.presence import ClientInfo, Connected, Disconnected
from broker.wire.packets import Connect, Disconnect
from broker.wire.reasons import CloseReason, Reason
from broker.worker.worker import Worker
from tests.support.embedded import Device, both_drivers, device


def user_of(info: ClientInfo) -> str | None:
    assert info.principal is not None
    return info.principal.user_name


@both_drivers
async def test_presence_tells_who_comes_and_why_they_go(broker: Worker) -> None:
    async with broker.presence() as events:
        async with device(broker, b"one", 4, user_name="ann") as one:
            event = await anext(events)
            assert isinstance(event, Connected)
            info = event.client
            assert (info.client_identifier, info.version, user_of(info), info.in_process) == ("one", 4, "ann", False)
            assert info.address is not None
            assert info.address.startswith("127.0.0.1:")
            async with device(broker, b"one", 5, properties={"session_expiry_interval": 9}) as again:
                assert await anext(events) == Disconnected("one", CloseReason.TAKEN_OVER)
                event = await anext(events)
                assert isinstance(event, Connected)
                assert (event.client.version, event.client.session_expiry_interval_s) == (5, 9)
                assert await one.receive() is None
                await again.send(Disconnect(Reason.SUCCESS))
                assert await anext(events) == Disconnected("one", CloseReason.CLIENT_DISCONNECT)
        async with device(broker, b"two"):
            await anext(events)
        assert (await anext(events)).reason in (CloseReason.CONNECTION_LOST, CloseReason.SOCKET_ERROR)
        async with broker.client("inside", identity="who"):
            event = await anext(events)
            assert isinstance(event, Connected)
            assert (event.client.in_process, event.client.version, user_of(event.client)) == (True, None, "who")
        assert await anext(events) == Disconnected("inside", CloseReason.CLIENT_DISCONNECT, in_process=True)
        assert events.dropped == 0
    assert broker.controller.presence.watches == []


@both_drivers
async def test_a_refused_client_was_never_present(broker: Worker) -> None:
    async with broker.presence() as events:
        stream = await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port)
        client = Device(stream, 4)
        await client.send(Connect(4, b"", False))
        assert (await client.receive()).reason != 0
        await trio.aclose_forcefully(stream)
        async with broker.client("sentinel"):
            event = await anext(events)
            assert isinstance(event, Connected)
            assert event.client.client_identifier == "sentinel"


@both_drivers
async def test_a_snapshot_names_every_client_that_is_connected(broker: Worker) -> None:
    async with device(broker, b"net", 5, user_name="ann", properties={"session_expiry_interval": 60}) as network:
        await network.subscribe(b"a/#")
        await network.publish(b"a/b", b"x")
        assert (await network.receive()).payload == b"x"
        async with broker.client("inside", identity="who") as inside:
            await inside.subscribe("a/#")
            net, own = await broker.clients()
        assert (net.client_identifier, net.version, user_of(net), net.session_expiry_interval_s, net.subscriptions) == (
            "net",
            5,
            "ann",
            60,
            1,
        )
        assert net.connected_s >= 0
        assert (net.counters["messages_in"], net.counters["messages_out"]) == (1, 1)
        assert (own.client_identifier, own.in_process, own.address, user_of(own), own.subscriptions) == (
            "inside",
            True,
            None,
            "who",
            1,
        )


@both_drivers
async def test_a_watcher_that_does_not_look_loses_the_oldest_events_and_they_are_counted(broker: Worker) -> None:
    async with broker.presence(events_max=2) as slow, broker.presence() as fast:
        for name in ("a", "b", "c"):
            async with broker.client(name):
                pass
        assert [type(await anext(fast)).__name__ for _ in range(6)] == ["Connected", "Disconnected"] * 3
        assert (slow.dropped, fast.dropped) == (4, 0)
        assert broker.counters()["presence_events_dropped"] == 4
        event = await anext(slow)
        assert isinstance(event, Connected)
        assert event.client.client_identifier == "c"
        assert await anext(slow) == Disconnected("c", CloseReason.CLIENT_DISCONNECT, in_process=True)
    with pytest.raises(ValueError, match="events_max is 1 or more, not 0"):
        broker.presence(0)
