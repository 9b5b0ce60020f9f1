"""paho with JSON Web Tokens: let in, refused, ended, and nowhere a word of what they are."""

from __future__ import annotations

import queue
import time
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt import client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker.wire.packets import Auth, Connack, Connect, decode, encode
from broker.wire.reasons import Reason
from tests.processes.test_admin import asked
from tests.support.process import BrokerProcess
from tests.support.raw_client import RawClient, wait_until
from tests.support.tokens import SECRET, public_pem, token

WAIT_S = 30


class Client:
    """One client of paho's, and what it hears of its connection."""

    def __init__(self, port: int, protocol: Any, password: bytes | None, properties: Properties | None = None) -> None:
        self.connects: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.ends: queue.Queue[Any] = queue.Queue()
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, "meter-7", protocol=protocol, reconnect_on_failure=False
        )
        if password is not None:
            self.client.username_pw_set("ann", password.decode())
        self.client.on_connect = lambda client, data, flags, reason, said: self.connects.put((reason, said))
        self.client.on_disconnect = lambda client, data, flags, reason, said: self.ends.put(reason)
        self.client.connect("127.0.0.1", port, **({} if properties is None else {"properties": properties}))
        self.client.loop_start()

    def end(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def broker_of(folder: Path, *options: str) -> BrokerProcess:
    keys, secret = folder / "keys", folder / "secret"
    keys.mkdir()
    (keys / "a.pem").write_bytes(public_pem("ES256"))
    (keys / "b.pem").write_bytes(public_pem("RS256"))
    secret.write_bytes(SECRET + b"0")
    (folder / "shoal.toml").write_text(
        f'[[authenticator]]\ntype = "jwt"\nalgorithms = ["ES256", "RS256"]\nkeys = ["{keys}"]\n\n'
        f'[[authenticator]]\ntype = "jwt"\nalgorithms = ["HS256"]\nsecret_file = "{secret}"\n'
        f'token_from = "user_name"\n'
    )
    return BrokerProcess(folder, "--config", str(folder / "shoal.toml"), "--log-level", "debug", *options)


@pytest.mark.parametrize("protocol", [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5])
def test_paho_comes_by_tokens_and_goes_with_them(tmp_path: Path, protocol: Any) -> None:
    with broker_of(tmp_path) as broker:
        for algorithm in ("ES256", "RS256"):
            client = Client(broker.port, protocol, token(algorithm))
            assert not client.connects.get(timeout=WAIT_S)[0].is_failure
            client.end()
        for password in (token(ends_in_s=-1), token(which=1)):  # after a third one, ann would have to wait
            client = Client(broker.port, protocol, password)
            assert client.connects.get(timeout=WAIT_S)[0].is_failure
            client.ends.get(timeout=WAIT_S)
            client.end()
        client = Client(broker.port, protocol, token(exp=time.time() + 1.5))
        assert not client.connects.get(timeout=WAIT_S)[0].is_failure
        ended = client.ends.get(timeout=WAIT_S)
        if protocol == paho.MQTTv5:
            assert ended.value == Reason.NOT_AUTHORIZED
        wait_until(lambda: broker.events("connection_ended", reason="authentication_expired"), "its line in the log")
        client.end()


def test_paho_comes_by_an_authentication_method(tmp_path: Path) -> None:
    with broker_of(tmp_path) as broker:
        properties = Properties(PacketTypes.CONNECT)
        properties.AuthenticationMethod, properties.AuthenticationData = "CUSTOM-JWT", token()
        client = Client(broker.port, paho.MQTTv5, None, properties)
        reason, said = client.connects.get(timeout=WAIT_S)
        assert not reason.is_failure
        assert said.AuthenticationMethod == "CUSTOM-JWT"
        client.end()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_no_token_and_no_secret_is_in_any_log_or_answer(tmp_path: Path, workers: str) -> None:
    good, old, foreign = token(), token(ends_in_s=-9), token(which=1)
    by_name = token("HS256")
    with broker_of(tmp_path, "--workers", workers) as broker:
        method = {"authentication_method": "JWT"}
        told: list[str] = []
        with RawClient(broker.port, 5) as client:
            client.socket.sendall(encode(Connect(5, b"c", properties={**method, "authentication_data": good}), 5))
            assert isinstance(client.read(), Connack)
            told += [str(asked(broker, path)) for path in ("/clients/c", "/clients", "/status", "/listeners")]
            client.socket.sendall(encode(Auth(Reason.RE_AUTHENTICATE, {**method, "authentication_data": old}), 5))
            client.read()
        for given in (
            {"password": foreign},
            {"password": old},
            {"user_name": by_name.decode()},
            *({"user_name": good.decode(), "password": b"x"},) * 5,
        ):
            with RawClient(broker.port, 5) as client:
                client.socket.sendall(encode(Connect(5, b"d", **given), 5))  # type: ignore[arg-type]
                told.append(str(client.read()))
                told += [str(asked(broker, path)) for path in ("/clients/d", "/clients")]
        status, answer = asked(broker, "/reload", "POST")
        assert status == 200
        assert [row["keys"] for row in answer["authenticators"]] == [2, 1]
        wait_until(lambda: len(broker.events("connection_ended")) >= 9, "nine ends")
        assert len(broker.events("token_refused")) == 2
        assert workers != "1" or broker.events("logins_slowed", user="(not shown)")
        assert broker.events("token_ignored")
    told += [str(answer), *(path.read_text(errors="replace") for path in tmp_path.glob("*.log"))]
    for secret in (good, old, foreign, by_name, SECRET):
        for part in secret.decode().split("."):
            if part == good.decode().split(".", 1)[0]:
                continue  # the header, which is the same for all
            for text in told:
                assert part not in text


def test_a_packet_does_not_show_its_secrets() -> None:
    good = token().decode()
    properties = {"authentication_method": "JWT", "authentication_data": good.encode()}
    for packet in (
        Connect(5, b"c", user_name=good, password=good.encode(), properties=properties),
        Auth(Reason.RE_AUTHENTICATE, properties),
    ):
        assert good not in repr(packet)
        frame = encode(packet, 5)
        assert good not in repr(decode(frame[0], frame[3:] if frame[1] & 0x80 else frame[2:], 5))
