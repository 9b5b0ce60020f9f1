"""Mount points with several processes: a client keeps its own, whichever worker it comes to and lives on."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.wire.packets import Ack, Publish, Suback, Subscribe, Unsuback, Unsubscribe, Will, subscription
from broker.wire.properties import PacketType
from tests.processes.test_admin import shoal
from tests.support.certificates import certificates
from tests.support.raw_client import TIMEOUT_S, RawClient
from tests.support.workers import Workers

WORKERS, FEWER = 3, 2
PARTS = {"unix": b"one/", "tls": b"two/", "tcp": b""}


class Client(RawClient):
    """Connected by one of the listeners."""

    def __init__(self, broker: Workers, scheme: str) -> None:
        if scheme == "unix":
            self.version, self._data = 5, bytearray()
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(TIMEOUT_S)
            self.socket.connect(str(broker.folder / "mqtt.sock"))
        else:
            super().__init__(broker.ports[scheme])
        if scheme == "tls":
            context: ssl.SSLContext = certificates().client_context()
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")

    def take(self) -> list[tuple[bytes, bytes]]:
        """Return the messages that have come, and acknowledge them."""
        self.send(Unsubscribe(77, (b"nobody/asked",)))
        found = []
        while not isinstance(packet := self.read(), Unsuback):
            assert isinstance(packet, Publish), packet
            found.append((packet.topic, packet.payload))
            if packet.qos:
                self.send(Ack(PacketType.PUBACK, packet.packet_identifier))
        return found

    def publish(self, topic: bytes, payload: bytes, *, retain: bool = False) -> None:
        self.send(Publish(topic, payload, 1, retain, False, 7))
        answer = self.read()
        assert isinstance(answer, Ack), answer


@contextmanager
def serving(folder: Path, workers: int) -> Iterator[Workers]:
    certificate, key = certificates().server
    config = folder / "shoal.toml"
    config.write_text(f"""
[[listener]]
address = "unix://{folder}/mqtt.sock"
mount_point = "one/"

[[listener]]
address = "tls://127.0.0.1:0"
certfile = "{certificate}"
keyfile = "{key}"
mount_point = "two/"
""")
    broker = Workers(folder, workers)
    broker.options = (*broker.options, "--config", str(config))
    with broker:
        yield broker


def test_a_client_stays_under_its_mount_point_on_any_worker_and_over_their_ends(tmp_path: Path) -> None:
    with serving(tmp_path, WORKERS) as broker:
        names = {
            (scheme, home): broker.names(home, 3)[number]
            for number, scheme in enumerate(PARTS)
            for home in range(WORKERS)
        }
        for (scheme, _), name in names.items():
            for _ in range(2):  # it is accepted by any of them
                with Client(broker, scheme) as client:
                    client.connect(name, keep=True, will=Will(b"left", name.encode(), 1, False))
                    client.send(Subscribe(1, (subscription(b"a/#", 1), subscription(b"left", 1))))
                    while not isinstance(client.read(), Suback):
                        pass
        with Client(broker, "tcp") as whole:
            whole.connect("whole")
            for scheme, part in PARTS.items():
                whole.publish(part + b"a/x", scheme.encode())
        for worker in range(WORKERS):
            broker.kill_worker(worker)
            broker.wait_for("worker_ended", worker=worker)
        for (scheme, _), name in names.items():
            with Client(broker, scheme) as client:
                assert client.connect(name, keep=True).session_present
                found = client.take()
                assert (b"a/x", scheme.encode()) in found
                wills = {names[scheme, home].encode() for home in range(WORKERS)}
                assert {topic for topic, _ in found} <= {b"a/x", b"left"}
                assert {payload for _, payload in found} <= {scheme.encode(), *wills}
        shown = json.loads(shoal(broker, "admin", "client", names["unix", 1], "--json"))
        assert shown["mount_point"] == "one/"
        assert {one["topic_filter"] for one in shown["topic_filters"]} == {"one/a/#", "one/left"}
        assert "one/" in shoal(broker, "admin", "client", names["unix", 1])
        rows = json.loads(shoal(broker, "admin", "listeners", "--json"))["rows"]
        assert [row["mount_point"] for row in rows] == [None, "one/", "two/"]
        # Under another one, on the same worker, it is another session.
        with Client(broker, "tls") as client:
            assert not client.connect(names["unix", 1], keep=True).session_present
            assert client.take() == []
        with Client(broker, "tcp") as client:
            client.connect("whole")
            client.publish(b"one/a/x", b"again")
            client.publish(b"two/a/x", b"again")
    # With another number of workers sessions go to other logs.
    with serving(tmp_path, FEWER) as broker:
        for (scheme, home), name in names.items():
            if (scheme, home) in (("unix", 1), ("tcp", home)):
                continue
            with Client(broker, scheme) as client:
                assert client.connect(name, keep=True).session_present, name
                assert client.take() == [(b"a/x", b"again")]
