"""`shoal pub` and `shoal sub`: publish to any MQTT broker and listen to it from the command line.

Exit codes: 0 done; 1 the broker is not there, refused, or was lost; 2 wrong usage; 3 the time of -W was over before
COUNT messages came; 130 ended by Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any

import click

from broker.cli.client_options import (
    QOS,
    U16_FROM_1,
    U32,
    Seconds,
    client_of,
    connection_options,
    only_5,
    properties_of,
    topic_name_of,
    utf8,
)
from broker.cli.mqtt_client import Client
from broker.cli.mqtt_errors import ConnectionLostError, MqttError
from broker.wire import packets
from broker.wire.properties import BY_NAME, VARIABLE_BYTE_INTEGER_MAX, PacketType

EXIT_BROKER = 1
EXIT_TIME_OVER = 3
EXIT_INTERRUPTED = 130

STDIN_BYTES = 1 << 16
RECONNECT_S = 1.0  # between two attempts, as mosquitto_sub does
# The payload and the properties of a PUBLISH share its Remaining Length; this leaves room for the rest.
PAYLOAD_BYTES_MAX = VARIABLE_BYTE_INTEGER_MAX - (1 << 20)

_PUBLISH_PROPERTIES = (
    "payload_format_indicator",
    "message_expiry_interval",
    "content_type",
    "response_topic",
    "correlation_data",
    "topic_alias",
)


@click.command(short_help="Publish messages.", epilog="[5] marks what needs MQTT 5.0.")
@click.option("-t", "--topic", help="The topic name.")
@click.option("-m", "--message", help="The message.")
@click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Send a file as the message; '-' is standard input.",
)
@click.option("-l", "--lines", is_flag=True, help="Send each line of standard input as a message.")
@click.option("-n", "--null", is_flag=True, help="Send an empty message; with -r it clears what is retained.")
@click.option("-q", "--qos", type=QOS, default=0, show_default=True, help="Quality of service.")
@click.option("-r", "--retain", is_flag=True, help="The broker is to retain the message.")
@click.option("--payload-format-indicator", type=click.IntRange(0, 1), help="1: the payload is UTF-8 text. [5]")
@click.option("--message-expiry-interval", type=U32, help="Seconds that the message is worth delivering. [5]")
@click.option("--content-type", help="What the payload is. [5]")
@click.option("--response-topic", help="Where an answer is wanted. [5]")
@click.option("--correlation-data", help="What the answer is to carry. [5]")
@click.option("--topic-alias", type=U16_FROM_1, help="A number for the topic after the first message. [5]")
@connection_options
def pub(topic: str | None, qos: int, retain: bool, lines: bool, **options: Any) -> None:
    """Publish one message, or one for each line of standard input.

    \b
    shoal pub -t greeting -m hello
    shoal pub -L mqtts://ada:secret@broker.example/greeting -m hello
    tail -f log | shoal pub -t log -l -q 1
    """
    sources = [name for name in ("message", "path", "null") if options[name] not in (None, False)]
    if len(sources) + lines != 1:
        raise click.UsageError("give one of -m, -f, -l and -n")
    client, of_url = client_of(options)
    if topic is not None and of_url is not None:
        raise click.UsageError("the URL of -L has a topic: -t does not go with it")
    topic = of_url if topic is None else topic
    if topic is None:
        raise click.UsageError("give -t TOPIC, or a URL with a topic (-L)")
    topic_name = topic_name_of("--topic" if of_url is None else "-L", topic)
    properties = properties_of(options, _PUBLISH_PROPERTIES)
    payload = b"" if lines else _payload(options)

    def run() -> None:
        alias = properties.get("topic_alias", 0)
        alias_max = client.connack.properties.get("topic_alias_maximum", 0)
        if alias > alias_max:
            raise MqttError(f"the broker takes topic aliases up to {alias_max}, not {alias}")
        if not lines:
            client.publish(topic_name, payload, qos, retain, properties)
        else:
            name = topic_name
            for line in _stdin_lines(client):
                client.publish(name, line, qos, retain, properties)
                name = b"" if alias else name
        client.flush()

    _run(client, run, options["debug"])


@click.command(short_help="Subscribe and print what arrives.", epilog="[5] marks what needs MQTT 5.0.")
@click.option("-t", "--topic", "topics", multiple=True, help="A topic filter; may be given several times.")
@click.option("-q", "--qos", type=QOS, default=0, show_default=True, help="The highest quality of service wanted.")
@click.option("-C", "--count", type=click.IntRange(1), help="End after so many messages.")
@click.option("-W", "--wait", type=Seconds(), help="End after so many seconds.")
@click.option("-v", "--verbose", is_flag=True, help="Print the topic name before each message.")
@click.option("--json", "as_json", is_flag=True, help="Print each message as one line of JSON, with all there is.")
@click.option("--no-local", is_flag=True, help="Nothing that this client publishes itself. [5]")
@click.option("--retain-as-published", is_flag=True, help="Keep the RETAIN flag of what is passed on. [5]")
@click.option(
    "--retain-handling",
    type=click.IntRange(0, 2),
    default=0,
    show_default=True,
    help="Retained messages: 0 send them, 1 if the subscription is new, 2 never. [5]",
)
@click.option(
    "--subscription-identifier",
    type=click.IntRange(1, VARIABLE_BYTE_INTEGER_MAX),
    help="A number that comes with each message. [5]",
)
@connection_options
def sub(
    topics: tuple[str, ...], qos: int, count: int | None, wait: float | None, verbose: bool, as_json: bool,
    no_local: bool, retain_as_published: bool, retain_handling: int, **options: Any) -> None:  # fmt: skip
    """Subscribe, and print the messages that arrive, one a line, until Ctrl-C.

    When the connection is lost, it is made again, once a second until the broker is back.

    A payload is printed as it is. With --json a payload that is not text is {"base64": "..."}.

    \b
    shoal sub -t 'sensors/+/temperature' -v
    shoal sub -t '#' -q 1 -C 1 --json
    shoal sub --url wss://broker.example/mqtt --cafile ca.crt -t '#'
    """
    client, of_url = client_of(options)
    topics = (of_url, *topics) if of_url is not None else topics
    if not topics:
        raise click.UsageError("give -t TOPIC, or a URL with a topic (-L)")
    topic_filters = [utf8("--topic", topic) for topic in topics]
    if not all(topic_filters):
        raise click.BadParameter("a topic filter cannot be empty", param_hint="--topic")
    if no_local and any(topic_filter.startswith(b"$share/") for topic_filter in topic_filters):
        raise click.BadParameter("cannot go with a shared subscription", param_hint="--no-local")
    only_5(
        options,
        {"--no-local": no_local, "--retain-as-published": retain_as_published, "--retain-handling": retain_handling},
    )
    properties = properties_of(options, ("subscription_identifier",))
    subscriptions = [
        packets.subscription(
            topic_filter,
            qos,
            no_local=no_local,
            retain_as_published=retain_as_published,
            retain_handling=retain_handling,
        )
        for topic_filter in topic_filters
    ]

    def subscribe() -> None:
        suback = client.subscribe(subscriptions, properties)
        _report_refusals(topics, suback)
        if options["debug"]:
            for topic, reason in zip(topics, suback.reasons, strict=True):
                if reason < 0x80:
                    click.echo(f"shoal: subscribed to {topic!r} with QoS {int(reason)}.", err=True)

    def run() -> None:
        deadline = None if wait is None else monotonic() + wait
        received = 0
        subscribed = False
        while count is None or received < count:
            try:
                if not subscribed:
                    subscribe()
                    subscribed = True
                message = client.receive(None if deadline is None else max(0.0, deadline - monotonic()))
            except ConnectionLostError as error:
                connack = _connect_again(client, error, deadline)
                if connack is not None:
                    subscribed = subscribed and connack.session_present
                    continue
                message = None
            if message is None:
                if count is not None:
                    raise SystemExit(EXIT_TIME_OVER)
                return
            _print(message, verbose, as_json)
            received += 1

    _run(client, run, options["debug"])


def _connect_again(client: Client, lost: MqttError, deadline: float | None) -> packets.Connack | None:
    """Connect once a second until the broker lets us in again; None if the time (monotonic) is over before that."""
    click.echo(f"shoal: {lost}; connecting again.", err=True)
    while True:
        remaining = RECONNECT_S if deadline is None else min(RECONNECT_S, deadline - monotonic())
        if remaining <= 0:
            return None
        sleep(remaining)
        try:
            connack = client.open_again()
        except ConnectionLostError:
            continue
        click.echo(f"shoal: connected again to {client.way}.", err=True)
        return connack


def _run(client: Client, run: Callable[[], None], debug: bool) -> None:
    """Connect, run, disconnect; every way to end becomes an exit code and at most one sentence."""
    try:
        connack = client.open()
        if debug:
            what = "went on with a session" if connack.session_present else "began a session"
            given = client.connect.client_identifier.decode()
            identifier = connack.properties.get("assigned_client_identifier", given)
            how = f" by {client.tls}" if client.tls is not None else ""
            click.echo(f"shoal: connected to {client.way}{how} as {identifier!r}, {what}.", err=True)
        run()
        client.disconnect()
    except MqttError as error:
        client.close()
        click.echo(f"shoal: {error}.", err=True)
        raise SystemExit(EXIT_BROKER) from None
    except KeyboardInterrupt:
        client.disconnect()
        raise SystemExit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        # Whoever read our output has had enough. Nothing more may be written, not even at exit.
        client.disconnect()
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except SystemExit:
        client.disconnect()
        raise


def _payload(options: dict[str, Any]) -> bytes:
    if options["message"] is not None:
        return os.fsencode(options["message"])
    if options["path"] is None:
        return b""
    try:
        with click.open_file(options["path"], "rb") as file:
            payload: bytes = file.read(PAYLOAD_BYTES_MAX + 1)
    except OSError as error:
        raise click.BadParameter(f"{options['path']}: {error.strerror}", param_hint="--file") from None
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise click.BadParameter(f"is longer than {PAYLOAD_BYTES_MAX} bytes", param_hint="--file")
    return payload


def _stdin_lines(client: Client) -> Iterator[bytes]:
    """Yield the lines of standard input without their ends, keeping the connection alive between them."""
    descriptor = sys.stdin.fileno()
    pending = b""
    while True:
        while not client.turn(None, descriptor):
            pass
        data = os.read(descriptor, STDIN_BYTES)
        *lines, pending = (pending + data).split(b"\n")
        yield from lines
        if not data:
            if pending:
                yield pending
            return


def _report_refusals(topics: tuple[str, ...], suback: packets.Suback) -> None:
    """Say which topic filters were refused; raise MqttError if all were."""
    refused = [(topic, reason) for topic, reason in zip(topics, suback.reasons, strict=True) if reason >= 0x80]
    sentences = [
        f"the broker refused the subscription to {topic!r}: {reason.name.lower().replace('_', ' ')} (0x{reason:02x})"
        for topic, reason in refused
    ]
    if len(refused) == len(topics):
        raise MqttError("; ".join(sentences))
    for sentence in sentences:
        click.echo(f"shoal: {sentence}.", err=True)


def _print(message: packets.Publish, verbose: bool, as_json: bool) -> None:
    if as_json:
        line = _json(message)
    elif verbose:
        line = message.topic + b" " + message.payload
    else:
        line = message.payload
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _stored_at(message: packets.Publish) -> str | None:
    """Return when a replayed message was stored, as the broker says; None of one that is not replayed."""
    said = dict(message.properties.get("user_property", ()))
    return said.get("shoal-time") if "shoal-position" in said else None


def _json(message: packets.Publish) -> bytes:
    import json
    from datetime import UTC, datetime

    properties = {
        name: _text(value) if isinstance(value, bytes) else value for name, value in message.properties.items()
    }
    fields = {
        "time": _stored_at(message) or datetime.now(UTC).isoformat(timespec="milliseconds"),
        "topic": message.topic.decode(),
        "payload": _text(message.payload),
        "qos": message.qos,
        "retain": message.retain,
        "dup": message.dup,
        "packet_identifier": message.packet_identifier or None,
        "properties": properties,
    }
    return json.dumps(fields, ensure_ascii=False).encode()


def _text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"base64": b64encode(data).decode()}


# An option that sets a property has the property's name.
assert all(PacketType.PUBLISH in BY_NAME[name].packets for name in _PUBLISH_PROPERTIES)
