"""A real `shoal serve`: after clients came, did everything and left, it holds what it held after the first of them."""

from __future__ import annotations

import contextlib
import functools
import os
import ssl
from pathlib import Path

import trio

from tests.inprocess.test_churn import churn
from tests.support.certificates import certificates
from tests.support.conversation import open_tls
from tests.support.gauges import gauges
from tests.support.process import BrokerProcess
from tests.tools.bench import probes

ROUNDS = 6
CLIENTS = 1500  # a round
HANDSHAKES = 2000  # that fail, a round
AT_ONCE = 40
GROWTH_MAX = 1.1  # of resident memory, over that after the second round


async def until_gone(port: int) -> dict[str, int]:
    """Return the gauges once the last client but this one is gone; connections linger until their peers have read."""
    with trio.fail_after(30):
        while (found := gauges(port))["shoal/connections/open"] > 1:  # noqa: ASYNC110  (another process)
            await trio.sleep(0.2)
    return found


async def test_a_process_holds_after_many_rounds_what_it_held_after_two(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, "--log-level", "error")
    broker.start()
    assert broker.process is not None
    pid = broker.process.pid
    resident, descriptors, standing = [], [], []
    try:
        for number in range(ROUNDS):
            await churn(broker.port, range(number * CLIENTS, (number + 1) * CLIENTS), AT_ONCE)
            standing.append(await until_gone(broker.port))
            await trio.sleep(11)  # the broker's housekeeping, and its garbage collection
            resident.append(probes.resident_kib(pid))
            descriptors.append(len(os.listdir(f"/proc/{pid}/fd")))
    finally:
        if broker.process.poll() is None:
            broker.stop()
        assert broker.process.stdout is not None
        broker.process.stdout.close()
    print("resident KiB:", resident, "descriptors:", descriptors, "gauges:", standing[-1])
    assert max(resident[2:]) <= GROWTH_MAX * resident[1], resident
    assert len(set(descriptors)) == 1, descriptors
    assert standing == [standing[0]] * ROUNDS
    # All but the client that asks, and the buffer of its answer.
    assert standing[0].pop("shoal/output/bytes") <= 4096
    assert {name: value for name, value in standing[0].items() if value} == {
        "clients/total": 1,
        "clients/connected": 1,
        "shoal/connections/open": 1,
    }


@functools.cache
def contexts() -> list[ssl.SSLContext]:
    """Return those of clients that do not trust the broker, have nothing in common with it, and leave at once."""
    no_trust, other, leaves = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        certificates().client_context(),
        certificates().client_context(),
    )
    other.set_ciphers("AES128-SHA256")
    other.maximum_version = ssl.TLSVersion.TLSv1_2
    return [no_trust, other, leaves]


async def aborted(port: int, number: int, hello: bytes) -> None:
    """Begin a handshake, and end it in one of the ways in which it may fail."""
    if number % 8 >= 5:  # OpenSSL ends it, ours or the client's
        stream = await open_tls(port, context=contexts()[number % 8 - 5])
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.do_handshake()
        await trio.aclose_forcefully(stream)
        return
    said = (hello, hello[:100], b"\x10\x0c\x00\x04MQTT", hello[:-1] + b"\0" + hello, b"")[number % 8]
    plain = await trio.open_tcp_stream("127.0.0.1", port)
    with contextlib.suppress(trio.BrokenResourceError):
        await plain.send_all(said)
        if number % 16 >= 8:
            await plain.receive_some()
    await trio.aclose_forcefully(plain)


async def test_ten_thousand_handshakes_that_fail_leave_what_the_first_thousands_left(tmp_path: Path) -> None:
    certificate, key = certificates().server
    settings = tmp_path / "tls.toml"
    settings.write_text(
        f'[[listener]]\naddress = "tls://127.0.0.1:0"\ncertfile = "{certificate}"\nkeyfile = "{key}"\n'
        "[limits]\nconnect_timeout_s = 1\n"
    )
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        certificates().client_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()
    broker = BrokerProcess(tmp_path, "--log-level", "error", "--config", str(settings))
    resident, descriptors = [], []
    with broker:
        assert broker.process is not None
        pid = broker.process.pid
        limit = trio.CapacityLimiter(AT_ONCE)

        async def one(number: int) -> None:
            async with limit:
                await aborted(broker.ports["tls"], number, hello)

        for _ in range(ROUNDS):
            async with trio.open_nursery() as nursery:
                for number in range(HANDSHAKES):
                    nursery.start_soon(one, number)
            await until_gone(broker.port)
            await trio.sleep(11)
            resident.append(probes.resident_kib(pid))
            descriptors.append(len(os.listdir(f"/proc/{pid}/fd")))
    print("resident KiB:", resident, "descriptors:", descriptors)
    assert max(resident[2:]) <= GROWTH_MAX * resident[1], resident
    assert len(set(descriptors)) == 1, descriptors


def test_ten_times_ten_thousand_clients_leave_what_the_first_ten_thousand_left() -> None:
    from tests.tools.bench.__main__ import BUILD, SHOAL, SHOAL_PORT

    BUILD.mkdir(parents=True, exist_ok=True)
    after = probes.memory_after_clients(SHOAL, SHOAL_PORT)
    assert max(after) <= GROWTH_MAX * after[0], after
