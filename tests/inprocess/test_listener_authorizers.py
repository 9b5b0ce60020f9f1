"""Authorizers that a listener names: who comes by it may do what these say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

from broker.config.authorizer import AclFileTable, RulesFileTable
from broker.config.listener import Listener
from broker.wire.packets import Connect, Pingreq, Pingresp
from broker.wire.reasons import Reason
from broker.worker.worker import Worker, open_broker
from tests.inprocess.test_acl_files import granted, published
from tests.support.embedded import CONFIG, Device

REFUSED = Reason.NOT_AUTHORIZED


@asynccontextmanager
async def come(broker: Worker, listener: int, **more: Any) -> AsyncIterator[Device]:
    port = broker.addresses_of(listener)[0].port
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = Device(stream, 5)
        await client.send(Connect(5, b"c", user_name="ann", **more))
        assert (await client.receive()).reason == Reason.SUCCESS
        yield client


async def test_each_listener_asks_the_tables_that_it_names(tmp_path: Path) -> None:
    first, second = tmp_path / "first.conf", tmp_path / "second.toml"
    first.write_text("user ann\ntopic deny a/secret\ntopic a/#\n")
    second.write_text('[[rule]]\nallow = "all"\ntopics = ["a/secret", "b"]\n')

    def listener(*names: str, all_of_them: bool = False) -> Listener:
        return Listener(address="tcp://127.0.0.1:0", authorizers=None if all_of_them else names)

    config = msgspec.structs.replace(
        CONFIG,
        listen=(),
        listener=(
            listener("first"),
            listener("second"),
            listener("second", "first"),
            listener(all_of_them=True),
            listener(),
        ),
        authorizer=(
            AclFileTable(name="first", file=str(first), subscribe="strict"),
            RulesFileTable(name="second", file=str(second)),
        ),
    )
    topics = (b"a/x", b"a/secret", b"b", b"c")
    expected = {0: {b"a/x"}, 1: {b"a/secret", b"b"}, 2: {b"a/x", b"a/secret", b"b"}, 3: {b"a/x", b"b"}, 4: set(topics)}
    # The only part of a/# that the second allows is a/secret: granted where no table that is asked is strict.
    wide = {0: REFUSED, 1: 0, 2: 0, 3: REFUSED, 4: 0}
    with trio.fail_after(60):
        async with open_broker(config) as broker:
            for number in expected:
                async with come(broker, number) as client:
                    allowed = {topic for topic in topics if await published(client, topic) != REFUSED}
                    assert allowed == expected[number], number
                    assert (await granted(client, b"a/#") == REFUSED) == (wide[number] == REFUSED), number
            # Who comes back by another listener has the rights of that one, and so has what waits.
            kept = {"session_expiry_interval": 1000}
            async with come(broker, 4, properties=kept) as client:
                assert await granted(client, b"#", 1) == 1
            async with broker.client("inside") as inside:
                await inside.publish("c", b"not this", qos=1)
                await inside.publish("b", b"this", qos=1)
            async with come(broker, 1, clean_start=False, properties=kept) as client:
                assert (await client.receive()).payload == b"this"
                await client.send(Pingreq())
                assert isinstance(await client.receive(), Pingresp)
            # A file that is read again is asked where it was.
            second.write_text('[[rule]]\nallow = "all"\ntopics = "c"\n')
            await broker.reload.reload()
            async with come(broker, 1) as client:
                assert await published(client, b"b") == REFUSED
                assert await published(client, b"c") != REFUSED
            async with come(broker, 0) as client:
                assert await published(client, b"c") == REFUSED
