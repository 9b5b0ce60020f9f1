"""What `shoal pub` and `shoal sub` have in common: options of the connection, and the client that they describe."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from broker.cli.mqtt_client import Client
from broker.cli.way_options import WAY_OPTIONS, check_password, tls_context, way_of
from broker.wire import packets
from broker.wire.properties import BY_NAME, PacketType

VERSIONS = {"3": 3, "3.1": 3, "4": 4, "3.1.1": 4, "5": 5, "5.0": 5}

Command = TypeVar("Command", bound=Callable[..., Any])


class Seconds(click.ParamType[float]):
    """A number of seconds, 0 or more; MQTT's own intervals are whole numbers and use click.IntRange."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < 1e9:
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds


QOS = click.IntRange(0, 2)
U16 = click.IntRange(0, 0xFFFF)
U16_FROM_1 = click.IntRange(1, 0xFFFF)
U32 = click.IntRange(0, 0xFFFFFFFF)
U32_FROM_1 = click.IntRange(1, 0xFFFFFFFF)

_CONNECTION_OPTIONS = (
    *WAY_OPTIONS,
    click.option(
        "-V",
        "--mqtt-version",
        "version",
        type=click.Choice(list(VERSIONS)),
        default="5",
        show_default=True,
        help="The version of MQTT to speak.",
    ),
    click.option("-i", "--client-identifier", default="", help="Default: the broker chooses one."),
    click.option("-u", "--user", help="User name."),
    click.option(
        "-P",
        "--password",
        help="Password; the environment variable MQTT_PASSWORD keeps it out of sight.",
        envvar="MQTT_PASSWORD",
    ),
    click.option("-k", "--keep-alive", type=U16, default=60, show_default=True, help="Seconds; 0: none."),
    click.option(
        "--clean-start/--no-clean-start",
        default=True,
        show_default=True,
        help="Begin a new session, or go on with the one of this client identifier.",
    ),
    click.option("--session-expiry-interval", type=U32, help="Seconds that the session outlives us. [5]"),
    click.option("--receive-maximum", type=U16_FROM_1, help="QoS 1 and 2 messages unfinished towards us. [5]"),
    click.option("--maximum-packet-size", type=U32_FROM_1, help="Bytes of the largest packet we take. [5]"),
    click.option("--topic-alias-maximum", type=U16, help="Topic aliases that the broker may use. [5]"),
    click.option("--will-topic", help="Leave a will message, on this topic."),
    click.option("--will-payload", default="", help="Its payload."),
    click.option("--will-qos", type=QOS, default=0, help="Its QoS."),
    click.option("--will-retain", is_flag=True, help="It is to be retained."),
    click.option("--will-delay", type=U32, help="Seconds before it is published. [5]"),
    click.option(
        "--user-property",
        nargs=2,
        multiple=True,
        metavar="NAME VALUE",
        help="May be given several times; sent with PUBLISH or SUBSCRIBE. [5]",
    ),
    click.option(
        "--timeout",
        type=Seconds(),
        default=30.0,
        show_default=True,
        help="Seconds to wait for each answer that the broker owes us.",
    ),
    click.option("-d", "--debug", is_flag=True, help="Say on standard error how far we are."),
)
_CONNECT_PROPERTIES = ("session_expiry_interval", "receive_maximum", "maximum_packet_size", "topic_alias_maximum")


def connection_options(command: Command) -> Command:
    """Give a command the options that client_of() reads."""
    for option in reversed(_CONNECTION_OPTIONS):
        command = option(command)
    return command


def client_of(options: dict[str, Any]) -> tuple[Client, str | None]:
    """Return the client that options describe, and the topic in their URL, if there is one."""
    url = way_of(options)
    version = VERSIONS[options["version"]]
    client_identifier = utf8("--client-identifier", options["client_identifier"])
    if not client_identifier:
        if not options["clean_start"]:
            raise click.UsageError("--no-clean-start needs a client identifier (-i)")
        if version == 3:
            client_identifier = b"shoal" + os.urandom(6).hex().encode()  # 3.1 knows no empty one
    user = options["user"] if url.user is None else url.user
    password = check_password(options, url)
    if password is not None and user is None and version != 5:
        raise click.UsageError("a password without a user name needs MQTT 5.0 (-V 5)")
    connect = packets.Connect(
        version,
        client_identifier,
        options["clean_start"],
        options["keep_alive"],
        _will(options),
        None if user is None else utf8("--user", user).decode(),
        password,
        properties_of(options, _CONNECT_PROPERTIES, with_user_properties=False),
    )
    return Client(url.way, connect, options["timeout"], tls_context(options, url.way)), url.topic or None


def _will(options: dict[str, Any]) -> packets.Will | None:
    if options["will_topic"] is None:
        for name in ("will_payload", "will_qos", "will_retain", "will_delay"):
            if options[name]:
                raise click.UsageError(f"--{name.replace('_', '-')} needs --will-topic")
        return None
    only_5(options, {"--will-delay": options["will_delay"]})
    payload = os.fsencode(options["will_payload"])
    if len(payload) > 0xFFFF:
        raise click.BadParameter("is longer than 65,535 bytes", param_hint="--will-payload")
    return packets.Will(
        topic_name_of("--will-topic", options["will_topic"]),
        payload,
        options["will_qos"],
        options["will_retain"],
        {},
        options["will_delay"] or 0,
    )


def properties_of(options: dict[str, Any], names: tuple[str, ...], with_user_properties: bool = True) -> dict[str, Any]:
    """Return the properties of a packet that options give: each option has its property's name."""
    given = {name: options[name] for name in names if options[name] is not None}
    pairs = list(options["user_property"]) if with_user_properties else []
    only_5(options, {f"--{name.replace('_', '-')}": True for name in given} | {"--user-property": bool(pairs)})
    for name, value in given.items():
        if isinstance(value, str):
            text = utf8(f"--{name.replace('_', '-')}", value)
            given[name] = text if name == "correlation_data" else text.decode()
    if "response_topic" in given:
        topic_name_of("--response-topic", given["response_topic"])
    for pair in pairs:
        for text in pair:
            utf8("--user-property", text)
    return given | ({"user_property": pairs} if pairs else {})


def only_5(options: dict[str, Any], used: dict[str, Any]) -> None:
    """Raise UsageError if an option is used that only MQTT 5.0 has."""
    for name, value in used.items():
        if value and VERSIONS[options["version"]] != 5:
            raise click.UsageError(f"{name} needs MQTT 5.0 (-V 5)")


def utf8(option: str, text: str) -> bytes:
    """Return a string as MQTT sends it. Raises BadParameter if it cannot."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise click.BadParameter("is not UTF-8", param_hint=option) from None
    if len(data) > 0xFFFF:
        raise click.BadParameter("is longer than 65,535 bytes", param_hint=option)
    return data


def topic_name_of(option: str, text: str) -> bytes:
    """Return a topic name as MQTT sends it. Raises BadParameter if it is none."""
    name = utf8(option, text)
    if not name:
        raise click.BadParameter("a topic name cannot be empty", param_hint=option)
    if b"+" in name or b"#" in name:
        raise click.BadParameter("a topic name cannot have wildcards (+ and #)", param_hint=option)
    return name


# An option that sets a property has the property's name.
assert all(PacketType.CONNECT in BY_NAME[name].packets for name in _CONNECT_PROPERTIES)
