"""Clients, groups and roles by mosquitto_ctrl: on one worker and on three, and after a kill behind an answer."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.wire.packets import Ack, Connack, Connect, Disconnect, Publish, Suback, Subscribe, Subscription, encode
from broker.wire.reasons import Reason
from tests.processes.test_admin import asked
from tests.support.dynamic_security import ADMIN, ADMIN_PASSWORD, Administrator, start_file
from tests.support.front_ends import program
from tests.support.process import ROOT, BrokerProcess
from tests.support.raw_client import RawClient, wait_until
from tests.support.workers import Workers

SECRET = "the client's secret"
NO_TLS = (
    "Warning: You are running mosquitto_ctrl without encryption.\n"
    "This means all of the configuration changes you are making are visible on the network, including "
    "passwords.\n\n"
)
SETTINGS = '[[authenticator]]\ntype = "dynamic_security"\nfile = "{}"\n'


@contextmanager
def broker_of(folder: Path, workers: int) -> Iterator[Workers]:
    """A broker that begins with one administrator."""
    (folder / "start.json").write_bytes(start_file())
    (folder / "shoal.toml").write_text(SETTINGS.format(folder / "start.json"))
    broker = Workers(folder, workers)
    broker.options += ("--config", str(folder / "shoal.toml"))
    with broker:
        yield broker


def ctrl(
    broker: BrokerProcess, *arguments: str, entered: str = "", user: str = ADMIN, password: str = ADMIN_PASSWORD
) -> str:
    """Run mosquitto_ctrl dynsec; returns what it says."""
    done = subprocess.run(
        [
            program("mosquitto_ctrl"),
            "-h",
            "127.0.0.1",
            "-p",
            str(broker.port),
            "-u",
            user,
            "-P",
            password,
            "dynsec",
            *arguments,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        input=entered,
    )
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout + done.stderr.replace(NO_TLS, "")


def log_in(port: int, user: str, password: str = SECRET, client_identifier: str = "c") -> tuple[RawClient, Reason]:
    client = RawClient(port)
    client.socket.sendall(encode(Connect(5, client_identifier.encode(), user_name=user, password=password.encode()), 5))
    answer = client.read()
    assert isinstance(answer, Connack)
    return client, Reason(answer.reason)


def visit(port: int, user: str, password: str = SECRET, client_identifier: str = "c") -> Reason:
    """Return what a CONNECT is answered."""
    client, reason = log_in(port, user, password, client_identifier)
    client.socket.close()
    return reason


def published(client: RawClient, topic: str) -> Reason:
    """Publish, and return what it is acknowledged with."""
    client.send(Publish(topic.encode(), b"x", 1, packet_identifier=1))
    while not isinstance(answer := client.read(), Ack):
        assert answer is not None
    return Reason(answer.reason)


def kicked(client: RawClient) -> bool:
    """Read to the end; return whether an administrator's action ended it."""
    while (packet := client.read()) is not None:
        if isinstance(packet, Disconnect):
            return packet.reason == Reason.ADMINISTRATIVE_ACTION
    return False


@pytest.mark.parametrize("workers", [1, 3])
def test_all_subcommands_of_mosquitto_ctrl(tmp_path: Path, workers: int) -> None:
    with broker_of(tmp_path, workers) as broker:

        def said(*arguments: str, entered: str = "") -> str:
            return ctrl(broker, *arguments, entered=entered)

        said("createRole", "writer")
        said("addRoleACL", "writer", "publishClientSend", "plant/#", "allow", "5")
        said("addRoleACL", "writer", "publishClientSend", "plant/secret", "deny", "9")
        said("addRoleACL", "writer", "subscribePattern", "plant/#", "allow")
        assert "publishClientSend" in said("getRole", "writer")
        assert said("listRoles").split() == ["the", "admin's", "writer"]
        said("createGroup", "staff")
        said("addGroupRole", "staff", "writer", "3")
        assert "writer" in said("getGroup", "staff")
        assert said("listGroups").split() == ["staff"]
        said("createClient", "ann", "-p", SECRET, "-c", "c")
        said("addGroupClient", "staff", "ann")
        said("addClientRole", "ann", "writer", "1")
        assert "ann" in said("getClient", "ann")
        assert said("listClients").split() == ["ann", *ADMIN.split()]

        client, reason = log_in(broker.port, "ann")
        with client:
            assert reason == Reason.SUCCESS
            assert [published(client, topic) for topic in ("plant/a", "plant/secret", "other")] == [
                Reason.NO_MATCHING_SUBSCRIBERS,
                Reason.NOT_AUTHORIZED,
                Reason.NOT_AUTHORIZED,
            ]
            client.send(Subscribe(1, (Subscription(b"plant/+", 1), Subscription(b"#", 1))))
            answer = client.read()
            assert isinstance(answer, Suback)
            assert answer.reasons == (1, Reason.NOT_AUTHORIZED)
            said("disableClient", "ann")
            assert kicked(client)
        assert visit(broker.port, "ann") == Reason.BAD_USER_NAME_OR_PASSWORD
        said("enableClient", "ann")
        assert visit(broker.port, "ann", client_identifier="d") == Reason.BAD_USER_NAME_OR_PASSWORD
        said("setClientId", "ann", "d")
        assert visit(broker.port, "ann", client_identifier="d") == Reason.SUCCESS
        said("setClientId", "ann")
        said("setClientPassword", "ann", "another one")
        assert visit(broker.port, "ann") == Reason.BAD_USER_NAME_OR_PASSWORD
        client, reason = log_in(broker.port, "ann", "another one")
        with client:
            assert reason == Reason.SUCCESS
            assert "ann" in said("getClient", "ann")
            said("removeClientRole", "ann", "writer")
            assert kicked(client)
        said("removeRoleACL", "writer", "publishClientSend", "plant/secret")
        client, reason = log_in(broker.port, "ann", "another one")
        with client:
            assert published(client, "plant/secret") == Reason.NO_MATCHING_SUBSCRIBERS  # by its group
            said("removeGroupRole", "staff", "writer")
            assert kicked(client)
        said("setDefaultACLAccess", "publishClientSend", "allow")
        assert "publishClientSend" in said("getDefaultACLAccess")
        said("setAnonymousGroup", "staff")
        assert "staff" in said("getAnonymousGroup")
        said("removeGroupClient", "staff", "ann")
        said("createGroup", "others")
        said("deleteGroup", "others")
        said("deleteClient", "ann")
        assert visit(broker.port, "ann", "another one") == Reason.BAD_USER_NAME_OR_PASSWORD
        said("deleteRole", "writer")
        assert "Role not found" in said("getRole", "writer")
        events = json.dumps(broker.events("dynamic_security_command"))
        assert '"addRoleACL"' in events
    for file in (broker.log, *(path for path in tmp_path.rglob("*") if path.is_file())):
        content = file.read_bytes()
        assert SECRET.encode() not in content, file
        assert b"another one" not in content, file


@pytest.mark.parametrize("workers", [1, 3])
def test_what_was_answered_is_there_after_a_kill(tmp_path: Path, workers: int) -> None:
    with broker_of(tmp_path, workers) as broker:
        with Administrator(broker.port) as administrator:
            assert administrator.ask(
                {
                    "command": "createRole",
                    "rolename": "r",
                    "acls": [{"acltype": "publishClientSend", "topic": "#", "allow": True}],
                },
                {"command": "createClient", "username": "ann", "password": SECRET, "roles": [{"rolename": "r"}]},
                {"command": "createClient", "username": "bob", "password": SECRET},
                {"command": "deleteClient", "username": "bob"},
            ) == [
                {"command": "createRole"},
                {"command": "createClient"},
                {"command": "createClient"},
                {"command": "deleteClient"},
            ]
        broker.kill()
        (tmp_path / "start.json").unlink()  # it was for the first start
        broker.start()
        client, reason = log_in(broker.port, "ann")
        with client:
            assert reason == Reason.SUCCESS
            assert published(client, "a") == Reason.NO_MATCHING_SUBSCRIBERS
        assert visit(broker.port, "bob") == Reason.BAD_USER_NAME_OR_PASSWORD
        with Administrator(broker.port) as administrator:
            (answer,) = administrator.ask({"command": "listClients"})
            assert answer["data"]["clients"] == ["ann", ADMIN]


def test_a_change_is_in_force_on_all_workers_when_it_is_answered(tmp_path: Path) -> None:
    with broker_of(tmp_path, 3) as broker, Administrator(broker.port) as administrator:
        names = [broker.names(home)[0] for home in range(3)]
        for number in range(5):
            user = f"user {number}"
            administrator.ask({"command": "createClient", "username": user, "password": SECRET})
            clients = []
            for name in names:
                client, reason = log_in(broker.port, user, client_identifier=name)
                assert reason == Reason.SUCCESS
                clients.append(client)
            (answer,) = administrator.ask({"command": "getClient", "username": user})
            assert answer["data"]["client"]["connections"] == [{"address": "127.0.0.1"}] * 3
            administrator.ask({"command": "deleteClient", "username": user})
            for client in clients:
                assert kicked(client)
                client.socket.close()
            assert visit(broker.port, user, client_identifier=names[0]) == Reason.BAD_USER_NAME_OR_PASSWORD


def test_a_worker_that_was_killed_knows_what_was_changed_meanwhile(tmp_path: Path) -> None:
    with broker_of(tmp_path, 3) as broker:
        for home in range(3):
            broker.kill_worker(home)

            def created(home: int = home) -> bool:
                try:
                    with Administrator(broker.port) as administrator:
                        (answer,) = administrator.ask(
                            {"command": "createClient", "username": f"u{home}", "password": SECRET}
                        )
                except (AssertionError, OSError):
                    return False  # it came to the worker that is away
                return answer.get("error") in (None, "Client already exists")

            wait_until(created, "no worker executes")
            wait_until(lambda: asked(broker, "/ready")[0] == 200, "the worker does not come back")
        for home in range(3):
            (name,) = broker.names(home)
            for user in ("u0", "u1", "u2"):
                assert visit(broker.port, user, client_identifier=name) == Reason.SUCCESS


def test_who_is_not_allowed_to_ask_gets_no_answer_and_nobody_reads_what_others_ask(tmp_path: Path) -> None:
    with broker_of(tmp_path, 1) as broker, Administrator(broker.port) as administrator:
        administrator.ask(
            {
                "command": "createRole",
                "rolename": "nosy",
                "acls": [
                    {"acltype": kind, "topic": topic, "allow": True}
                    for kind in ("subscribePattern", "publishClientReceive")
                    for topic in ("$CONTROL/#", "#")
                ],
            },
            {"command": "createClient", "username": "ann", "password": SECRET, "roles": [{"rolename": "nosy"}]},
        )
        client, _ = log_in(broker.port, "ann")
        with client:
            client.send(Subscribe(1, (Subscription(b"$CONTROL/#", 1),)))
            answer = client.read()
            assert isinstance(answer, Suback)
            assert answer.reasons == (1,)
            assert published(client, "$CONTROL/dynamic-security/v1") == Reason.NOT_AUTHORIZED
            administrator.send(
                Publish(
                    b"$CONTROL/dynamic-security/v1",
                    b'{"commands":[{"command":"listRoles"}]}',
                    2,
                    retain=True,
                    packet_identifier=1,
                )
            )
            answers = [administrator.read(), administrator.read()]
            assert {type(answer) for answer in answers} == {Ack, Publish}
            # What it is sent next is what it asks for itself.
            client.send(Subscribe(2, (Subscription(b"$CONTROL/+/v1", 1),)))
            answer = client.read()
            assert isinstance(answer, Suback), answer


def test_who_looks_on_sees_no_password(tmp_path: Path) -> None:
    with broker_of(tmp_path, 1) as broker, Administrator(broker.port, client_identifier="adm") as administrator:
        command = [
            sys.executable,
            "-m",
            "broker.cli.main",
            "admin",
            "--data-dir",
            str(broker.folder / "data"),
            "trace",
            "adm",
            "--json",
        ]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as looking:
            seen = b""
            assert looking.stdout is not None
            while b"PUBLISH" not in seen:
                administrator.ask({"command": "createClient", "username": "ann", "password": SECRET})
                if select.select([looking.stdout], [], [], 0.2)[0]:
                    seen += os.read(looking.stdout.fileno(), 65536)
            looking.terminate()
            seen += looking.stdout.read()
        assert b"(not shown)" in seen
        assert SECRET.encode() not in seen


def test_a_start_without_a_file_says_what_to_do(tmp_path: Path) -> None:
    for workers in ("1", "2"):
        (tmp_path / "shoal.toml").write_text(SETTINGS.format(tmp_path / "none.json"))
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "broker.cli.main",
                "serve",
                "--config",
                str(tmp_path / "shoal.toml"),
                "--listen",
                "tcp://127.0.0.1:0",
                "--data-dir",
                str(tmp_path / workers),
                "--workers",
                workers,
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode != 0
        assert f"`shoal dynsec init {tmp_path / 'none.json'} USER` makes one." in done.stderr
        assert "Traceback" not in done.stderr
