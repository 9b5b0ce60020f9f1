"""Two workers of a node in one program: clients that come to one and live on the other."""

import socket
from array import array
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from broker.config.loader import Config, Limits
from broker.config.schema import Processes
from broker.wire.packets import Ack, Connack, Connect, Publish, Subscribe, encode, next_frame, subscription
from broker.wire.reasons import CloseReason, ConnectReturn, Reason
from broker.worker import handover, handover_channel
from broker.worker.handover import Arrivals
from broker.worker.handover_channel import HEADER, client_identifier_of
from broker.worker.placement import Place
from broker.worker.worker import open_broker
from mesh.node_identity import Node
from mesh.placement import Homes
from tests.support.raw_client import RawClient

NODE = Node(version=1, identifier="00" * 8, secret="11" * 32)
HOMES = Homes(NODE.key, 2)
TIMEOUT_S = 30


def named(home: int, text: str = "client") -> str:
    """Return a client identifier that is at home on a worker."""
    return next(name for number in range(100) if HOMES.home_of((name := f"{text}-{number}").encode()) == home)


@asynccontextmanager
async def worker(number: int, folder: Path, *, home_wait_ms: int = 60_000, limits: Limits | None = None, **seams: Any):
    config = Config(
        listen=("tcp://127.0.0.1:0",), processes=Processes(home_wait_ms=home_wait_ms), limits=limits or Limits()
    )
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(config, place=Place(number, 2, NODE, folder), **seams) as broker:
            yield broker


def port_of(broker) -> int:
    return broker.addresses[0].port


async def soon(function, *arguments):
    """Call what blocks from a thread, while the brokers run in this one."""
    return await trio.to_thread.run_sync(function, *arguments, abandon_on_cancel=True)


async def until(condition) -> None:
    while not condition():  # noqa: ASYNC110  (the broker tells nobody)
        await trio.sleep(0.005)


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_a_client_is_served_by_its_home_whichever_worker_it_comes_to(tmp_path, version) -> None:
    async with worker(0, tmp_path) as here, worker(1, tmp_path) as there:
        with RawClient(port_of(here), version) as away, RawClient(port_of(here), version) as at_home:
            away_name, home_name = named(1), named(0)
            assert (await soon(away.connect, away_name)).reason == 0
            assert (await soon(at_home.connect, home_name)).reason == 0
            assert [set(broker.router.sessions) for broker in (here, there)] == [
                {home_name.encode()},
                {away_name.encode()},
            ]
            counters = here.counters(), there.counters()
            assert [counter["connections"] for counter in counters] == [1, 1]
            assert [counter["connections_open"] for counter in counters] == [1, 1]
            assert [counter["packets_in_connect"] for counter in counters] == [1, 1]
            assert [counter["clients_handed_over"] for counter in counters] == [1, 0]
            assert [counter["clients_taken_in"] for counter in counters] == [0, 1]
            assert not any(name.startswith("ends_") for counter in counters for name in counter)
            assert (await there.clients())[0].address == "{}:{}".format(*away.socket.getsockname())


async def test_what_was_sent_behind_connect_comes_along_in_order_and_whole(tmp_path) -> None:
    payload = bytes(range(256)) * 450  # with what is around it, more than one message between workers
    async with worker(0, tmp_path) as here, worker(1, tmp_path) as there:
        with RawClient(port_of(here)) as client:
            packets = [Subscribe(1, (subscription(b"to/me", 1),)), Publish(b"to/me", payload, 1, packet_identifier=2)]
            data = client.connect_bytes(named(1)) + b"".join(encode(packet, 5) for packet in packets)
            await soon(client.socket.sendall, data)
            seen = [await soon(client.read) for _ in range(4)]
            assert isinstance(seen[0], Connack)
            assert payload in [packet.payload for packet in seen if isinstance(packet, Publish)]
            assert [packet.packet_identifier for packet in seen if isinstance(packet, Ack)] == [2]
        assert there.handover.taken_in == 1


async def test_a_client_without_a_name_gets_one_that_is_at_home_where_it_came(tmp_path) -> None:
    async with worker(1, tmp_path) as here:
        for _ in range(8):
            with RawClient(port_of(here)) as client:
                answer = await soon(client.connect, "")
                assert HOMES.home_of(answer.properties["assigned_client_identifier"].encode()) == 1


async def test_two_connections_of_a_client_that_came_to_two_workers_meet_at_its_home(tmp_path) -> None:
    async with worker(0, tmp_path) as here, worker(1, tmp_path) as there:
        with RawClient(port_of(here)) as older, RawClient(port_of(there)) as newer:
            assert (await soon(older.connect, named(0))).reason == 0
            assert (await soon(newer.connect, named(0))).reason == 0
            assert (await soon(older.read)).reason == Reason.SESSION_TAKEN_OVER


async def test_a_home_that_comes_back_in_time_finds_the_clients_that_waited(tmp_path) -> None:
    async with worker(0, tmp_path) as here, trio.open_nursery() as nursery:
        with RawClient(port_of(here)) as client:
            await soon(client.socket.sendall, client.connect_bytes(named(1)))
            await until(lambda: here.reactor.connection_count)
            await until(lambda: here.reactor.connections_snapshot()[0].is_parked)
            async with worker(1, tmp_path) as there:
                assert (await soon(client.read)).reason == 0
                assert there.handover.taken_in == 1
        nursery.cancel_scope.cancel()


async def test_a_worker_that_was_restarted_is_found_again(tmp_path) -> None:
    async with worker(0, tmp_path) as here:
        for _ in range(3):
            async with worker(1, tmp_path):
                with RawClient(port_of(here)) as client:
                    assert (await soon(client.connect, named(1))).reason == 0
        assert here.handover.handed_over == 3


@pytest.mark.parametrize(
    ("version", "code"),
    [(5, Reason.SERVER_UNAVAILABLE), (4, ConnectReturn.SERVER_UNAVAILABLE), (3, ConnectReturn.SERVER_UNAVAILABLE)],
)
async def test_a_home_that_stays_away_is_unavailable_after_a_while(tmp_path, version, code) -> None:
    async with worker(0, tmp_path, home_wait_ms=100) as here:
        with RawClient(port_of(here), version) as client:
            assert (await soon(client.connect, named(1))).reason == code
            assert await soon(client.read) is None
        assert here.metrics().ends == {CloseReason.HOME_UNAVAILABLE: 1}
        assert here.handover.given_up == 1


async def test_more_clients_than_may_wait_for_a_home_are_told_at_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(handover_channel, "WAITING_MAX", 1)
    async with worker(0, tmp_path) as here:
        with RawClient(port_of(here)) as first, RawClient(port_of(here)) as second:
            await soon(first.socket.sendall, first.connect_bytes(named(1)))
            await until(lambda: any(c.is_parked for c in here.reactor.connections_snapshot()))
            assert (await soon(second.connect, named(1, "other"))).reason == Reason.SERVER_UNAVAILABLE


async def test_who_leaves_while_it_waits_for_its_home_is_forgotten(tmp_path) -> None:
    async with worker(0, tmp_path) as here:
        client = RawClient(port_of(here))
        await soon(client.socket.sendall, client.connect_bytes(named(1)))
        await until(lambda: any(c.is_parked for c in here.reactor.connections_snapshot()))
        client.socket.close()
        await until(lambda: here.reactor.connection_count == 0)
        assert here.metrics().ends == {CloseReason.CONNECTION_LOST: 1}
        async with worker(1, tmp_path) as there:
            with RawClient(port_of(here)) as other:
                assert (await soon(other.connect, named(1))).reason == 0
            assert there.handover.taken_in == 1


async def test_many_wait_for_their_home_and_only_who_left_is_not_sent_there(tmp_path) -> None:
    count = 2 * handover_channel.CLIENTS_PER_MESSAGE + 2
    async with worker(0, tmp_path) as here:
        clients = [RawClient(port_of(here)) for _ in range(count)]
        for number, client in enumerate(clients):
            client.socket.sendall(client.connect_bytes(named(1, f"client{number}")))
        await until(lambda: sum(c.is_parked for c in here.reactor.connections_snapshot()) == count)
        for client in clients[1::2]:
            client.socket.close()
        await until(lambda: here.reactor.connection_count == count // 2)
        async with worker(1, tmp_path) as there:
            for client in clients[::2]:
                assert (await soon(client.read)).reason == 0
                client.socket.close()
            assert there.handover.taken_in == here.handover.handed_over == count // 2


async def test_clients_wait_where_they_came_while_their_home_takes_none_in(tmp_path) -> None:
    """The authenticator of worker 1 has all the CONNECTs that it may have; others are not lost meanwhile."""
    free = trio.Event()

    class Waits:
        def authenticate(self, _connect, _exchange):
            from broker.auth.outcome import Accepted

            async def decide():
                await free.wait()
                return Accepted()

            return decide()

    limits = Limits(pending_connects_max=1)
    async with worker(0, tmp_path) as here, worker(1, tmp_path, limits=limits, authenticator=Waits()) as there:
        clients = [RawClient(port_of(here)) for _ in range(3)]
        for number, client in enumerate(clients):
            await soon(client.socket.sendall, client.connect_bytes(named(1, f"client{number}")))
            await until(lambda sent=number + 1: here.handover.handed_over == sent)
            await until(lambda: there.handover.taken_in == 1)
        free.set()
        for client in clients:
            assert (await soon(client.read)).reason == 0
            client.socket.close()
        assert there.handover.taken_in == 3


async def test_many_clients_at_once_all_come_home(tmp_path) -> None:
    """More than the queue between two workers holds at once."""
    count = 400
    async with worker(0, tmp_path) as here, worker(1, tmp_path) as there:
        clients = [RawClient(port_of(here)) for _ in range(count)]

        def all_connect():
            for number, client in enumerate(clients):
                client.socket.sendall(client.connect_bytes(named(1, f"client{number}")))
            return [client.read() for client in clients]

        answers = await soon(all_connect)
        assert {answer.reason for answer in answers} == {Reason.SUCCESS}
        assert there.handover.taken_in == count
        assert here.reactor.connection_count == 0
        for client in clients:
            client.socket.close()


async def test_clients_of_one_home_that_come_in_one_turn_travel_in_one_message(tmp_path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as home, ExitStack() as stack:
        home.bind(str(tmp_path / "worker-1.handover"))
        home.listen()
        async with worker(0, tmp_path) as here:
            # Nothing turns until all are there.
            clients = [stack.enter_context(RawClient(port_of(here))) for _ in range(3)]
            sent = [client.connect_bytes(named(1, f"client{number}")) for number, client in enumerate(clients)]
            for client, data in zip(clients, sent, strict=True):
                client.socket.sendall(data)
            way, _ = await soon(home.accept)
            with way:
                message, descriptors, _, _ = await soon(socket.recv_fds, way, 65_536, 10)
            assert here.handover.handed_over == 3
        taken = Arrivals(way).take(message, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors).tobytes())])
        assert [client for client, *_ in taken] == descriptors
        ports = {client.socket.getsockname()[1]: data for client, data in zip(clients, sent, strict=True)}
        for descriptor, _, _, data in taken:
            with socket.socket(fileno=descriptor) as passed:
                assert ports.pop(passed.getpeername()[1]) == data
        assert not ports


@pytest.mark.parametrize(
    ("room", "sizes"),
    [
        (700, (0, 0, 5000, 0)),
        (700, (5000, 5000)),
        (700, (300, 300, 300, 0, 300)),
        (700, (700, 0, 600, 1000)),
        (700, (80,) * 6),
        (700, (5000,) * 40),
        (100, (60_000,)),
    ],
)
async def test_clients_that_come_in_one_turn_with_much_or_little_behind_connect(
    tmp_path, monkeypatch, room, sizes,
) -> None:  # fmt: skip
    """A message has room for six small clients but for what is said of each; the last ones fill the queue."""
    for module in (handover_channel, handover):
        monkeypatch.setattr(module, "MESSAGE_BYTES_MAX", room)
    async with worker(0, tmp_path) as here, worker(1, tmp_path) as there:
        with ExitStack() as stack:
            clients = [stack.enter_context(RawClient(port_of(here))) for _ in sizes]
            for number, (client, size) in enumerate(zip(clients, sizes, strict=True)):
                client.socket.sendall(
                    client.connect_bytes(named(1, f"client{number}"))
                    + encode(Publish(b"a", bytes(size), 1, packet_identifier=1 + number), 5)
                )
            for number, client in enumerate(clients):
                assert (await soon(client.read)).reason == 0
                assert (await soon(client.read)).packet_identifier == 1 + number
        assert there.handover.taken_in == len(sizes)
        assert there.counters()["payload_bytes_in"] == sum(sizes)


async def test_a_home_that_dies_before_it_has_all_of_a_client_is_found_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(handover_channel, "MESSAGE_BYTES_MAX", 100)
    async with worker(0, tmp_path) as here:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as home:
            home.bind(str(tmp_path / "worker-1.handover"))
            home.listen()
            lost = RawClient(port_of(here))
            lost.socket.sendall(lost.connect_bytes(named(1)) + encode(Publish(b"a", bytes(60_000)), 5))
            way, _ = await soon(home.accept)
            await until(lambda: here.handover.handed_over == 1)
            way.close()
        lost.socket.close()
        async with worker(1, tmp_path):
            with RawClient(port_of(here)) as client:
                assert (await soon(client.connect, named(1))).reason == 0


def test_of_clients_whose_sockets_had_no_room_only_the_last_are_lost() -> None:
    message = b"".join(HEADER.pack(number, 0, 1) + b"%d" % number for number in range(3))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        taken = Arrivals(ours).take(message, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [7, 8]).tobytes())])
    assert taken == [(7, 0, b"", b"0"), (8, 1, b"", b"1"), (-1, 2, b"", b"2")]


async def test_the_rate_of_connects_is_counted_at_home_only(tmp_path) -> None:
    limits = Limits(connects_per_second_max=1)
    async with worker(0, tmp_path, limits=limits) as here, worker(1, tmp_path):
        for number in range(5):
            with RawClient(port_of(here)) as client:
                assert (await soon(client.connect, named(1, f"client{number}"))).reason == 0


def body_of(connect: Connect) -> bytes:
    _, body = next_frame(bytearray(encode(connect, connect.version)))
    return body


@given(
    st.sampled_from([3, 4, 5]),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30),
    st.text("ab", max_size=200),
    st.booleans(),
)
def test_the_client_identifier_is_found_in_every_connect(version, identifier, user, clean) -> None:
    properties = {"session_expiry_interval": 5, "user_property": [("a", user)]} if version == 5 else {}
    connect = Connect(version, identifier.encode(), clean, 60, None, user or None, None, properties)
    assert client_identifier_of(body_of(connect)) == identifier.encode()


@given(st.binary(max_size=40), st.integers(0, 60))
def test_whatever_the_bytes_a_client_identifier_is_found_or_not(garbage, cut) -> None:
    whole = body_of(Connect(5, b"client", True, 60, None, None, None, {"receive_maximum": 7}))
    for body in (garbage, whole[:cut], whole[:cut] + garbage, whole[:7] + garbage):
        assert isinstance(client_identifier_of(body), bytes)
    assert client_identifier_of(whole[:cut]) == (b"client" if cut >= len(whole) else b"")
