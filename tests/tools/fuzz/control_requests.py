"""Requests on $CONTROL/dynamic-security/v1, and the file that it begins with: any bytes are answered, or named wrong.

An input is a request; what it changes is read back from what is stored of it.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Hashable

from broker.auth.dynamic_security.commands import (
    Commands,
    RequestError,
    commands_of,
    plain_passwords,
    refusal,
    response_of,
)
from broker.auth.dynamic_security.decisions import Decisions
from broker.auth.dynamic_security.entities import entity_of, value_of
from broker.auth.dynamic_security.start_file import StartFileError, state_of
from broker.auth.dynamic_security.state import Draft, State
from tests.support.dynamic_security import TOPICS, USERS, command
from tests.tools.fuzz.mutate import mutated
from tests.tools.fuzz.target import Target

TOKENS = (
    b"\\u0000",
    b"\\ud800",
    b"1e999",
    b"-0",
    b"[[[[",
    b'"',
    b"{",
    b"null",
    b"99999999999999999999",
    b"\xff",
    b"%c",
    b"NaN",
    b"/",
    b"#",
)
SECRETS = ("secret one", "another")


def make(draw: random.Random) -> bytes:
    """Return a request of a few commands, or one of those damaged, or a file."""
    if draw.random() < 0.1:
        made = command(draw, 0.2)
        data = json.dumps({kind: [made] for kind in ("clients", "groups", "roles")}).encode()
    else:
        data = json.dumps({"commands": [command(draw, 0.1) for _ in range(draw.randrange(12))]}).encode()
    if draw.random() < 0.3:
        at = draw.randrange(len(data) + 1)
        data = data[:at] + draw.choice(TOKENS) + data[at:]
    return mutated(draw, data) if draw.random() < 0.3 else data


def check(data: bytes) -> Hashable:
    """Execute it, store it, read it back, and decide by it."""
    try:
        state_of(data)
    except StartFileError as error:
        assert str(error).isprintable()
        assert not any(secret in str(error) for secret in SECRETS)
    try:
        commands = commands_of(data)
    except RequestError as error:
        return json.loads(refusal(str(error)))["responses"][0]["error"]
    for setting in plain_passwords(commands):
        setting["password"] = "$7$a hash"
    marks = itertools.count()
    draft = Draft(State(), lambda: str(next(marks)))
    answers = Commands(draft, lambda _user: []).execute(commands)
    response = response_of(answers)
    assert not any(
        secret.encode() in response and f'"{secret}"'.encode() in response and secret not in _named(commands)
        for secret in SECRETS
    )
    stored = State()
    for kind, name, entity in draft.changes:
        if entity is not None:
            again = entity_of(kind, json.loads(json.dumps(value_of(entity))))
            assert again == entity
            stored.put(kind, name, again)
    decisions = Decisions(stored)
    for user, topic in itertools.product((*USERS, None), TOPICS):
        decisions.may_publish(user, b"c1", topic.encode())
        decisions.may_subscribe(user, b"c1", topic.encode())
        decisions.receives_all_of(user, b"c1", topic.encode())
    return tuple(sorted({str(answer.get("error")) for answer in answers if len(str(answer.get("error"))) < 60}))


def _named(commands: list[object]) -> str:
    """Everything that was said but passwords."""
    return json.dumps(
        [
            {key: value for key, value in one.items() if key != "password"} if isinstance(one, dict) else one
            for one in commands
        ]
    )


TARGET = Target("control_requests", 1500, make, check)
