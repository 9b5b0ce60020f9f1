"""`shoal admin`: ask a running broker, and tell it to do something.

Tables for people, `--json` for programs. Exit codes: 0 done; 1 the broker refused, or knows no such thing, or a worker
gave no answer and a listing is not whole; 2 wrong usage, or there is no broker to ask; 130 ended by Ctrl-C.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.cli.common import said
from broker.cli.log import data_folder, folder_options, reading

if TYPE_CHECKING:
    from broker.cli.admin_client import AdminClient, Row

EXIT_REFUSED = 1
EXIT_NO_BROKER = 2
ROWS_SHOWN = 1000  # of a listing in a table, unless --limit says otherwise

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_JSON_LINES = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
_LIMIT = click.option("--limit", type=click.IntRange(1), help=f"Rows at most; for a table {ROWS_SHOWN} if not given.")


@contextmanager
def _asking(context: click.Context) -> Iterator[AdminClient]:
    """Give a client of the broker's admin socket; say in one sentence what went wrong."""
    from broker.cli.admin_client import AdminClient, AdminError

    client = AdminClient.of(data_folder(**said(context)))
    try:
        with reading():
            yield client
    except AdminError as error:
        click.echo(f"shoal: {error}", err=True)
        sys.exit(EXIT_REFUSED if error.status else EXIT_NO_BROKER)
    finally:
        client.close()


@click.group(short_help="Ask a running broker.")
@folder_options
def admin(data_dir: str | None, file: Path | None) -> None:
    """Ask a running broker, or tell it to do something, through the socket admin.sock in its data folder."""


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


def _print(value: Row, as_json: bool, name: str) -> None:
    """Print one object, or its description."""
    if as_json:
        _print_json(value)
    else:
        from broker.cli import admin_text

        admin_text.show(name, value)


def _list(context: click.Context, path: str, arguments: Row, limit: int | None, as_json: bool, name: str) -> None:
    """Print a listing: objects as they come, or a table. What is not whole ends with what is missing, and code 1."""
    from broker.cli import admin_text

    with _asking(context) as client:
        rows: list[Row] = []
        first: Row | None = None
        more = False
        unanswered: list[Row] = []
        for page in client.pages(path, arguments, limit if as_json or limit else ROWS_SHOWN):
            first = first or page
            more = page["cursor"] is not None
            unanswered += page["unanswered"]
            if not as_json:
                rows += page["rows"]
                continue
            for row in page["rows"]:
                _print_json(row)
        if not as_json and (rows or not unanswered):  # "nobody" would be said of those that were not asked, too
            admin_text.show(name, {**(first or {}), "rows": rows, "more": more and limit is None})
        for missing in unanswered:
            click.echo(f"shoal: {missing['text']} What it has is not listed.", err=True)
        if unanswered:
            sys.exit(EXIT_REFUSED)


# The broker -----------------------------------------------------------------------------------------------------------


@admin.command(short_help="How the broker is.")
@_JSON
@click.pass_context
def status(context: click.Context, as_json: bool) -> None:
    """Show how the broker is: since when it runs, where it listens, how much it holds, what troubles it."""
    with _asking(context) as client:
        _print(client.ask("GET", "/status"), as_json, "status")


@admin.command(short_help="Each worker's counters.")
@_JSON
@click.pass_context
def workers(context: click.Context, as_json: bool) -> None:
    """Show each worker: clients, messages, memory, and how long its turns take. --json has every counter."""
    with _asking(context) as client:
        _print(client.ask("GET", "/workers"), as_json, "workers")


@admin.command(short_help="The links between workers.")
@_JSON
@click.pass_context
def peers(context: click.Context, as_json: bool) -> None:
    """Show how each worker stands with each other one: state, window, lag, round trip. One worker has no peers."""
    with _asking(context) as client:
        _print(client.ask("GET", "/peers"), as_json, "peers")


@admin.command(short_help="Give up a worker that does not return.")
@click.argument("peer")
@_JSON
@click.pass_context
def forget(context: click.Context, peer: str, as_json: bool) -> None:
    """Drop what a PEER (its name in `peers`) that is away is owed by all workers. It may come back without that."""
    from urllib.parse import quote

    with _asking(context) as client:
        _print(client.ask("POST", f"/peers/{quote(peer, safe='')}/forget"), as_json, "forget")


@admin.command(short_help="End the broker in order.")
@click.option("--to", metavar="SERVER", help="Another server that MQTT 5.0 clients are told to use: HOST or HOST:PORT.")
@click.option("--rate", metavar="N/s", help="Clients told to go in a second.")
@click.option("--wait", is_flag=True, help="Return when the broker has ended.")
@_JSON
@click.pass_context
def drain(context: click.Context, to: str | None, rate: str | None, wait: bool, as_json: bool) -> None:
    """Stop accepting clients, tell those that are there to go, and end, as SIGTERM does.

    Before that the broker is not ready for shutdown.wait_s. What is not said here is as [shutdown] has it.
    """
    body = {"to": to, "rate": None if rate is None else _rate(rate)}
    with _asking(context) as client:
        answer = client.ask("POST", "/drain", body={name: value for name, value in body.items() if value is not None})
        if wait:
            client.until_gone()
            answer = {"ended": True}
        _print(answer, as_json, "drain")


def _rate(text: str) -> int:
    number = text.removesuffix("/s")
    if not number.isdecimal() or not int(number):
        raise click.BadParameter(
            f"{text!r}: expected a number of clients in a second, such as 100/s", param_hint="--rate"
        )
    return int(number)


@admin.command(short_help="Replace the workers' processes, one by one.")
@_JSON
@click.pass_context
def restart(context: click.Context, as_json: bool) -> None:
    """Have each worker end in order and a new process take its place, one after the other; it returns when all have.

    The new processes are of the version of Shoal that is installed now, and go by the settings as they are now, but for
    those that need a start of the broker. Nothing that was acknowledged is lost; the clients of a worker come back.
    """
    with _asking(context) as client:
        client.ask("POST", "/restart")
        answer = client.until_done("/restart")
        _print(answer, as_json, "restart")
        if answer["error_text"] is not None:
            sys.exit(EXIT_REFUSED)


@admin.command("log-level", short_help="Show or set the level of the broker's log.")
@click.argument("level", required=False, type=click.Choice(["debug", "info", "warning", "error"]))
@_JSON
@click.pass_context
def log_level(context: click.Context, level: str | None, as_json: bool) -> None:
    """Show the least severe level that is logged, or set it until the broker ends."""
    with _asking(context) as client:
        answer = (
            client.ask("GET", "/log-level") if level is None else client.ask("PUT", "/log-level", body={"level": level})
        )
        _print(answer, as_json, "log_level")


@admin.command(short_help="Where clients come in.")
@_JSON
@click.pass_context
def listeners(context: click.Context, as_json: bool) -> None:
    """Show each listener: its address, its clients, its handshakes, and how long its certificates are valid yet."""
    with _asking(context) as client:
        _print(client.ask("GET", "/listeners"), as_json, "listeners")


@admin.command(short_help="Read settings, certificates, keys and lists again.")
@_JSON
@click.pass_context
def reload(context: click.Context, as_json: bool) -> None:
    """Have settings and files read again, as SIGHUP does: all of them, or on any fault none.

    Clients that are connected stay. What is said of a setting is when its new value counts. The broker looks for
    changed files of certificates, users and rules by itself, too.
    """
    with _asking(context) as client:
        _print(client.ask("POST", "/reload"), as_json, "reload")


@admin.command(short_help="Each setting, and where it came from.")
@click.argument("prefix", default="")
@click.option("--changed", is_flag=True, help="Only those that are not at their default.")
@_JSON_LINES
@click.pass_context
def config(context: click.Context, prefix: str, changed: bool, as_json: bool) -> None:
    """Show the settings that are in force: value, where that came from, and when another one would count.

    With PREFIX only those whose name begins so: `limits.`.
    """
    with _asking(context) as client:
        rows = [
            row
            for row in client.ask("GET", "/config")["rows"]
            if row["key"].startswith(prefix) and not (changed and row["origin"] == "default")
        ]
        if as_json:
            for row in rows:
                _print_json(row)
        else:
            _print({"rows": rows}, as_json, "config")


# Clients --------------------------------------------------------------------------------------------------------------


@admin.command(short_help="Who is connected.")
@click.option("--prefix", help="Only clients whose identifier begins with this.")
@_LIMIT
@_JSON_LINES
@click.pass_context
def clients(context: click.Context, prefix: str | None, limit: int | None, as_json: bool) -> None:
    """List the clients that are connected."""
    _list(context, "/clients", {"prefix": prefix}, limit, as_json, "clients")


@admin.command("client", short_help="Everything about one client.")
@click.argument("client_identifier")
@_JSON
@click.pass_context
def one_client(context: click.Context, client_identifier: str, as_json: bool) -> None:
    """Show one client, connected or not: its session, what it is owed, its subscriptions, its will, its drops."""
    from broker.cli.admin_client import client_path

    with _asking(context) as client:
        _print(client.ask("GET", client_path(client_identifier)), as_json, "client")


@admin.command(short_help="Sessions, connected or not.")
@click.option("--prefix", help="Only clients whose identifier begins with this.")
@click.option("--connected/--away", default=None, help="Only those that are connected, or that are not.")
@_LIMIT
@_JSON_LINES
@click.pass_context
def sessions(
    context: click.Context, prefix: str | None, connected: bool | None, limit: int | None, as_json: bool
) -> None:
    """List the sessions that the broker keeps, and how much waits in each."""
    _list(context, "/sessions", {"prefix": prefix, "connected": connected}, limit, as_json, "sessions")


@admin.command(short_help="Disconnect a client.")
@click.argument("client_identifier")
@click.option("--session", is_flag=True, help="End its session too: subscriptions and queue are gone.")
@_JSON
@click.pass_context
def kick(context: click.Context, client_identifier: str, session: bool, as_json: bool) -> None:
    """Disconnect a client; one that speaks MQTT 5.0 is told "administrative action" (0x98). It may come back."""
    from broker.cli.admin_client import client_path

    with _asking(context) as client:
        _print(client.ask("POST", client_path(client_identifier, "kick"), body={"session": session}), as_json, "kick")


# Bans -----------------------------------------------------------------------------------------------------------------


def _of_ban(command: Any) -> Any:
    """Add the options that say what a ban names."""
    for option in (
        click.option("--address", metavar="ADDRESS[/BITS]", help="An address, or a network."),
        click.option("--user", metavar="NAME", help="A user name."),
        click.option("--client", metavar="ID", help="A client identifier."),
    ):
        command = option(command)
    return command


def _named(named: dict[str, str | None]) -> Row:
    """Return kind and name of the one option that is given."""
    given = [(kind, name) for kind, name in named.items() if name is not None]
    if len(given) != 1:
        raise click.UsageError("Expected one of --client, --user and --address.")
    return {"kind": given[0][0], "name": given[0][1]}


@admin.command(short_help="Keep a client, a user or an address out.")
@_of_ban
@click.option("--for", "for_time", metavar="TIME", help="How long, such as 90s, 10m, 1h or 7d; without it for ever.")
@click.option("--reason", metavar="TEXT", help="For operators; clients are not told.")
@_JSON
@click.pass_context
def ban(
    context: click.Context, /, for_time: str | None, reason: str | None, as_json: bool, **named: str | None
) -> None:
    """Refuse a client from now on, and disconnect it. All workers do, and a restart changes nothing: it is in the log.

    A client that speaks MQTT 5.0 is told "banned" (0x8A), one of 3.1.1 "not authorized" (5).
    """
    body = {**_named(named), "for_s": None if for_time is None else _seconds(for_time), "reason": reason}
    with _asking(context) as client:
        given = {name: value for name, value in body.items() if value is not None}
        _print(client.ask("POST", "/bans", body=given), as_json, "ban")


@admin.command(short_help="End a ban.")
@_of_ban
@_JSON
@click.pass_context
def unban(context: click.Context, /, as_json: bool, **named: str | None) -> None:
    """Let a client, a user or an address come in again."""
    wanted = _named(named)
    with _asking(context) as client:
        _print(client.ask("DELETE", "/bans", wanted), as_json, "unban")


@admin.command(short_help="Who is kept out.")
@_LIMIT
@_JSON_LINES
@click.pass_context
def bans(context: click.Context, limit: int | None, as_json: bool) -> None:
    """List the bans that are in force."""
    _list(context, "/bans", {}, limit, as_json, "bans")


def _seconds(text: str) -> int:
    from router.log.replay_position import parse_span

    try:
        return parse_span(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--for") from None


# Subscriptions, routes, messages --------------------------------------------------------------------------------------


@admin.command(short_help="Subscriptions, of all or of one client.")
@click.option("--client", help="Only those of this client.")
@click.option("--filter", "topic_filter", help="Only those to exactly this topic filter.")
@_LIMIT
@_JSON_LINES
@click.pass_context
def subscriptions(
    context: click.Context, client: str | None, topic_filter: str | None, limit: int | None, as_json: bool
) -> None:
    """List subscriptions, with their QoS and options."""
    _list(context, "/subscriptions", {"client": client, "filter": topic_filter}, limit, as_json, "subscriptions")


@admin.command(short_help="Whom a publish would reach, and why.")
@click.argument("topic")
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=0, show_default=True, help="Of the publish.")
@click.option("-r", "--retain", is_flag=True, help="As if it had RETAIN.")
@click.option("--publisher", metavar="CLIENT", help="As if this client published: No Local, ACL, hashing.")
@_LIMIT
@_JSON_LINES
@click.pass_context
def routes(
    context: click.Context, topic: str, qos: int, retain: bool, publisher: str | None, limit: int | None, as_json: bool
) -> None:
    """Show which clients a publish on TOPIC would reach now: matching topic filters, and what would become of it there.

    Nothing is published, and nobody's turn in a shared subscription is used up.
    """
    _list(
        context,
        "/routes",
        {"topic": topic, "qos": qos, "retain": retain or None, "publisher": publisher},
        limit,
        as_json,
        "routes",
    )


@admin.command(short_help="What a client may do, and which rule says so.")
@click.argument("client")
@click.argument("action", type=click.Choice(["publish", "subscribe", "read"]))
@click.argument("topic")
@click.option("-u", "--user", help="As if it had this user name.")
@click.option("--address", help="As if it came from this IP address.")
@click.option("--listener", type=click.IntRange(1), help="As if it came by this listener; 1 is the first.")
@click.option("--group", "groups", multiple=True, help="As if it were in this group; may be given more than once.")
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=0, show_default=True, help="That it asks for.")
@click.option("-r", "--retain", is_flag=True, help="As if the publish had RETAIN.")
@_JSON
@click.pass_context
def acl(
    context: click.Context,
    client: str,
    action: str,
    topic: str,
    user: str | None,
    address: str | None,
    listener: int | None,
    groups: tuple[str, ...],
    qos: int,
    retain: bool,
    as_json: bool,
) -> None:
    """Ask whether CLIENT may publish to TOPIC, subscribe to it (a topic filter), or be sent what comes on it (read).

    CLIENT is a client identifier. A client that is connected is known to the broker; another one, or one that is asked
    about with --user, --address, --listener or --group, is what these say.
    """
    asked = {
        "client": client,
        "action": action,
        "topic": topic,
        "user": user,
        "address": address,
        "listener": listener,
        "groups": ",".join(groups) or None,
        "qos": qos,
        "retain": retain or None,
    }
    with _asking(context) as broker:
        given = {name: value for name, value in asked.items() if value is not None}
        _print(broker.ask("GET", "/acl", given), as_json, "acl")


@admin.command(short_help="What rules on trial would refuse.")
@_JSON
@click.pass_context
def shadow(context: click.Context, as_json: bool) -> None:
    """Say how the files on trial (`shadow` of an [[authorizer]]) have differed from those that count, on all workers.

    Counted are answers: a client and a topic once, as long as the broker remembers it.
    """
    with _asking(context) as broker:
        _print(broker.ask("GET", "/shadow"), as_json, "shadow")


@admin.command(short_help="Retained messages.")
@click.argument("topic_filter", default="#")
@_LIMIT
@_JSON_LINES
@click.pass_context
def retained(context: click.Context, topic_filter: str, limit: int | None, as_json: bool) -> None:
    """List retained messages whose topic matches TOPIC_FILTER, by default all but those whose first level begins
    with $."""
    _list(context, "/retained", {"filter": topic_filter}, limit, as_json, "retained")


@admin.command(short_help="Publish a message.")
@click.argument("topic")
@click.argument("payload", default="")
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=0, show_default=True)
@click.option("-r", "--retain", is_flag=True, help="The broker is to retain it; an empty one clears what is retained.")
@_JSON
@click.pass_context
def publish(context: click.Context, topic: str, payload: str, qos: int, retain: bool, as_json: bool) -> None:
    """Publish a message as the broker itself, past every ACL. At QoS 1 and 2 it returns when the message is kept."""
    with _asking(context) as client:
        body = {"topic": topic, "payload": payload, "qos": qos, "retain": retain}
        _print(client.ask("POST", "/publish", body=body), as_json, "publish")


# Looking on -----------------------------------------------------------------------------------------------------------


@admin.command(short_help="One client's packets, live.")
@click.argument("client_identifier")
@click.option("-n", "--count", type=click.IntRange(1), help="End after so many packets.")
@_JSON_LINES
@click.pass_context
def trace(context: click.Context, client_identifier: str, count: int | None, as_json: bool) -> None:
    """Show the packets of one client as they come and go, until Ctrl-C; it need not be connected yet.

    Payloads are shown in part; passwords and authentication data are not.
    """
    from broker.cli.admin_client import client_path

    _follow(context, client_path(client_identifier, "trace"), {}, count, as_json)


@admin.command(short_help="What happened to messages for a client.")
@click.argument("client_identifier")
@click.argument("topic")
@click.option("-n", "--last", type=click.IntRange(1, 100), default=10, show_default=True, help="So many messages.")
@click.option("--watch", is_flag=True, help="Say what happens from now on, until Ctrl-C.")
@_JSON
@click.pass_context
def why(context: click.Context, client_identifier: str, topic: str, last: int, watch: bool, as_json: bool) -> None:
    """Say what happened to the last messages on TOPIC for a client: matching filters, queue, acknowledgement, drop.

    The past is read from the log and the session's queue. QoS 0, and what only clients without a kept session wanted,
    leave no trace there: --watch shows every decision as it is made.
    """
    from broker.cli.admin_client import client_path

    if watch:
        _follow(context, client_path(client_identifier, "why"), {"topic": topic, "watch": True}, None, as_json)
        return
    with _asking(context) as client:
        answer = client.ask("GET", client_path(client_identifier, "why"), {"topic": topic, "last": last})
        _print(answer, as_json, "why")


def _follow(context: click.Context, path: str, arguments: Row, count: int | None, as_json: bool) -> None:
    from broker.cli.admin_text import event_line

    with _asking(context) as client:
        seen = 0
        for event in client.lines(path, arguments):
            if as_json:
                _print_json(event)
            else:
                click.echo(event_line(event))
            sys.stdout.flush()
            seen += "packet" in event
            if seen == count:
                return
