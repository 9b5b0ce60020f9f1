"""A broker that is to end: not ready, a pause, then its clients are told to go, at a rate, and no will is sent."""

from __future__ import annotations

import http.client
import signal
import threading
from pathlib import Path

import pytest

from broker.wire.packets import Ack, Disconnect, Publish, Suback, Subscribe, Will, subscription
from broker.wire.properties import PacketType
from broker.wire.reasons import Reason
from tests.processes.test_admin import shoal
from tests.support.process import BrokerProcess
from tests.support.raw_client import RawClient, wait_until
from tests.support.workers import Workers


def made(folder: Path, workers: int, **settings: str) -> BrokerProcess:
    if workers > 1:
        return Workers(folder, workers, **settings)
    return BrokerProcess(folder, environment=settings)


def status_of(port: int) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", "/readyz?verbose")
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def ended(broker: BrokerProcess) -> int:
    """Wait until a broker has ended; return its exit code."""
    assert broker.process is not None
    broker.process.communicate(timeout=20)
    return broker.process.returncode


@pytest.mark.parametrize("workers", [1, 2])
def test_a_broker_that_drains_is_not_ready_and_serves_on_until_load_balancers_know(
    tmp_path: Path, workers: int
) -> None:
    broker = made(tmp_path, workers, SHOAL_SHUTDOWN__WAIT_S="600", SHOAL_HTTP__LISTEN="0")
    with broker:
        assert broker.process is not None
        address = wait_until(lambda: broker.events("http_listening"), "no HTTP")[0]["address"]
        port = int(address.rpartition(":")[2])
        wait_until(lambda: status_of(port)[0] == 200, "it is never ready")
        broker.process.send_signal(signal.SIGTERM)
        wait_until(lambda: b"[-]draining failed" in status_of(port)[1], "it is ready, and is to end")
        with RawClient(broker.port) as late:
            assert late.connect("late").reason == 0
        assert "ending" in shoal(broker, "admin", "drain")  # once more, and nothing new by it
        broker.process.send_signal(signal.SIGTERM)  # whoever asks again does not want to wait
        assert ended(broker) == 128 + signal.SIGTERM


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("to", [None, "other.example:1883"])
def test_clients_are_told_to_go_and_no_will_is_sent(tmp_path: Path, workers: int, to: str | None) -> None:
    broker = made(tmp_path, workers)
    with broker:
        with RawClient(broker.port) as watching:  # it hears of the wills when the broker is back
            watching.connect("watching", keep=True)
            watching.send(Subscribe(1, (subscription(b"gone/+", 1),)))
            assert isinstance(watching.read(), Suback)
        clients = [RawClient(broker.port) for _ in range(8)] + [RawClient(broker.port, 4)]
        for number, client in enumerate(clients):
            client.connect(f"c{number}", will=Will(b"gone/%d" % number, b"", 1))
        # At this rate it takes two seconds on one worker; all have gone when the command returns.
        said = shoal(broker, "admin", "drain", "--wait", "--rate", "1000/s", *(() if to is None else ("--to", to)))
        assert "has ended" in said
        assert ended(broker) == 0
        for client in clients[:-1]:
            packet = client.read()
            if to is None:
                assert packet == Disconnect(Reason.SERVER_SHUTTING_DOWN)
            else:
                assert packet == Disconnect(Reason.USE_ANOTHER_SERVER, {"server_reference": to})
            assert client.read() is None
        assert clients[-1].read() is None  # 3.1.1 has nothing to say it with
        for client in clients:
            client.socket.close()
        reason = "server_shutdown" if to is None else "redirected"
        assert len(broker.events("connection_ended", reason=reason)) == len(clients)
    again = made(tmp_path, workers)
    with again, RawClient(again.port) as watching:
        watching.connect("watching", keep=True)
        # Who was sent elsewhere lives on there. The others have not come back: their wills wait until now (3.1.2.5).
        expected = set() if to is not None else {b"gone/%d" % number for number in range(len(clients))}
        topics = set()
        while len(topics) < len(expected):
            packet = watching.read()
            assert isinstance(packet, Publish)
            topics.add(packet.topic)
        assert topics == expected
        watching.send(Subscribe(2, (subscription(b"end", 0),)))
        assert isinstance(watching.read(), Suback)


def test_clients_go_at_the_rate_that_is_asked_for(tmp_path: Path) -> None:
    """One in a second: the second one is told when the first has long gone, and a third has yet to be."""
    broker = BrokerProcess(tmp_path)
    with broker:
        clients = [RawClient(broker.port) for _ in range(3)]
        for number, client in enumerate(clients):
            client.connect(f"c{number}")
        shoal(broker, "admin", "drain", "--rate", "1")
        gone = wait_until(lambda: broker.events("connection_ended"), "nobody is told")
        assert len(gone) == 1
        wait_until(lambda: len(broker.events("connection_ended")) == 2, "only one is told")
        assert broker.process is not None
        assert broker.process.poll() is None
        assert ended(broker) == 0
        for client in clients:
            client.socket.close()


def test_what_a_drain_cannot_do_is_said(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        assert "a number of clients in a second" in shoal(broker, "admin", "drain", "--rate", "many", exit_code=2)
        assert "has one worker" in shoal(broker, "admin", "restart", exit_code=1)


class Publishing(threading.Thread):
    """Publishes at QoS 1, one after the other, and comes back and sends again what is not acknowledged."""

    def __init__(self, port: int, name: str, end: threading.Event) -> None:
        super().__init__()
        self.port, self.name, self.end = port, name, end
        self.acknowledged: list[bytes] = []
        self.connects = 0

    def run(self) -> None:
        number = 0
        while not self.end.is_set():
            try:
                with RawClient(self.port) as client:
                    if client.connect(self.name, keep=True).reason:
                        continue
                    self.connects += 1
                    while not self.end.is_set():
                        payload = f"{self.name} {number}".encode()
                        client.send(Publish(b"load", payload, 1, packet_identifier=1))
                        packet = client.read()
                        if packet is None or isinstance(packet, Disconnect):
                            break
                        if packet.reason < 0x80:  # type: ignore[union-attr]
                            self.acknowledged.append(payload)
                            number += 1
            except (OSError, AssertionError):
                continue


class Reading(threading.Thread):
    """Takes what its kept session is sent, and comes back."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__()
        self.port, self.name = port, name
        self.received: set[bytes] = set()
        self.subscribed = threading.Event()

    def run(self) -> None:
        while True:
            try:
                with RawClient(self.port) as client:
                    if client.connect(self.name, keep=True).reason:
                        continue
                    if not self.subscribed.is_set():
                        client.send(Subscribe(1, (subscription(b"load", 1), subscription(b"end", 1))))
                    while (packet := client.read()) is not None:
                        if isinstance(packet, Suback):
                            self.subscribed.set()
                        if isinstance(packet, Publish):
                            if packet.topic == b"end":
                                return
                            self.received.add(packet.payload)
                            client.send(Ack(PacketType.PUBACK, packet.packet_identifier))
            except (OSError, AssertionError):
                continue


def test_new_processes_for_all_workers_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    file = tmp_path / "shoal.toml"
    file.write_text("")
    broker = Workers(tmp_path, 3)
    broker.options = (*broker.options, "--config", str(file))
    with broker:
        pids = broker.pids()
        end = threading.Event()
        names = [broker.names(home, 2) for home in range(3)]
        readers = [Reading(broker.port, reader) for reader, _ in names]
        publishers = [Publishing(broker.port, publisher, end) for _, publisher in names]
        for thread in readers:
            thread.start()
        for reader in readers:
            assert reader.subscribed.wait(20)
        for publisher in publishers:
            publisher.start()
        wait_until(lambda: all(len(each.acknowledged) > 20 for each in publishers), "nothing is published")

        file.write_text("[mqtt]\nreceive_maximum = 9\n[[authorizer]]\ntype = 'acl_file'\nfile = 'not there'\n")
        said = shoal(broker, "admin", "restart", exit_code=1, output=True)
        assert "0 workers have new processes." in said
        assert "not there" in said
        assert broker.pids() == pids

        file.write_text("[mqtt]\nreceive_maximum = 9\n")
        assert "3 workers have new processes." in shoal(broker, "admin", "restart")
        wait_until(lambda: all(each.connects > 1 for each in publishers), "nobody was disconnected")
        before = [len(each.acknowledged) for each in publishers]
        wait_until(
            lambda: all(len(each.acknowledged) > count + 20 for each, count in zip(publishers, before, strict=True)),
            "nothing is published afterwards",
        )
        end.set()
        for publisher in publishers:
            publisher.join(30)
        assert all(new != old for new, old in zip(broker.pids(), pids, strict=True))
        assert not broker.events("worker_ended")
        assert [line["worker"] for line in broker.events("worker_replaced")] == [0, 1, 2]
        with RawClient(broker.port) as client:
            assert client.connect("last").properties["receive_maximum"] == 9
            client.send(Publish(b"end", b"", 1, packet_identifier=1))
            assert client.read() is not None
        for thread in readers:
            thread.join(30)
            assert not thread.is_alive()
        acknowledged = {payload for each in publishers for payload in each.acknowledged}
        assert len(acknowledged) > 100
        for thread in readers:
            assert acknowledged <= thread.received, sorted(acknowledged - thread.received)[:5]
