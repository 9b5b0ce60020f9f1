"""Generated ACL files of mosquitto's, clients and topics; and what mosquitto lets these clients do."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from broker.auth.acl_lines import AclLineError, AclLines
from broker.auth.principal import Principal
from broker.auth.rule_chain import RuleChain
from broker.auth.rule_set import RuleSet
from broker.wire.packets import Connack, Connect, Pingreq, Pingresp, Publish, Suback, Subscribe, encode, subscription
from tests.support.front_ends import program
from tests.support.raw_client import RawClient

WITNESS = "witness of all"
# It sees and says everything: a grant in a user's own list ends the search before any pattern.
WITNESS_LINES = "".join(f"topic readwrite {name}\n" for name in ("#", "$a/#", "$/#", "$ab/#"))
WATCHED = (b"#", b"$a/#", b"$/#", b"$ab/#")

LEVELS = ("a", "a", "b", "b", "ab", "", "é", "x y", "ann", "c1", "%c", "%u")
FIRST_LEVELS = (*LEVELS, "$a", "$", "$ab", "a$")
NAMES = ("ann", "ann", "bob", "a b", "é", "c1", "%u", "$a")
IDENTIFIERS = ("c1", "c2", "ann", "é", "x y", "%c", "$a")
DANGEROUS = ("a+", "#", "+", "c#1")
CLIENTS, TOPICS = 6, 30  # that are tried with one file
ACCESS = ("read ", "write ", "readwrite ", "deny ", "")
MISTAKES = (
    "topic",
    "topic ",
    "user",
    "user ",
    "pattern",
    "topics a",
    "topic\ta",
    " # a",
    "topic red a",
    "topic a b",
    "topic read a#",
    "topic read a/#/b",
    "pattern read +a",
    "topic write a//#b",
    "\ttopic read a",
    "pattern deny",
    "topic deny",
    "TOPIC a",
    "topic READ a",
    "user\tann",
    "topic a/b\tc",
    "topic  a",
    "topic  read  a b ",
    "pattern %c",
    "topic #",
    "topic read read",
    "topic deny\ta",
)


class Client(NamedTuple):
    """Who asks.

    Attributes:
        user_name: None for none.
        identifier: its client identifier.
    """

    user_name: str | None
    identifier: str

    @property
    def principal(self) -> Principal:
        """The same as the rules are asked."""
        return Principal(self.user_name, self.identifier.encode(), "127.0.0.1", 0)


class Answers(NamedTuple):
    """What is allowed: (number of a client, number of a topic)."""

    publish: set[tuple[int, int]]
    read: set[tuple[int, int]]


def topic_filter(draw: random.Random, wildcards: float) -> str:
    """Return a topic filter; each level is + with half that probability, and there is a # at the end with it."""
    levels = [draw.choice(LEVELS if number else FIRST_LEVELS) for number in range(draw.randint(0, 3))]
    levels = ["+" if draw.random() < wildcards / 2 else level for level in levels]
    if draw.random() < wildcards:
        levels.append("#")
    found = "/".join(levels)
    # Blanks at the ends are none of a line's words.
    return found if found.strip() == found and found else "a"


def acl_file(draw: random.Random, *, faulty: bool = False) -> bytes:
    """Return an ACL file; `faulty`: something in it may be no line of mosquitto's."""
    lines = []
    for _ in range(draw.choice((0, 1, 2, 4, 8, 16, 16))):
        kind = draw.random()
        blank = draw.choice((" ", " ", " ", "  "))
        end = draw.choice(("", "", "", " ", "\t", "\r"))
        if kind < 0.15:
            lines.append(draw.choice(("", "# a comment", "#topic read a", "   ", "\t")))
        elif kind < 0.3:
            lines.append(f"user{blank}{draw.choice((*NAMES, *DANGEROUS[:1]))}{end}")
        else:
            is_pattern = kind < 0.55
            word = "pattern" if is_pattern else draw.choice(("topic", "topic", " topic"))
            access = draw.choice(ACCESS)
            found = topic_filter(draw, 0.4)
            if not access and " " in found:
                access = "readwrite "
            lines.append(f"{word}{blank}{access}{draw.choice(('', ' '))}{found}{end}")
    if faulty:
        lines.insert(draw.randint(0, len(lines)), draw.choice(MISTAKES))
    text = (
        "\n".join((f"user {WITNESS}", WITNESS_LINES + "user ann", *lines))
        if draw.random() < 0.5
        else "\n".join((*lines, f"user {WITNESS}", WITNESS_LINES))
    )
    return text.encode()


def clients(draw: random.Random, count: int) -> list[Client]:
    """Return clients, each with a client identifier of its own."""
    identifiers = draw.sample((*IDENTIFIERS, *DANGEROUS), count)
    return [Client(draw.choice((None, "", *NAMES, *NAMES, *DANGEROUS)), identifier) for identifier in identifiers]


def topics(draw: random.Random, count: int, data: bytes, asking: Sequence[Client]) -> list[str]:
    """Return topic names, each once, most of them such that lines of a file are about them."""
    written = [
        line.split(maxsplit=2)[-1].rstrip()
        for line in data.decode().replace(WITNESS_LINES, "").splitlines()
        if line.lstrip().startswith(("topic", "pattern"))
    ]
    found: dict[str, None] = {}
    for _ in range(count):
        levels = (draw.choice(written) if written and draw.random() < 0.9 else topic_filter(draw, 0.0)).split("/")
        if levels[-1] == "#":
            levels[-1:] = [draw.choice(LEVELS) for _ in range(draw.randint(0, 2))]
        for at, level in enumerate(levels):
            someone = draw.choice(asking)
            if level == "+":
                levels[at] = draw.choice(LEVELS)
            elif level == "%c" and draw.random() < 0.8:
                levels[at] = someone.identifier
            elif level == "%u" and draw.random() < 0.8:
                levels[at] = someone.user_name or ""
            elif draw.random() < 0.1:
                levels[at] = draw.choice(LEVELS)
        name = "/".join(levels)
        if name and not set(name) & set("+#"):
            found[name] = None
    return [*found]


def ours(data: bytes, asking: Sequence[Client], names: Sequence[str]) -> Answers:
    """Return what our rules answer. Raises AclLineError."""
    lines = AclLines(data, "acl.conf")
    chain = RuleChain([RuleSet(lines.rules, lines)])
    pairs = [
        (number, at, client.principal, name.encode())
        for number, client in enumerate(asking)
        for at, name in enumerate(names)
    ]
    return Answers(
        {(number, at) for number, at, principal, name in pairs if chain.may_publish(principal, name, 0, False)},
        {(number, at) for number, at, principal, name in pairs if chain.may_read(principal, name)},
    )


def is_ours(data: bytes) -> bool:
    """Return whether our parser takes a file."""
    try:
        AclLines(data, "acl.conf")
    except AclLineError:
        return False
    return True


class Mosquitto:
    """mosquitto with an ACL file, in a process of its own.

    Attributes:
        runs: it has taken the file.
        said: what it wrote until it ran, or ended.
    """

    def __init__(self, folder: Path, data: bytes) -> None:
        (folder / "acl.conf").write_bytes(data)
        (folder / "acl.conf").chmod(0o600)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        user = "user root\n" if os.geteuid() == 0 else ""
        (folder / "m.conf").write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\nacl_file {folder / 'acl.conf'}\nsys_interval 0\n"
            f"set_tcp_nodelay true\n{user}"
        )
        self.process = subprocess.Popen(
            [program("mosquitto"), "-c", str(folder / "m.conf")], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        assert self.process.stderr is not None
        self.said = ""
        self.runs = False
        for line in self.process.stderr:
            self.said += line.decode(errors="replace")
            if b" running" in line:
                self.runs = True
                break

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stderr is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stderr.close()

    def answers(self, asking: Sequence[Client], names: Sequence[str]) -> Answers:
        """Have each client publish to each topic and subscribe to all; return what came through."""
        assert self.runs, self.said
        return broker_answers(self.port, asking, names)


def broker_answers(port: int, asking: Sequence[Client], names: Sequence[str]) -> Answers:
    """Have each client publish to each topic and subscribe to all at a broker; return what came through."""
    witness = _connected(port, Client(WITNESS, "the witness"))
    others = [_connected(port, client) for client in asking]
    publish, read = set(), set()
    _subscribe(witness)
    for number, client in enumerate(others):
        client.send(*(Publish(name.encode(), b"%d %d" % (number, at)) for at, name in enumerate(names)))
        _answered(client)
    for message in _answered(witness):
        number, at = map(int, message.payload.split())
        assert message.topic == names[at].encode(), message
        publish.add((number, at))
    for client in others:
        _subscribe(client)
    witness.send(*(Publish(name.encode(), b"%d" % at) for at, name in enumerate(names)))
    _answered(witness)
    for number, client in enumerate(others):
        for message in _answered(client):
            assert message.topic == names[int(message.payload)].encode(), message
            read.add((number, int(message.payload)))
    for client in (witness, *others):
        client.socket.close()
    return Answers(publish, read)


def _connected(port: int, client: Client) -> RawClient:
    raw = RawClient(port, 4)
    raw.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.socket.sendall(encode(Connect(4, client.identifier.encode(), user_name=client.user_name), 4))
    answer = raw.read()
    assert isinstance(answer, Connack), (client, answer)
    assert answer.reason == 0, (client, answer)
    return raw


def _subscribe(client: RawClient) -> None:
    client.send(Subscribe(1, tuple(subscription(watched, 0) for watched in WATCHED)))
    while not isinstance(answer := client.read(), Suback):
        assert isinstance(answer, Publish), answer


def _answered(client: RawClient) -> list[Publish]:
    """Return what came before the answer to a PINGREQ: all that was there for the client by then."""
    client.send(Pingreq())
    found = []
    while not isinstance(answer := client.read(), Pingresp):
        assert isinstance(answer, Publish), answer
        found.append(answer)
    return found


def difference(data: bytes, asking: Sequence[Client], names: Sequence[str], theirs: Answers) -> list[str]:
    """Return where our answers are others than those of mosquitto, each in words."""
    own = ours(data, asking, names)
    return [
        f"{action} {asking[number]} {names[at]!r}: mosquitto {'allows' if (number, at) in their else 'refuses'} it"
        for action, their, our in (("publish", theirs.publish, own.publish), ("read", theirs.read, own.read))
        for number, at in sorted(their ^ our)
    ]


def compare(folder: Path, draw: random.Random) -> tuple[int, int]:
    """Put a file to mosquitto and to our rules, which must agree; return how many answers, how many of them yes."""
    data, asking = acl_file(draw), clients(draw, CLIENTS)
    names = topics(draw, TOPICS, data, asking)
    with Mosquitto(folder, data) as mosquitto:
        assert mosquitto.runs, (data, mosquitto.said)
        theirs = mosquitto.answers(asking, names)
    assert difference(data, asking, names, theirs) == [], data.decode()
    return 2 * len(asking) * len(names), len(theirs.publish) + len(theirs.read)


def compare_faulty(folder: Path, draw: random.Random) -> bool:
    """Put a file that may have a fault in it to both, which must agree; return whether they take it."""
    data = acl_file(draw, faulty=True)
    with Mosquitto(folder, data) as mosquitto:
        assert mosquitto.runs == is_ours(data), (data.decode(), mosquitto.said)
        return mosquitto.runs
