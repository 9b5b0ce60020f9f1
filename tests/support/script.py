"""Scripts of packets: what tests/conversations/*.txt say, and what of them is sent and compared.

A line is `name> PACKET ...` (the client sends), `name< PACKET ...` (the client must receive exactly this next) or

    name< closed          the broker closed this connection, and everything before that has been read
    name< nothing         a PINGREQ is answered before anything else arrives
    name> hex 10 0f ...   raw bytes            name> cut     the network connection breaks
    name< hex 20 02 ...   the next packet has exactly these bytes
    wait 1500ms           virtual time moves   (such a script runs in memory only)
    setting key=value     a setting of [mqtt] or [limits] that the script runs with
    ended reason=2        so many connections have ended for this reason by now
    dropped reason=2      so many messages have been dropped for this reason by now
    refused reason=2      so many topic filters have been refused with this reason code by now

`[5.0]` or `[3.1.1]` before a line keeps it to that version; `versions 5.0` in front keeps the whole script to it.
A word `key=value` sets a property or a field, see _OPTIONS. Of a packet received, what the line names is compared;
`with=a,b` and `without=a,b` name properties that it has to have or must not have, whatever their value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.config.loader import SETTINGS
from broker.wire.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
    encode,
    subscription,
)
from broker.wire.properties import PacketType
from broker.wire.reasons import Reason

VERSIONS = {"3.1": 3, "3.1.1": 4, "5.0": 5}
ANSWER_TIMEOUT_S = 20
INTEGERS = frozenset(
    {
        "session_expiry_interval",
        "receive_maximum",
        "maximum_packet_size",
        "topic_alias_maximum",
        "topic_alias",
        "message_expiry_interval",
        "subscription_identifier",
        "payload_format_indicator",
        "server_keep_alive",
        "request_response_information",
        "request_problem_information",
        "maximum_qos",
        "retain_available",
        "wildcard_subscription_available",
        "subscription_identifier_available",
        "shared_subscription_available",
    }
)
COUNTS = ("ended", "dropped", "refused")
BINARY = frozenset({"correlation_data", "authentication_data"})
ACKS = {
    "PUBACK": PacketType.PUBACK,
    "PUBREC": PacketType.PUBREC,
    "PUBREL": PacketType.PUBREL,
    "PUBCOMP": PacketType.PUBCOMP,
}


@dataclass
class Line:
    """One line of a script, as far as it is the same for all packets."""

    number: int
    name: str
    direction: str
    words: list[str]
    text: str
    options: dict[str, Any] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    arguments: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        properties: dict[str, Any] = {}
        for word in self.words[1:]:
            key, equals, value = word.partition("=")
            if not equals:
                self.arguments.append(word)
            elif key == "user_property":
                properties.setdefault("user_property", []).append(tuple(value.split(":")))
            elif key in INTEGERS:
                if key == "subscription_identifier" and self.direction == "<":
                    properties.setdefault(key, []).append(int(value))
                else:
                    properties[key] = int(value)
            elif key in BINARY:
                properties[key] = value.encode()
            elif key in (
                "content_type",
                "response_topic",
                "server_reference",
                "authentication_method",
                "assigned_client_identifier",
                "reason_string",
                "response_information",
            ):
                properties[key] = value
            else:
                self.options[key] = value
        self.properties = properties

    def number_of(self, key: str, default: int = 0) -> int:
        """Return an option as a number, decimal or 0x."""
        return int(self.options.get(key, str(default)), 0)


@dataclass
class Script:
    """A conversation read from a file."""

    path: Path
    versions: tuple[str, ...]
    lines: list[tuple[str | None, Line]]

    @property
    def needs_time(self) -> bool:
        """Whether it moves virtual time, or sees what only the memory runner shows."""
        return any(line.direction == "wait" for _, line in self.lines)

    @property
    def settings(self) -> dict[str, str]:
        """Flags for the configuration that the script asks for with `setting key=value`."""
        return {
            ("mqtt." if f"mqtt.{key}" in SETTINGS else "limits.") + key: value
            for _, line in self.lines
            if line.direction == "setting"
            for key, value in line.options.items()
        }


def load(path: Path) -> Script:
    """Read a script; a line that cannot be read fails here, with its number."""
    versions: tuple[str, ...] = ("3.1.1", "5.0")
    lines: list[tuple[str | None, Line]] = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        body = text.split("#! ")[0].strip()
        if not body or body.startswith("# "):
            continue
        if body.startswith("versions "):
            versions = tuple(body.split()[1:])
            continue
        only = None
        if match := re.match(r"\[([\d.]+)\]\s+", body):
            only, body = match[1], body[match.end() :]
        if match := re.match(r"wait (\d+)ms$", body):
            lines.append((only, Line(number, "", "wait", ["wait", f"ms={match[1]}"], text)))
        elif body.split()[0] in ("setting", *COUNTS):
            kind, *words = body.split()
            line = Line(number, "", kind, [kind], text)
            line.options = dict(word.split("=") for word in words)
            lines.append((only, line))
        else:
            match = re.match(r"(\w+)([<>])\s+(.+)$", body)
            assert match, f"{path.name}:{number}: {text}"
            lines.append((only, Line(number, match[1], match[2], match[3].split(), text)))
    return Script(path, versions, lines)


def build(line: Line, version: int, login: tuple[str, bytes] | None = None) -> bytes:
    """Return the packet that a `>` line sends.

    Args:
        login: user name and password of each CONNECT that names no user and no method.
    """
    kind, arguments, properties = line.words[0], line.arguments, line.properties
    if version < 5:
        properties = {}
    if kind == "hex":
        return bytes.fromhex("".join(line.words[1:]))
    if kind == "CONNECT":
        will = None
        if "will" in line.options:
            topic, _, payload = line.options["will"].partition(":")
            will_properties = (
                {"message_expiry_interval": line.number_of("will_expiry")} if ("will_expiry" in line.options) else {}
            )
            if "will_user" in line.options:
                will_properties["user_property"] = [tuple(line.options["will_user"].split(":"))]
            # fmt: off
            will = Will(topic.encode(), payload.encode(), line.number_of("will_qos"), "will_retain" in arguments,
                        will_properties if version == 5 else {}, line.number_of("will_delay") if version == 5 else 0)
            # fmt: on
        user = line.options.get("user")
        password = b"pw" if user else None
        if user is None and login is not None and "authentication_method" not in properties:
            user, password = login
        return encode(Connect(
            version, line.options.get("id", line.name).encode(), line.options.get("clean", "1") == "1",
            line.number_of("keep_alive"), will, user, password, properties, "bridge" in arguments),
            version)  # fmt: skip
    if kind == "PUBLISH":
        topic = b"" if arguments[0] == "-" else arguments[0].encode()
        payload = arguments[1].encode() if len(arguments) > 1 and arguments[1] not in ("retain", "dup") else b""
        if "repeat" in line.options:
            payload *= line.number_of("repeat")
        return encode(Publish(topic, payload, line.number_of("qos"), "retain" in arguments[1:], "dup" in arguments[1:],
                              line.number_of("id"), properties), version)  # fmt: skip
    if kind in ACKS:
        reason = Reason(int(arguments[1], 0)) if len(arguments) > 1 else Reason.SUCCESS
        return encode(Ack(ACKS[kind], int(arguments[0]), reason, properties), version)
    if kind == "SUBSCRIBE":
        subscriptions = []
        for argument in arguments[1:]:
            topic_filter, *options = argument.split(":")
            subscriptions.append(
                subscription(
                    topic_filter.encode(),
                    int(options[0]) if options else 0,
                    no_local="nl" in options,
                    retain_as_published="rap" in options,
                    retain_handling=next((int(option[2]) for option in options if option.startswith("rh")), 0),
                )
            )
        return encode(Subscribe(int(arguments[0]), tuple(subscriptions), properties), version)
    if kind == "UNSUBSCRIBE":
        filters = tuple(argument.encode() for argument in arguments[1:])
        return encode(Unsubscribe(int(arguments[0]), filters, properties), version)
    if kind == "PINGREQ":
        return encode(Pingreq(), version)
    if kind == "AUTH":
        return encode(Auth(Reason(int(arguments[0], 0)), properties), version)
    assert kind == "DISCONNECT", line.text
    return encode(Disconnect(Reason(int(arguments[0], 0)) if arguments else Reason.SUCCESS, properties), version)


def check(line: Line, packet: Any, version: int) -> None:
    """Compare a packet received with what a `<` line says."""
    kind, arguments = line.words[0], line.arguments
    where = f"line {line.number}: {line.text.strip()}; received {packet}"
    names = {
        Connack: "CONNACK",
        Publish: "PUBLISH",
        Suback: "SUBACK",
        Unsuback: "UNSUBACK",
        Pingresp: "PINGRESP",
        Disconnect: "DISCONNECT",
        Auth: "AUTH",
    }
    got = packet.type.name if isinstance(packet, Ack) else names.get(type(packet), type(packet).__name__)
    assert got == kind, where
    if isinstance(packet, Publish):
        assert packet.topic == (b"" if arguments[0] == "-" else arguments[0].encode()), where
        payload = arguments[1] if len(arguments) > 1 and arguments[1] not in ("retain", "dup") else ""
        assert packet.payload == payload.encode() * line.number_of("repeat", 1), where
        assert packet.qos == line.number_of("qos"), where
        assert packet.retain == ("retain" in arguments[1:]), where
        assert packet.dup == ("dup" in arguments[1:]), where
        if "id" in line.options:
            assert packet.packet_identifier == line.number_of("id"), where
    elif isinstance(packet, Ack):
        assert packet.packet_identifier == int(arguments[0]), where
        assert packet.reason == (int(arguments[1], 0) if len(arguments) > 1 else 0), where
    elif isinstance(packet, (Suback, Unsuback)):
        assert packet.packet_identifier == int(arguments[0]), where
        assert [int(reason) for reason in packet.reasons] == [int(argument, 0) for argument in arguments[1:]], where
    elif isinstance(packet, Connack):
        assert packet.reason == int(arguments[0], 0), where
        if "present" in line.options:
            assert packet.session_present == (line.options["present"] == "1"), where
        if "assigned_prefix" in line.options:
            assigned = packet.properties["assigned_client_identifier"]
            assert assigned.startswith(line.options["assigned_prefix"]), where
    elif isinstance(packet, (Disconnect, Auth)):
        assert packet.reason == int(arguments[0], 0), where
    if version == 5:
        for key, value in line.properties.items():
            assert packet.properties.get(key) == value, where
        found = getattr(packet, "properties", {})
        for key in line.options.get("without", "").split(","):
            assert key not in found, where
        for key in line.options.get("with", "").split(",") if "with" in line.options else ():
            assert key in found, where
