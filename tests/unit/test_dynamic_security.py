"""Clients, groups and roles as one machine: what mosquitto 2.0 does not do, or in another way."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.auth.acl import FailClosed, Grant
from broker.auth.acl_lines import AclLines
from broker.auth.chain import members_of
from broker.auth.dynamic_security.authenticator import DynamicRights
from broker.auth.dynamic_security.commands import Commands, commands_of, plain_passwords
from broker.auth.dynamic_security.decisions import Decisions
from broker.auth.dynamic_security.entities import Client, entity_of, value_of
from broker.auth.dynamic_security.logins import REFUSED, UNKNOWN, hash_wanted
from broker.auth.dynamic_security.start_file import StartFileError, first_file, state_of
from broker.auth.dynamic_security.state import Draft, State
from broker.auth.password_hash import new_hash
from broker.auth.principal import Principal
from broker.auth.rule_chain import RuleChain
from broker.auth.rule_set import RuleSet
from broker.config.authenticator import DynamicSecurityTable
from broker.config.authorizer import RulesFileTable
from broker.config.listener import Listener
from broker.worker.access import acl_of, logins_of
from tests.support.embedded import CONFIG

MARKS = itertools.count(1)


def do(state: State, *commands: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str | None]]:
    """Execute commands; returns the answers and who is sent away."""
    draft = Draft(state, lambda: str(next(MARKS)))
    answers = Commands(draft, lambda _user: []).execute(commands_of(json.dumps({"commands": commands}).encode()))
    for kind, name, entity in draft.changes:
        state.put(kind, name, None if entity is None else entity_of(kind, value_of(entity)))
    return answers, list(draft.kicked)


def rule(kind: str, topic: str, allow: bool = True, priority: int = 0) -> dict[str, Any]:
    return {"acltype": kind, "topic": topic, "allow": allow, "priority": priority}


def with_role(*rules: dict[str, Any], **role: Any) -> State:
    state = State()
    do(
        state,
        {"command": "createRole", "rolename": "r", "acls": rules, **role},
        {"command": "createClient", "username": "u", "roles": [{"rolename": "r"}]},
    )
    return state


def test_what_is_made_again_is_not_what_was_deleted() -> None:
    state = with_role(rule("publishClientSend", "a"))
    assert Decisions(state).may_publish("u", b"c", b"a").allowed
    _, kicked = do(state, {"command": "deleteRole", "rolename": "r"})
    assert kicked == ["u"]
    do(state, {"command": "createRole", "rolename": "r", "acls": [rule("publishClientSend", "a")]})
    assert not Decisions(state).may_publish("u", b"c", b"a").allowed
    (answer,), _ = do(state, {"command": "getClient", "username": "u"})
    assert answer["data"]["client"]["roles"] == []


def test_a_request_changes_nothing_until_its_changes_are_put() -> None:
    state = State()
    draft = Draft(state, lambda: "1")
    Commands(draft, lambda _user: []).execute(commands_of(b'{"commands":[{"command":"createRole","rolename":"r"}]}'))
    assert draft.roles
    assert not state.roles


def test_a_command_that_fails_leaves_nothing_behind() -> None:
    state = with_role()
    before = state.clients["u"]
    answers, kicked = do(
        state,
        {"command": "modifyClient", "username": "u", "textname": "t", "groups": [{"groupname": "none"}]},
        {"command": "createClient", "username": "v", "groups": [{"groupname": "none"}]},
    )
    assert all("error" in answer for answer in answers)
    assert state.clients == {"u": before}
    assert kicked == []


@pytest.mark.parametrize(("topic_filter", "rules", "allowed"), [
    (b"$SYS/#", [rule("subscribePattern", "#")], None),
    (b"$SYS/a", [rule("subscribePattern", "$SYS/#")], True),
    (b"$CONTROL/x", [rule("subscribePattern", "$CONTROL/#")], True),
    (b"a/#", [rule("subscribePattern", "a/#")], True),
    (b"a", [rule("subscribePattern", "a/#")], True),
    (b"a/+", [rule("subscribePattern", "a/b")], None),
    (b"+/b", [rule("subscribePattern", "+/+")], True),
    (b"c1/u", [rule("subscribePattern", "%c/%u")], True),
    (b"c2/u", [rule("subscribePattern", "%c/%u")], None),
    (b"%c/u", [rule("subscribePattern", "%c/u")], None),
    (b"a", [rule("subscribePattern", "#"), rule("subscribeLiteral", "a", allow=False)], False),
    (b"a", [rule("subscribePattern", "a", priority=1), rule("subscribePattern", "#", allow=False)], True),
    (b"a", [rule("subscribePattern", "a"), rule("subscribePattern", "#", allow=False, priority=1)], False),
])  # fmt: skip
def test_subscriptions_are_allowed_by_the_first_rule_that_covers_them(
    topic_filter: bytes, rules: list[dict[str, Any]], allowed: bool | None
) -> None:
    assert Decisions(with_role(*rules)).may_subscribe("u", b"c1", topic_filter).allowed is allowed


def test_a_role_without_wildcards_refuses_them() -> None:
    decisions = Decisions(with_role(rule("subscribePattern", "#"), allowwildcardsubs=False))
    assert decisions.may_subscribe("u", b"c", b"a/b").allowed
    assert decisions.may_subscribe("u", b"c", b"a/#").allowed is False
    assert decisions.may_unsubscribe("u", b"c", b"a/#").allowed


def test_control_topics_are_never_allowed_by_default() -> None:
    state = with_role()
    do(
        state,
        {
            "command": "setDefaultACLAccess",
            "acls": [
                {"acltype": kind, "allow": True} for kind in ("publishClientSend", "publishClientReceive", "subscribe")
            ],
        },
    )
    decisions = Decisions(state)
    for name, allowed in ((b"$CONTROL/dynamic-security/v1", None), (b"a", True)):
        assert decisions.may_publish("u", b"c", name).allowed is allowed
        assert decisions.may_receive("u", b"c", name).allowed is allowed
        assert decisions.may_subscribe("u", b"c", name).allowed is allowed
        assert decisions.receives_all_of("u", b"c", name) is bool(allowed)
    assert decisions.may_publish("stranger", b"c", b"a").allowed is None


@pytest.mark.parametrize("name", ["c/d", "c+", "#", ""])
def test_a_client_identifier_is_no_part_of_a_topic_filter(name: str) -> None:
    decisions = Decisions(with_role(rule("publishClientSend", "in/%c"), rule("publishClientSend", "%u/#", priority=1)))
    assert not decisions.may_publish("u", name.encode(), f"in/{name}".encode()).allowed
    assert decisions.may_publish("u", b"c", b"in/c").allowed
    assert decisions.may_publish("u", b"c", b"u/x").allowed


def test_all_of_a_filter_is_received_if_a_rule_covers_it_and_nothing_is_denied_before() -> None:
    state = with_role(rule("publishClientReceive", "a/#", priority=1), rule("publishClientReceive", "b", allow=False))
    decisions = Decisions(state)
    assert decisions.receives_all_of("u", b"c", b"a/+")
    assert not decisions.receives_all_of("u", b"c", b"c")
    assert not decisions.receives_all_of("stranger", b"c", b"a/+")


def test_who_has_no_name_has_the_roles_of_the_anonymous_group() -> None:
    state = with_role(rule("publishClientSend", "a"))
    decisions = Decisions(state)
    assert not decisions.may_publish(None, b"c", b"a").allowed
    _, kicked = do(
        state,
        {"command": "createGroup", "groupname": "g", "roles": [{"rolename": "r"}]},
        {"command": "setAnonymousGroup", "groupname": "g"},
    )
    assert kicked == [None]
    assert decisions.may_publish(None, b"c", b"a").allowed
    (answer,), _ = do(state, {"command": "deleteGroup", "groupname": "g"})
    assert answer["error"] == "Deleting the anonymous group is forbidden"
    _, kicked = do(state, {"command": "removeRoleACL", "rolename": "r", "acltype": "publishClientSend", "topic": "a"})
    assert set(kicked) == {None, "u"}


def test_details_are_counts() -> None:
    state = with_role()
    (answer,), _ = do(state, {"command": "getDetails", "correlationData": "x"})
    assert answer == {
        "command": "getDetails",
        "correlationData": "x",
        "data": {"clientCount": 1, "groupCount": 0, "roleCount": 1, "changeIndex": 1},
    }


def test_there_are_32_commands() -> None:
    assert len(Commands(Draft(State(), str), lambda _user: [])._handlers) == 32


def test_only_passwords_that_are_set_are_hashed() -> None:
    commands = commands_of(
        json.dumps(
            {
                "commands": [
                    {"Command": "CREATEclient", "Password": ""},
                    {"command": "setClientPassword", "password": "p"},
                    {"command": "modifyClient", "password": ""},
                    {"command": "modifyClient", "password": 1},
                    {"command": "listClients", "password": "p"},
                    1,
                ]
            }
        ).encode()
    )
    assert [command["command"] for command in plain_passwords(commands)] == ["CREATEclient", "setClientPassword"]


def test_names_have_a_length() -> None:
    (answer,), _ = do(State(), {"command": "createClient", "username": "ß" * 5001})
    assert answer["error"] == "Username too long"


def test_a_client_shows_no_hash() -> None:
    client = Client(name="u", hashed="$7$secret")
    assert "secret" not in repr(client)
    assert "secret" not in f"{client}"


def test_the_first_file_is_a_start() -> None:
    state = state_of(first_file("ann", new_hash(b"p", "sha512-pbkdf2", 1).decode()))
    decisions = Decisions(state)
    assert decisions.may_publish("ann", b"c", b"$CONTROL/dynamic-security/v1").allowed
    assert decisions.may_subscribe("ann", b"c", b"$SYS/#").allowed
    assert not decisions.may_publish("ann", b"c", b"a").allowed
    assert isinstance(hash_wanted(state, "ann", "c"), bytes)
    assert hash_wanted(state, "bob", "c") == UNKNOWN
    do(state, {"command": "disableClient", "username": "ann"})
    assert hash_wanted(state, "ann", "c") == REFUSED


@pytest.mark.parametrize(("file", "error"), [
    (b"{", "it is no JSON: line 1, "), (b"[]", "it is no JSON object"), (b'{"clients":{}}', "'clients' is no array"),
    (b'{"roles":[{}]}', "one of 'roles' has no 'rolename'"),
    (b'{"clients":[{"username":"u","encoded_password":"plain"}]}', "the password of the client 'u': no hash"),
    (b'{"clients":[{"username":"u\\u0001"}]}', "has control characters"),
])  # fmt: skip
def test_a_file_that_cannot_be_used_says_why(file: bytes, error: str) -> None:
    with pytest.raises(StartFileError) as raised:
        state_of(file)
    assert error in str(raised.value)


def test_what_is_left_open_is_for_the_authorizers() -> None:
    state = with_role(rule("publishClientSend", "a"), rule("publishClientSend", "b", allow=False))
    rights = DynamicRights(state)
    known, stranger = (Principal(name, b"c", None, 0) for name in ("u", "stranger"))
    for principal, topic, allowed in (
        (known, b"a", True),
        (known, b"b", False),
        (known, b"c", False),
        (stranger, b"a", False),
    ):
        assert rights.may_publish(principal, topic, 0, False) is allowed
    rights.leave_open_to(RuleChain([RuleSet(AclLines(b"pattern readwrite +\n", "acl").rules, AclLines(b"", "acl"))]))
    for principal, topic, allowed in (
        (known, b"a", True),
        (known, b"b", False),
        (known, b"c", True),
        (stranger, b"a", True),
        (stranger, b"a/b", False),
    ):
        assert rights.may_publish(principal, topic, 0, False) is allowed
    assert rights.may_subscribe(stranger, b"a", 0) == Grant.WHOLE
    assert rights.may_subscribe(stranger, b"a/b", 0) == Grant.REFUSED
    assert rights.may_read(known, b"a/b"), "by default"
    assert not rights.may_read(stranger, b"a/b")
    assert rights.explain(known, "publish", b"b", 0, False).by == (
        "dynamic_security: role 'r' publishClientSend deny b"
    )


def test_a_listener_that_names_no_authorizers_leaves_nothing_open_to_everybody(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nallow = ["publish", "subscribe"]\ntopics = ["#"]\n')
    config = msgspec.structs.replace(
        CONFIG,
        listen=(),
        listener=tuple(Listener(address="tcp://127.0.0.1:0", authorizers=names) for names in ((), ("rules",))),
        authenticator=(DynamicSecurityTable(),),
        authorizer=(RulesFileTable(file=str(rules), name="rules"),),
    )
    members = members_of(config)
    acl, _ = acl_of(config, None, members)
    logins = logins_of(members)
    assert logins is not None
    do(
        logins.state,
        {"command": "createRole", "rolename": "r", "acls": [rule("subscribePattern", "a")]},
        {"command": "createClient", "username": "u", "roles": [{"rolename": "r"}]},
    )
    rights = FailClosed(acl)
    for name in ("u", "stranger"):
        free, asked = (Principal(name, b"c", None, listener) for listener in (0, 1))
        assert not rights.may_publish(free, b"x", 0, False)
        assert rights.may_subscribe(free, b"x", 0) == Grant.REFUSED
        assert rights.may_publish(asked, b"x", 0, False)
        assert rights.may_subscribe(asked, b"x", 0) == Grant.WHOLE
        # A rules file gives shared subscriptions and replays a right of their own; mosquitto's roles know none.
        assert rights.may_subscribe(asked, b"$share/g/x", 0) == Grant.REFUSED
        assert rights.may_subscribe(asked, b"$share/g/a", 0) == (Grant.WHOLE if name == "u" else Grant.REFUSED)
