"""Requests to `$CONTROL/dynamic-security/v1`: generated ones, and mosquitto's plugin as the one who answers."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
from pathlib import Path
from typing import Any, Self

from broker.auth.dynamic_security.entities import has
from broker.auth.dynamic_security.state import State
from broker.auth.password_hash import new_hash
from broker.wire.packets import Connack, Connect, Publish, Suback, Subscribe, Subscription, encode
from tests.support.front_ends import program
from tests.support.raw_client import RawClient, wait_until

REQUEST_TOPIC = b"$CONTROL/dynamic-security/v1"
RESPONSE_TOPIC = REQUEST_TOPIC + b"/response"
PLUGIN = Path("/usr/lib/x86_64-linux-gnu/mosquitto_dynamic_security.so")
ADMIN, ADMIN_PASSWORD = "the admin", "the admin's password"

Command = dict[str, Any]


class Administrator(RawClient):
    """A client that may send requests, and reads the answers."""

    def __init__(
        self,
        port: int,
        user: str = ADMIN,
        password: str = ADMIN_PASSWORD,
        version: int = 5,
        client_identifier: str = "",
    ) -> None:
        super().__init__(port, version)
        self.socket.sendall(
            encode(Connect(version, client_identifier.encode(), user_name=user, password=password.encode()), version)
        )
        answer = self.read()
        assert isinstance(answer, Connack), answer
        assert answer.reason == 0, answer
        self.send(Subscribe(1, (Subscription(RESPONSE_TOPIC, 1),)))
        answer = self.read()
        assert isinstance(answer, Suback), answer

    def request(self, payload: bytes) -> Any:
        """Send a request as it is, and return what was answered."""
        self.send(Publish(REQUEST_TOPIC, payload))
        answer = self.read()
        assert isinstance(answer, Publish), answer
        assert answer.topic == RESPONSE_TOPIC
        return json.loads(answer.payload)["responses"]

    def ask(self, *commands: Command) -> list[Command]:
        """Send commands, and return their answers."""
        answers: list[Command] = self.request(json.dumps({"commands": commands}).encode())
        return answers


def start_file(**more: Any) -> bytes:
    """A dynamic-security.json with one administrator."""
    stored = new_hash(ADMIN_PASSWORD.encode(), "sha512-pbkdf2", 1).decode().split("$")
    kinds = ("publishClientSend", "publishClientReceive", "subscribePattern")
    return json.dumps({
        "clients": [{"username": ADMIN, "password": stored[4], "salt": stored[3], "iterations": int(stored[2]),
                     "roles": [{"rolename": "the admin's"}]}],
        "roles": [{"rolename": "the admin's", "acls": [
            {"acltype": kind, "topic": "$CONTROL/dynamic-security/#", "allow": True} for kind in kinds]}],
        "defaultACLAccess": {"publishClientSend": False, "publishClientReceive": True, "subscribe": False,
                             "unsubscribe": True},
        **more}).encode()  # fmt: skip


class Mosquitto:
    """mosquitto with its plugin, which begins with a file."""

    def __init__(self, folder: Path, start: bytes) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.file = folder / "dynamic-security.json"
        self.file.write_bytes(start)
        user = "user root\n" if os.geteuid() == 0 else ""
        (folder / "m.conf").write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous false\nplugin {PLUGIN}\n"
            f"plugin_opt_config_file {self.file}\n{user}",
            encoding="utf-8",
        )
        self._said = folder / "m.log"
        with self._said.open("wb") as log:
            self._process = subprocess.Popen(
                [program("mosquitto"), "-c", str(folder / "m.conf")], stdout=log, stderr=log
            )

    def __enter__(self) -> Self:
        wait_until(lambda: "running" in self._said.read_text() or self._process.poll() is not None, "mosquitto")
        assert self._process.poll() is None, self._said.read_text()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


# Generated commands -------------------------------------------------------------------------------------------------

USERS = ("ann", "bob", "zoë", "d d")
GROUPS = ("staff", "guests", "x/y")
ROLES = ("reader", "writer", "%c", "r")
KINDS = (
    "publishClientSend",
    "publishClientReceive",
    "subscribeLiteral",
    "subscribePattern",
    "unsubscribeLiteral",
    "unsubscribePattern",
    "publishclientsend",
    "subscribe",
    "nothing",
)
TOPICS = ("a", "a/b", "a/+", "a/#", "#", "+/b", "$SYS/#", "b", "/", "a/b/c", "a+", "#/a", "")
TEXTS = ("", "a text", 'with "quotes" and ü', "\x01")
WRONG: tuple[Any, ...] = (None, 1, True, [], {}, "")
NAMED = {"username": USERS, "groupname": GROUPS, "rolename": ROLES}
FIELDS = {
    "createClient": "username password? clientid? textname? textdescription? roles? groups?",
    "deleteClient": "username", "getClient": "username", "listClients": "verbose? count? offset?",
    "modifyClient": "username password? clientid? textname? textdescription? roles? groups?",
    "setClientPassword": "username password", "setClientId": "username clientid?", "enableClient": "username",
    "disableClient": "username", "addClientRole": "username rolename priority?",
    "removeClientRole": "username rolename",
    "addGroupClient": "groupname username priority?", "removeGroupClient": "groupname username",
    "addGroupRole": "groupname rolename priority?", "removeGroupRole": "groupname rolename",
    "createGroup": "groupname textname? textdescription? roles?", "deleteGroup": "groupname", "getGroup": "groupname",
    "listGroups": "verbose? count? offset?", "modifyGroup": "groupname textname? textdescription? roles? clients?",
    "setAnonymousGroup": "groupname", "getAnonymousGroup": "",
    "createRole": "rolename textname? textdescription? acls?", "deleteRole": "rolename", "getRole": "rolename",
    "listRoles": "verbose? count? offset?", "modifyRole": "rolename textname? textdescription? acls?",
    "addRoleACL": "rolename acltype topic priority? allow?", "removeRoleACL": "rolename acltype topic",
    "setDefaultACLAccess": "defaults", "getDefaultACLAccess": "", "unheardOf": "username?",
}  # fmt: skip
MAKING = ("createClient", "createGroup", "createRole", "addRoleACL", "addClientRole", "addGroupRole", "addGroupClient")


def command(draw: random.Random, wrong: float = 0.04) -> Command:
    """Return a command; each of its fields is of another kind, or left out, with the chance `wrong`."""
    name = draw.choice(MAKING) if draw.random() < 0.5 else draw.choice(list(FIELDS))
    made: Command = {"command": name}
    for word in FIELDS[name].split():
        field = word.rstrip("?")
        if word.endswith("?") and draw.random() < 0.5:
            continue
        if draw.random() < wrong:
            if draw.random() < 0.5:
                made["acls" if field == "defaults" else field] = draw.choice(WRONG)
            continue
        made["acls" if field == "defaults" else field] = _value(draw, field)
    if draw.random() < 0.2:
        made["correlationData"] = draw.choice(("c 1", "ü", ""))
    return made


def _value(draw: random.Random, field: str) -> Any:
    if field in NAMED:
        return draw.choice(NAMED[field])
    if field == "roles":
        return _parts(draw, "rolename")
    if field == "groups":
        return _parts(draw, "groupname")
    if field == "clients":
        return _parts(draw, "username")
    if field == "acls":
        return rules(draw, KINDS, draw.randrange(5))
    if field == "defaults":
        return [{"acltype": draw.choice(KINDS), "allow": draw.choice((True, False, 1))} for _ in range(2)]
    choices: dict[str, tuple[Any, ...]] = {
        "password": ("secret one", "another", ""), "clientid": ("c1", "c2", ""), "textname": TEXTS,
        "textdescription": TEXTS, "verbose": (True, False), "count": (0, 1, 2, -1, 1.7), "offset": (0, 1, 3, -2),
        "priority": (0, 1, 5, -1, -7, 2.9, "1"), "allow": (True, False, 1), "acltype": KINDS, "topic": TOPICS,
    }  # fmt: skip
    return draw.choice(choices[field])


def rules(draw: random.Random, kinds: tuple[str, ...], count: int) -> list[Command]:
    """Return access rules, one at most for a kind and topic."""
    found = [
        {
            "acltype": draw.choice(kinds),
            "topic": draw.choice(TOPICS) or "a",
            **{field: _value(draw, field) for field in ("priority", "allow")},
        }
        for _ in range(count)
    ]
    return list({(rule["acltype"].lower(), rule["topic"]): rule for rule in found}.values())


def _parts(draw: random.Random, field: str) -> list[Command]:
    names = draw.sample(NAMED[field], draw.randrange(3))
    return [{field: name, **({"priority": _value(draw, "priority")} if draw.random() < 0.5 else {})} for name in names]


def comparable(answers: list[Command]) -> list[Command]:
    """Return answers without what mosquitto 2.0 does not say, and 2.1 does: wildcards of a role, connections."""
    for answer in answers:
        data = answer.get("data", {})
        for part in [*data.values(), *data.get("roles", ()), *data.get("clients", ())]:
            if isinstance(part, dict):
                part.pop("allowwildcardsubs", None)
                part.pop("connections", None)
    return answers


DIFFERENT = {
    ("createClient", "Group not found"): "frees a client that stays in other groups, and ends or answers garbage later",
    ("createClient", "Internal error"): "the same",
    ("modifyClient", "'groups' contains an object with a 'groupname' that does not exist"): "leaves its groups out",
    ("modifyClient", "'groups' contains an object with an invalid 'groupname'"): "the same",
    ("modifyGroup", "'clients' contains an object with a 'username' that does not exist"): "leaves its clients out",
    ("modifyGroup", "'clients' contains an object with an invalid 'username'"): "the same",
    ("modifyGroup", "Role not found"): "has changed the texts then",
    ("modifyGroup", "'roles' not an array or missing/invalid rolename"): "the same",
    ("modifyClient", "Role not found"): "the same",
    ("modifyClient", "'roles' not an array or missing/invalid rolename"): "the same",
    ("createRole", "Empty rolename"): "makes such a role",
    ("addRoleACL", "Invalid ACL topic"): "takes an empty topic",
    ("removeRoleACL", "Invalid ACL topic"): "looks for an empty topic",
    ("deleteGroup", "Deleting the anonymous group is forbidden"): "deletes it, and goes on using it",
}
"""Commands that mosquitto 2.0.11 answers, or executes, in another way than 2.1: our answer, and what it does."""


def ends_badly(state: State, made: Command) -> bool:
    """Return whether mosquitto 2.0.11 reads memory that it has freed after a command that deletes.

    It does not know who got a role as he was made, or in a modifyGroup: who has it then has what is no more.
    """
    if made["command"] == "deleteRole":
        role = state.roles.get(str(made.get("rolename")))
        return role is not None and any(
            has(one.roles, role) for one in (*state.clients.values(), *state.groups.values())
        )
    if made["command"] == "deleteGroup":
        group = state.groups.get(str(made.get("groupname")))
        return group is not None and bool(group.roles)
    return False
