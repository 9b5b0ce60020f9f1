"""Wills to topic names that the broker takes requests by: they are none, and nobody gets what is in them."""

from __future__ import annotations

import json
from pathlib import Path

import jwt
import msgspec
import pytest
import trio

from broker import logs
from broker.config.authenticator import DynamicSecurityTable, JwtTable
from broker.config.listener import Listener
from broker.config.loader import Log
from broker.control.token_renewal import RENEW, RESULT
from broker.wire.packets import Connack, Connect, Publish, Will
from broker.wire.reasons import Reason
from broker.worker.worker import open_broker
from tests.support.dynamic_security import ADMIN, ADMIN_PASSWORD, REQUEST_TOPIC, start_file
from tests.support.embedded import CONFIG, Device, until

SECRET = "a secret of 32 bytes, or some more"


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_the_broker_says_of_a_token_nobody_else_says(qos: int, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    table = JwtTable(algorithms=("HS256",), secret_file=str(tmp_path / "secret"), exp_required=False)
    token = jwt.encode({"sub": "ann"}, SECRET, algorithm="HS256").encode()
    with trio.fail_after(60):
        async with (
            open_broker(msgspec.structs.replace(CONFIG, authenticator=(table,))) as broker,
            broker.client("inside") as inside,
            await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port) as stream,
        ):
            await inside.subscribe("$auth/#")
            await inside.subscribe("end")
            client = Device(stream, 5)
            await client.send(Connect(5, b"c", user_name="ann", password=token))
            assert (await client.receive()).reason == Reason.SUCCESS
            await client.send(Publish(RESULT, b'{"ok":true}', qos, packet_identifier=qos and 1))
            if qos:
                assert (await client.receive()).reason == Reason.NOT_AUTHORIZED
            await client.send(Publish(b"end", b"end"))
            assert (await inside.__anext__()).payload == b"end"
            # And it still says so itself.
            await client.send(Publish(RENEW, token))
            assert (await client.receive()).payload.startswith(b'{"ok":true')


async def test_a_will_is_no_request_and_its_secrets_go_nowhere(tmp_path: Path) -> None:
    logs.configure(Log(file=str(tmp_path / "log"), level="info"))
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "roles.json").write_bytes(start_file())
    tables = (
        JwtTable(algorithms=("HS256",), secret_file=str(tmp_path / "secret"), exp_required=False),
        DynamicSecurityTable(file=str(tmp_path / "roles.json")),
    )
    listeners = (Listener(address="tcp://127.0.0.1:0"), Listener(address="tcp://127.0.0.1:0", mount_point="plant/"))
    config = msgspec.structs.replace(CONFIG, listen=(), listener=listeners, authenticator=tables)
    token = jwt.encode({"sub": "ann"}, SECRET, algorithm="HS256").encode()
    create = {"command": "createClient", "username": "eve", "password": "HIDDEN"}
    request = json.dumps({"commands": [create]}).encode()
    with trio.fail_after(60):
        async with open_broker(config, folder=tmp_path / "data") as broker, broker.client("inside") as inside:
            for topic_filter in ("#", "$auth/#", "$CONTROL/#"):
                await inside.subscribe(topic_filter)
            for port in [address.port for address in broker.addresses]:
                for topic, payload in ((RENEW, token), (REQUEST_TOPIC, request)):
                    for retain in (False, True):
                        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                            client = Device(stream, 5)
                            will = Will(topic, payload, 1, retain)
                            name, password = ADMIN, ADMIN_PASSWORD.encode()
                            await client.send(Connect(5, b"c", will=will, user_name=name, password=password))
                            answer = await client.receive()
                            assert isinstance(answer, Connack)
                            assert answer.reason == Reason.SUCCESS
                            await client.client.cut()
                        await until(lambda: not broker.reactor.connection_count)
            await inside.publish("end", b"end")
            assert (await inside.__anext__()).payload == b"end"
            assert all(broker.router.retained_message(topic) is None for topic in (RENEW, REQUEST_TOPIC))
        logs.flush()
        events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        refused = [line["topic"] for line in events if line["event"] == "will_refused"]
        assert refused == [RENEW.decode()] * 2 + [REQUEST_TOPIC.decode()] * 2 + ["$plant/auth/renew"] * 2
