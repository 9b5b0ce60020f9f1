"""docs/embedding.md: every example on the page runs, as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import trio

from broker.cli.mqtt_client import Client, RefusedError
from broker.cli.mqtt_errors import MqttError
from broker.cli.mqtt_url import Way
from broker.wire.packets import Auth, Connack, Connect, decode, encode, subscription
from broker.wire.reasons import Reason
from broker.worker.worker import open_broker
from tests.support.conversation import SocketClient
from tests.support.embedded import CONFIG, TIMEOUT_S
from tests.support.scram import ScramClient

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


def defined(name: str) -> Any:
    """What the one example on the page that defines this name makes of it."""
    (example,) = (example for example in EXAMPLES if re.search(rf"^class {name}\b", example, re.MULTILINE))
    namespace: dict[str, Any] = {}
    exec(compile(example, f"embedding.md: {name}", "exec"), namespace)
    return namespace[name]


def ended(client: Client) -> bool:
    """Whether the broker has ended the connection; receives a message, if not."""
    try:
        client.receive(TIMEOUT_S)
    except MqttError:
        return True
    return False


def test_the_gateway_measures_obeys_and_tells_who_is_there(tmp_path: Path) -> None:
    program = tmp_path / "gateway.py"
    port_in_text = "tcp://127.0.0.1:1883"
    assert port_in_text in EXAMPLES[0]
    program.write_text(EXAMPLES[0].replace(port_in_text, "tcp://127.0.0.1:0"), encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "-W", "error", program],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as gateway:
        assert gateway.stdout is not None
        try:
            found = re.fullmatch(r"listening on .*\b127\.0\.0\.1:(\d+)\n", line := gateway.stdout.readline())
            assert found, line
            with Client(Way("tcp", "127.0.0.1", int(found[1])), Connect(5, b"panel"), TIMEOUT_S) as panel:
                # Whichever reading is first: the retained one or the next.
                panel.subscribe([subscription(b"sensors/+", 1)])
                message = panel.receive(TIMEOUT_S)
                assert message is not None
                assert message.topic in (b"sensors/cellar", b"sensors/roof")
                assert message.properties["content_type"] == "text/plain"
                assert 0 < message.properties["message_expiry_interval"] <= 3600
                panel.publish(b"gateway/set/interval_s", b"0.5", 1)
                panel.publish(b"gateway/set/power", b"off", 1)
                while not ended(panel):
                    pass
            output, errors = gateway.communicate(timeout=TIMEOUT_S)
        finally:
            gateway.kill()
    assert gateway.returncode == 0, errors
    # Two tasks write: each in its own order, but not one after the other.
    lines = output.splitlines()
    came = [line for line in lines if re.fullmatch(r"panel came from 127\.0\.0\.1:\d+", line)]
    assert len(came) == 1, output
    lines.remove(came[0])
    assert lines == ["gateway/set/interval_s 0.5", "gateway/set/power off"], output


def test_the_seams_decide_who_comes_in_and_what_they_may_do() -> None:
    def ask(port: int, identifier: bytes, user: str | None, password: bytes | None) -> str:
        """Connect, publish to ann's topic and subscribe to everything: what became of it, in a word each."""
        connect = Connect(5, identifier, user_name=user, password=password)
        try:
            with Client(Way("tcp", "127.0.0.1", port), connect, TIMEOUT_S) as client:
                reason = client.subscribe([subscription(b"devices/#", 1)]).reasons[0]
                client.publish(b"devices/ann/t", b"x", 1)
                client.flush()
                return f"{reason:#x} published"
        except RefusedError as error:
            return f"{error.reason.name}"

    async def main() -> list[str]:
        async with open_broker(
            CONFIG, authenticator=defined("Passwords")(), acl=defined("OwnTopics")(), admission=defined("Doorkeeper")()
        ) as broker:
            port = broker.addresses[0].port
            return [
                await trio.to_thread.run_sync(ask, port, *client)
                for client in (
                    (b"a", "ann", b"correct horse"),
                    (b"b", "ann", b"wrong"),
                    (b"c", None, None),
                    (b"d", "meter-7", b"battery staple"),
                    (b"test-1", "ann", b"correct horse"),
                )
            ]

    assert trio.run(main) == [
        "0x1 published",
        "BAD_USER_NAME_OR_PASSWORD",
        "BAD_USER_NAME_OR_PASSWORD",
        "NOT_AUTHORIZED",
        "BANNED",
    ]


async def test_a_password_is_proved_or_sent() -> None:
    async with open_broker(CONFIG, authenticator=defined("ScramOrPasswords")(defined("Passwords")())) as broker:

        async def enter(connect: Connect, scram: ScramClient | None) -> Connack:
            """Return the CONNACK of a client."""
            stream = await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port)
            async with stream:
                client = SocketClient(stream, None)
                await client.send(encode(connect, 5), False)
                packet = decode(*(await client.receive() or (0, b"")), 5)
                if scram is not None:
                    assert isinstance(packet, Auth)
                    answer = {**method, "authentication_data": scram.final(packet.properties["authentication_data"])}
                    await client.send(encode(Auth(Reason.CONTINUE_AUTHENTICATION, answer), 5), False)
                    packet = decode(*(await client.receive() or (0, b"")), 5)
                assert isinstance(packet, Connack)
                return packet

        method = {"authentication_method": "SCRAM-SHA-256"}
        assert (await enter(Connect(5, b"a", user_name="ann", password=b"correct horse"), None)).reason == 0
        for password, reason in (("correct horse", Reason.SUCCESS), ("battery staple", Reason.NOT_AUTHORIZED)):
            scram = ScramClient("ann", password)
            connect = Connect(5, b"b", properties={**method, "authentication_data": scram.first})
            assert (await enter(connect, scram)).reason == reason


def test_no_example_on_the_page_is_left_out() -> None:
    assert len(EXAMPLES) == 5
    assert "open_broker" in EXAMPLES[0]
