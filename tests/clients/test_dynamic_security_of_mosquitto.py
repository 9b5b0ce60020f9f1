"""mosquitto's plugin for dynamic security and our machine: the same answers to commands, then the same decisions."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.auth.dynamic_security.commands import Commands, commands_of, plain_passwords, response_of
from broker.auth.dynamic_security.decisions import Decisions
from broker.auth.dynamic_security.logins import REFUSED, UNKNOWN, hash_wanted
from broker.auth.dynamic_security.start_file import state_of
from broker.auth.dynamic_security.state import Draft, State
from broker.auth.password_hash import PasswordHash, new_hash
from broker.wire.packets import (
    Ack,
    Connack,
    Connect,
    Packet,
    Pingreq,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    encode,
)
from broker.wire.reasons import Reason
from tests.processes.test_dynamic_security import broker_of
from tests.support.dynamic_security import (
    DIFFERENT,
    GROUPS,
    KINDS,
    PLUGIN,
    ROLES,
    USERS,
    Administrator,
    Command,
    Mosquitto,
    command,
    comparable,
    ends_badly,
    rules,
    start_file,
)
from tests.support.raw_client import RawClient

pytestmark = pytest.mark.skipif(not PLUGIN.exists(), reason="mosquitto is installed without its plugin")

SEQUENCES = 12
COMMANDS = 120
WORLDS = 12
PASSWORD = "secret one"
TOPICS = ("a", "a/b", "a/b/c", "b", "/", "x/b", "%c")
FILTERS = (*TOPICS, "a/+", "a/#", "#", "+/b", "+", "+/+", "a/+/c", "/#", "+/#", "$SYS/#", "$SYS/x", "$CONTROL/q")


class Machine:
    """Our state, changed by the same commands."""

    def __init__(self, start: bytes) -> None:
        self.state = state_of(start)
        self._marks = (str(number) for number in itertools.count(1))

    def draft(self, made: Command) -> tuple[list[Command], Draft]:
        commands = commands_of(json.dumps({"commands": [made]}).encode())
        for setting in plain_passwords(commands):
            setting["password"] = new_hash(setting["password"].encode(), "sha512-pbkdf2", 1).decode()
        draft = Draft(self.state, self._marks.__next__)
        answers = json.loads(response_of(Commands(draft, lambda _user: []).execute(commands)))["responses"]
        return comparable(answers), draft

    def take(self, draft: Draft) -> None:
        for kind, name, entity in draft.changes:
            self.state.put(kind, name, entity)


def is_comparable(state: State, made: Command, answers: list[Command]) -> bool:
    return not ends_badly(state, made) and (answers[0]["command"], answers[0].get("error")) not in DIFFERENT


@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_generated_commands_have_the_same_answers_at_mosquitto(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    ours = Machine(start_file())
    asked = refused = 0
    with Mosquitto(tmp_path, start_file()) as mosquitto, Administrator(mosquitto.port) as theirs:
        for _ in range(COMMANDS):
            made = command(draw)
            answers, draft = ours.draft(made)
            if is_comparable(ours.state, made, answers):
                assert answers == comparable(theirs.ask(made)), made
                ours.take(draft)
                asked += 1
                refused += "error" in answers[0]
    assert asked > COMMANDS // 2
    assert 0 < refused < asked


@pytest.mark.parametrize("payload", [
    b"", b"{}", b"[]", b"null", b"{", b'{"commands":1}', b'{"commands":[]}', b'{"Commands":[1,null,[],{}]}',
    b'{"commands":[{"command":1},{"command":"getdetailz"},{"COMMAND":"LISTroles"}]}',
    b'{"commands":[{"command":"listRoles","correlationData":1},{"command":"listRoles"}]}',
    b'{"commands":[{"command":"createClient","username":"u","username":"v"},{"command":"listClients"}]}',
])  # fmt: skip
def test_requests_that_are_none_are_answered_in_the_same_way(tmp_path: Path, payload: bytes) -> None:
    from broker.auth.dynamic_security.commands import RequestError, refusal

    ours = Machine(start_file())
    try:
        response = response_of(Commands(Draft(ours.state, str), lambda _user: []).execute(commands_of(payload)))
    except RequestError as error:
        response = refusal(str(error))
    with Mosquitto(tmp_path, start_file()) as mosquitto, Administrator(mosquitto.port) as theirs:
        assert comparable(theirs.request(payload)) == comparable(json.loads(response)["responses"])


def world(draw: random.Random) -> Iterator[Command]:
    """Commands that make roles, groups and clients."""
    for role in ROLES:
        yield {"command": "createRole", "rolename": role, "acls": rules(draw, KINDS[:6], 5)}
    for group in GROUPS:
        yield {"command": "createGroup", "groupname": group}
        for role in draw.sample(ROLES, 2):
            yield {"command": "addGroupRole", "groupname": group, "rolename": role, "priority": draw.randrange(3)}
    yield {
        "command": "createRole",
        "rolename": "first",
        "acls": [{"acltype": "publishClientReceive", "topic": "end", "allow": True}],
    }
    for user in USERS[:2]:
        yield {"command": "createClient", "username": user, "password": PASSWORD}
        yield {"command": "addClientRole", "username": user, "rolename": "first", "priority": 9}
        for role in draw.sample(ROLES, draw.randrange(3)):
            yield {"command": "addClientRole", "username": user, "rolename": role, "priority": draw.randrange(3)}
        for group in draw.sample(GROUPS, 2):
            yield {"command": "addGroupClient", "username": user, "groupname": group, "priority": draw.randrange(3)}
    yield {
        "command": "createRole",
        "rolename": "publisher's",
        "acls": [{"acltype": "publishClientSend", "topic": "#", "allow": True}],
    }
    yield {
        "command": "createClient",
        "username": "publisher",
        "password": PASSWORD,
        "roles": [{"rolename": "publisher's"}],
    }
    yield {
        "command": "setDefaultACLAccess",
        "acls": [
            {"acltype": kind, "allow": draw.random() < 0.5}
            for kind in ("publishClientSend", "publishClientReceive", "subscribe", "unsubscribe")
        ],
    }


def log_in(port: int, user: str | None, client_identifier: str, password: str | None = PASSWORD) -> RawClient | None:
    client = RawClient(port)
    client.socket.sendall(
        encode(
            Connect(
                5, client_identifier.encode(), user_name=user, password=None if password is None else password.encode()
            ),
            5,
        )
    )
    answer = client.read()
    assert isinstance(answer, Connack)
    if answer.reason == 0:
        return client
    client.socket.close()
    return None


def read(client: RawClient, kind: type[Packet]) -> Packet:
    """Read up to the next packet of a kind."""
    while not isinstance(packet := client.read(), kind):
        assert packet is not None
    return packet


def is_different(state: State, topic_filter: str) -> bool:
    """mosquitto 2.0 takes a rule for `#` for one for `$SYS` as well, when somebody subscribes."""
    return topic_filter.startswith("$") and any(
        rule.topic == "#" for role in state.roles.values() for rule in role.rules
    )


@pytest.mark.parametrize("seed", range(WORLDS))
def test_generated_roles_allow_the_same_as_at_mosquitto(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    ours = Machine(start_file())
    with Mosquitto(tmp_path, start_file()) as mosquitto:
        with Administrator(mosquitto.port) as administrator:
            for made in world(draw):
                answers, draft = ours.draft(made)
                assert answers == administrator.ask(made)
                ours.take(draft)
        decisions = Decisions(ours.state)
        for user in USERS[:2]:
            client = log_in(mosquitto.port, user, "c1")
            assert client is not None
            with client:
                for topic in TOPICS:
                    client.send(Publish(topic.encode(), b"", 1, packet_identifier=1))
                    answer = read(client, Ack)
                    assert isinstance(answer, Ack)
                    allowed = decisions.may_publish(user, b"c1", topic.encode())
                    assert bool(allowed.allowed) == (answer.reason != Reason.NOT_AUTHORIZED), (user, topic, allowed)
                for topic in FILTERS:
                    client.send(Subscribe(1, (Subscription(topic.encode(), 0),)), Unsubscribe(2, (topic.encode(),)))
                    subscribed, unsubscribed = read(client, Suback), read(client, Unsuback)
                    assert isinstance(subscribed, Suback)
                    assert isinstance(unsubscribed, Unsuback)
                    if not is_different(ours.state, topic):
                        allowed = decisions.may_subscribe(user, b"c1", topic.encode())
                        assert bool(allowed.allowed) == (subscribed.reasons[0] < 0x80), (user, topic, allowed)
                        allowed = decisions.may_unsubscribe(user, b"c1", topic.encode())
                        assert bool(allowed.allowed) == (unsubscribed.reasons[0] < 0x80), (user, topic, allowed)


@pytest.mark.parametrize("seed", range(WORLDS))
def test_generated_roles_let_the_same_messages_through_as_at_mosquitto(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    ours = Machine(start_file())
    with Mosquitto(tmp_path, start_file()) as mosquitto:
        with Administrator(mosquitto.port) as administrator:
            subscribing = {
                "command": "addRoleACL",
                "rolename": "first",
                "acltype": "subscribeLiteral",
                "topic": "#",
                "allow": True,
            }
            for made in (*world(draw), subscribing):
                answers, draft = ours.draft(made)
                assert answers == administrator.ask(made)
                ours.take(draft)
        decisions = Decisions(ours.state)
        publisher = log_in(mosquitto.port, "publisher", "p")
        assert publisher is not None
        with publisher:
            for user in USERS[:2]:
                client = log_in(mosquitto.port, user, "c1")
                assert client is not None
                with client:
                    client.send(Subscribe(1, (Subscription(b"#", 0),)))
                    read(client, Suback)
                    for topic in (*TOPICS, "end"):
                        publisher.send(Publish(topic.encode(), b"", 1, packet_identifier=1))
                        read(publisher, Ack)
                    arrived: list[bytes] = []
                    while b"end" not in arrived:
                        packet = read(client, Publish)
                        assert isinstance(packet, Publish)
                        arrived.append(packet.topic)
                    assert [topic.decode() for topic in arrived[:-1]] == [
                        topic for topic in TOPICS if decisions.may_receive(user, b"c1", topic.encode()).allowed
                    ]


UNSUBSCRIBING = (
    {"command": "createRole", "rolename": "all", "acls": [
        {"acltype": kind, "topic": topic, "allow": True} for topic in ("#", "$x/#")
        for kind in ("publishClientSend", "publishClientReceive", "subscribePattern")]},
    {"command": "createRole", "rolename": "some", "acls": [
        {"acltype": "unsubscribeLiteral", "topic": "a/+", "allow": True, "priority": 2},
        {"acltype": "unsubscribePattern", "topic": "a/#", "allow": False, "priority": 1},
        {"acltype": "unsubscribeLiteral", "topic": "b", "allow": False},
        {"acltype": "unsubscribePattern", "topic": "$x/+", "allow": False}]},
    {"command": "createClient", "username": "ann", "password": PASSWORD,
     "roles": [{"rolename": "some", "priority": 2}, {"rolename": "all"}]},
)  # fmt: skip
UNSUBSCRIBED = (b"a/+", b"a/#", b"a/b", b"b", b"b/#", b"$x/y", b"$x/#", b"#")


@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize("version", [4, 5])
def test_the_same_subscriptions_end_at_both(tmp_path: Path, version: int, default: bool) -> None:
    """One that may not be ended stays; before 5.0 nothing tells its client, at mosquitto and here."""
    defaults = {"command": "setDefaultACLAccess", "acls": [{"acltype": "unsubscribe", "allow": default}]}
    with Mosquitto(tmp_path, start_file()) as mosquitto, broker_of(tmp_path, 1) as broker:
        theirs, ours = (
            {topic_filter: _unsubscribed(port, version, topic_filter) for topic_filter in UNSUBSCRIBED}
            for port in (mosquitto.port, broker.port)
            if _prepared(port, *UNSUBSCRIBING, defaults)
        )
    assert ours == theirs
    assert {arrives for _, arrives in ours.values()} == {True, False}


def _prepared(port: int, *commands: Command) -> bool:
    with Administrator(port) as administrator:
        return not [answer for answer in administrator.ask(*commands) if "error" in answer]


def _unsubscribed(port: int, version: int, topic_filter: bytes) -> tuple[Any, bool]:
    """Return what an UNSUBSCRIBE is answered, and whether messages come still."""
    with RawClient(port, version) as client:
        client.send(Connect(version, b"c1", user_name="ann", password=PASSWORD.encode()))
        read(client, Connack)
        client.send(Subscribe(1, (Subscription(topic_filter, 0),)), Unsubscribe(2, (topic_filter,)))
        answer = read(client, Unsuback)
        assert isinstance(answer, Unsuback)
        topic = topic_filter.replace(b"+", b"z").replace(b"#", b"z")
        client.send(Publish(topic, b"", 0), Pingreq())
        return answer.reasons, isinstance(client.read(), Publish)


def test_the_same_logins_get_in_at_both(tmp_path: Path) -> None:
    ours = Machine(start_file())
    made = [
        {"command": "createClient", "username": "plain", "password": PASSWORD},
        {"command": "createClient", "username": "bound", "password": PASSWORD, "clientid": "c1"},
        {"command": "createClient", "username": "off", "password": PASSWORD},
        {"command": "disableClient", "username": "off"},
        {"command": "createClient", "username": "without"},
        {"command": "createClient", "username": "changed", "password": "older"},
        {"command": "setClientPassword", "username": "changed", "password": PASSWORD},
        {"command": "createClient", "username": "freed", "password": PASSWORD, "clientid": "c1"},
        {"command": "setClientId", "username": "freed", "clientid": ""},
        {"command": "createClient", "username": "gone", "password": PASSWORD},
        {"command": "deleteClient", "username": "gone"},
    ]  # fmt: skip
    with Mosquitto(tmp_path, start_file()) as mosquitto:
        with Administrator(mosquitto.port) as administrator:
            for one in made:
                answers, draft = ours.draft(one)
                assert answers == administrator.ask(one)
                ours.take(draft)
        got_in = 0
        for user in ("plain", "bound", "off", "without", "changed", "freed", "gone", "nobody"):
            for client_identifier, password in itertools.product(("c1", "c2"), (PASSWORD, "older", "", None)):
                client = log_in(mosquitto.port, user, client_identifier, password)
                wanted = hash_wanted(ours.state, user, client_identifier)
                fits = (
                    password is not None
                    and wanted not in (UNKNOWN, REFUSED)
                    and isinstance(wanted, bytes)
                    and PasswordHash(wanted).fits(password.encode())
                )
                assert fits == (client is not None), (user, client_identifier, password)
                got_in += fits
                if client is not None:
                    client.socket.close()
    assert got_in == 7


def test_a_file_of_mosquitto_ctrl_and_one_that_mosquitto_wrote_are_a_start(tmp_path: Path) -> None:
    import subprocess

    from tests.support.front_ends import program

    file = tmp_path / "made.json"
    subprocess.run(
        [program("mosquitto_ctrl"), "dynsec", "init", str(file), "root", "a password"], check=True, capture_output=True
    )
    state = state_of(file.read_bytes())
    assert list(state.clients) == ["root"]
    wanted = hash_wanted(state, "root", "any")
    assert isinstance(wanted, bytes)
    assert PasswordHash(wanted).fits(b"a password")
    assert Decisions(state).may_publish("root", b"c", b"$CONTROL/dynamic-security/v1").allowed

    draw = random.Random(3)
    ours = Machine(start_file())
    with Mosquitto(tmp_path, start_file()) as mosquitto, Administrator(mosquitto.port) as administrator:
        for made in world(draw):
            ours.take(ours.draft(made)[1])
            administrator.ask(made)
        again = Machine(mosquitto.file.read_bytes())
    for made in (
        {"command": "listRoles", "verbose": True},
        {"command": "listGroups", "verbose": True},
        {"command": "listClients", "verbose": True},
        {"command": "getDefaultACLAccess"},
    ):
        assert again.draft(made)[0] == ours.draft(made)[0]
