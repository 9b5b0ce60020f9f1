"""Certificates that change while the broker serves: who is connected stays, and who comes then sees the new one."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio
from trio import to_thread

from broker.wire.packets import Connect, PacketType, Pingreq, Publish, Subscribe, encode, subscription
from tests.processes.test_admin import asked, shoal
from tests.support.certificates import certificates
from tests.support.conversation import SocketClient, open_tls
from tests.support.workers import Workers

TIMEOUT_S = 240
CLIENTS = 1000
RELOADS = 100
EVERY_BROKEN = 10
CERTIFICATES = certificates()
SERVERS = [CERTIFICATES.issue(f"reload-{number}", "localhost") for number in range(2)]


class Folder:
    """The files of a listener, which are swapped as Kubernetes does: by a symbolic link to their folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.swaps = 0

    def put(self, certificate: bytes, key: bytes) -> None:
        self.swaps += 1
        version = self.folder / f"version-{self.swaps}"
        version.mkdir()
        (version / "tls.crt").write_bytes(certificate)
        (version / "tls.key").write_bytes(key)
        (self.folder / "new").symlink_to(version)
        (self.folder / "new").rename(self.folder / "current")

    def put_server(self, number: int) -> None:
        self.put(*(Path(path).read_bytes() for path in SERVERS[number]))


@contextmanager
def serving(tmp_path: Path, workers: int = 3) -> Iterator[tuple[Workers, Folder]]:
    files = Folder(tmp_path)
    files.put_server(0)
    config = tmp_path / "shoal.toml"
    config.write_text(f"""
[[listener]]
address = "tls://127.0.0.1:0"
certfile = "{tmp_path}/current/tls.crt"
keyfile = "{tmp_path}/current/tls.key"
connections_max = 5000
""")
    broker = Workers(tmp_path, workers)
    broker.options = (*broker.options, "--config", str(config))
    with broker:
        yield broker, files


async def connected(broker: Workers, name: str, context: ssl.SSLContext) -> SocketClient:
    client = SocketClient(await open_tls(broker.ports["tls"], context=context))
    await client.send(encode(Connect(5, name.encode()), 5), False)
    assert await client.receive() is not None
    return client


async def shown(broker: Workers, context: ssl.SSLContext) -> str:
    """Return the serial number of the certificate that a new client sees."""
    stream = await open_tls(broker.ports["tls"], context=context)
    await stream.do_handshake()
    serial: str = stream.getpeercert()["serialNumber"]
    await trio.aclose_forcefully(stream)
    return serial


async def reloaded(broker: Workers) -> tuple[int, dict[str, Any]]:
    return await to_thread.run_sync(lambda: asked(broker, "/reload", "POST"))


async def publish_on(client: SocketClient, sent: list[int]) -> None:
    """Publish to itself at QoS 1, one message after the other, for as long as it is let."""
    await client.send(encode(Subscribe(1, (subscription(b"load", 0),)), 5), False)
    while True:
        number = len(sent) + 1
        await client.send(encode(Publish(b"load", b"%d" % number, 1, packet_identifier=1), 5), False)
        wanted = {PacketType.PUBACK, PacketType.PUBLISH}
        while wanted:
            frame = await client.receive()
            assert frame is not None, "disconnected"
            kind = PacketType(frame[0] >> 4)
            wanted.discard(kind)
            if kind == PacketType.PUBLISH:
                assert frame[1].endswith(b"%d" % number)
        sent.append(number)


async def test_a_hundred_reloads_under_load_disconnect_none_of_a_thousand(tmp_path: Path) -> None:
    context = CERTIFICATES.client_context()
    with serving(tmp_path) as (broker, files), trio.fail_after(TIMEOUT_S):
        clients = [await connected(broker, f"client-{number}", context) for number in range(CLIENTS)]
        serials = {await shown(broker, context)}
        sent: list[int] = []
        async with trio.open_nursery() as load:
            load.start_soon(publish_on, clients[0], sent)
            last = before = await shown(broker, context)
            for number in range(1, RELOADS + 1):
                so_far = len(sent)
                if number % EVERY_BROKEN:
                    files.put_server(number % 2)
                    status, answer = await reloaded(broker)
                    assert (status, answer["workers"]) == (200, 3)
                    last = await shown(broker, context)
                    assert (last != before) == (number % 2 == 1)
                    serials.add(last)
                else:
                    files.put(b"-----BEGIN CERTIFICATE-----\n", b"")
                    status, answer = await reloaded(broker)
                    assert (status, answer["error"]["reason"]) == (422, "not_reloaded")
                    assert "tls.crt" in answer["error"]["text"]
                    assert await shown(broker, context) == last
                while len(sent) == so_far:  # it goes on
                    await trio.lowlevel.checkpoint()
            load.cancel_scope.cancel()
        assert len(serials) == 2
        for client in clients[1:]:
            await client.send(encode(Pingreq(), 5), False)
            assert await client.receive() == (0xD0, b"")
        (row,) = (row for row in asked(broker, "/listeners")[1]["rows"] if row["handshakes"] is not None)
        assert row["clients"] == CLIENTS
        assert row["reloads_failed"] >= RELOADS // EVERY_BROKEN
        for client in clients:
            await client.cut()


def test_an_operator_sees_listeners_and_reads_files_again(tmp_path: Path) -> None:
    with serving(tmp_path, 2) as (broker, files):
        text = shoal(broker, "admin", "listeners")
        assert "localhost (29 days)" in text
        assert "0 of 5,000" in text
        rows = json.loads(shoal(broker, "admin", "listeners", "--json"))["rows"]
        assert [row["address"].split(":")[0] for row in rows] == ["tcp", "tls"]
        assert rows[1]["certificates"][0]["names"] == ["localhost"]
        assert shoal(broker, "admin", "reload").startswith("Read again, by 2 workers.")
        files.put(Path(SERVERS[0][0]).read_bytes(), Path(SERVERS[1][1]).read_bytes())
        failed = shoal(broker, "admin", "reload", exit_code=1)
        assert "is not the key of" in failed
        assert "Nothing has changed: what was read before stays in use." in failed
        assert "is not the key of" in shoal(broker, "admin", "listeners")
        files.put_server(0)
        shoal(broker, "admin", "reload")
        assert "is not the key of" not in shoal(broker, "admin", "listeners")


def test_a_client_is_shown_with_its_certificate(tmp_path: Path) -> None:
    client_files = CERTIFICATES.issue("known", "known.example", common_name="known")
    config = tmp_path / "shoal.toml"
    certificate, key = CERTIFICATES.server
    config.write_text(f"""
[[listener]]
address = "tls://127.0.0.1:0"
certfile = "{certificate}"
keyfile = "{key}"
cafile = "{CERTIFICATES.cafile}"
require_certificate = true
""")
    broker = Workers(tmp_path, 2)
    broker.options = (*broker.options, "--config", str(config))

    async def main() -> None:
        for home in range(2):
            name = broker.names(home)[0]
            client = await connected(broker, name, CERTIFICATES.client_context(client_files))
            text = await to_thread.run_sync(lambda name=name: shoal(broker, "admin", "client", name))
            assert "TLSv1.3" in text
            assert "certificate CN=known" in text
            assert "to localhost" in text
            await client.cut()

    with broker:
        trio.run(main)
        counters = [row["tls_handshakes"] for row in asked(broker, "/workers")[1]["rows"]]
        assert sum(one.get("full", 0) + one.get("resumed", 0) for one in counters) == 2
        told = subprocess.run(
            [
                "mosquitto_sub",
                "-p",
                str(broker.port),
                "-t",
                "$SYS/broker/shoal/tls/certificate_days/#",
                "-C",
                "1",
                "-v",
                "-W",
                "60",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout == "$SYS/broker/shoal/tls/certificate_days/2 29\n"
