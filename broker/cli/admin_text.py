"""What `shoal admin` prints for people: tables and descriptions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from broker.cli.access_text import asked_about, on_trial, reloaded
from broker.cli.cells import (
    Row,
    came_by,
    certificate,
    count,
    duration,
    filters,
    handshakes,
    options,
    payload,
    size,
    who,
    yes,
)
from broker.config.setting import shown

WIDE: Final = 10_000  # columns where no terminal sets a width: nothing is cut
VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0", None: "-"}
MIN_WIDTH: Final = 10  # of a column that may be cut


class Column(NamedTuple):
    """A column: its heading, its text, and whether it may be cut where the terminal is narrow."""

    heading: str
    text: Callable[[Row], object]
    right: bool = True
    cut: bool = False


TABLES: Final[dict[str, tuple[Column, ...]]] = {
    "workers": (
        Column("worker", lambda row: row["worker"]),
        Column("pid", lambda row: row.get("pid", "-")),
        Column("clients", lambda row: count(row.get("sessions_connected"))),
        Column("sessions", lambda row: count(row.get("sessions"))),
        Column("in", lambda row: count(row.get("messages_in"))),
        Column("out", lambda row: count(row.get("messages_out"))),
        Column("dropped", lambda row: count(sum(row.get("dropped", {}).values()))),
        Column("queued", lambda row: count(row.get("queued_messages"))),
        Column("memory", lambda row: size(row.get("resident_bytes"))),
        Column("turn p99", lambda row: f"{row['turns']['p99_us']:,} µs" if "turns" in row else row.get("error", "")),
    ),
    "peers": (
        Column("worker", lambda row: row.get("worker", "-")),
        Column("peer", lambda row: row.get("peer", "-"), False),
        Column("state", lambda row: row.get("state", row.get("error", "-")), False),
        Column("on its way", lambda row: size(row.get("outstanding_bytes"))),
        Column("window", lambda row: size(row.get("window_bytes"))),
        Column("lag", lambda row: count(row.get("lag"))),
        Column("round trip", lambda row: f"{row['round_trip_us']:,.0f} µs" if row.get("round_trip_us") else "-"),
    ),
    "config": (
        Column("setting", lambda row: row["key"], False),
        Column("value", lambda row: shown(row["value"]), False),
        Column("from", lambda row: row["origin"], False),
        Column("another one counts", lambda row: row["changes"], False),
    ),
    "listeners": (
        Column("listener", lambda row: row["listener"]),
        Column("address", lambda row: row["address"], False),
        Column(
            "clients",
            lambda row: (
                f"{count(row['clients'])} of {count(row['clients_max'])}"
                if row["clients_max"]
                else count(row["clients"])
            ),
        ),
        Column("handshakes", lambda row: handshakes(row["handshakes"]), False),
        Column("certificate", lambda row: ", ".join(certificate(one) for one in row["certificates"]) or "-", False),
        Column("trouble", lambda row: row["trouble"] or "-", False, True),
    ),
    "authenticators": (
        Column("authenticator", lambda row: row["authenticator"]),
        Column("type", lambda row: row["type"], False),
        Column("file", lambda row: row.get("file", "-"), False),
        Column("users", lambda row: count(row["users"]) if "users" in row else "-"),
        Column("verified", lambda row: count(row["verified"]) if "verified" in row else "-"),
        Column("keys", lambda row: count(row["keys"]) if "keys" in row else "-"),
        Column("trouble", lambda row: row.get("trouble") or "-", False, True),
    ),
    "authorizers": (
        Column("authorizer", lambda row: row["authorizer"]),
        Column("type", lambda row: row["type"], False),
        Column("file", lambda row: row.get("file") or row["url"], False),
        Column("rules", lambda row: count(row["rules"]) if "rules" in row else "-"),
        Column("users", lambda row: count(row["users"]) if "users" in row else "-"),
        Column("trouble", lambda row: row.get("trouble") or "-", False, True),
    ),
    "clients": (
        Column("client", lambda row: who(row), False, True),
        Column("version", lambda row: VERSIONS.get(row["version"], row["version"]), False),
        Column("address", lambda row: row["address"] or "-", False, True),
        Column("since", lambda row: duration(row["connected_s"])),
        Column("subs", lambda row: count(row["subscriptions"])),
        Column("in", lambda row: count(row["messages_in"])),
        Column("out", lambda row: count(row["messages_out"])),
        Column("dropped", lambda row: count(row["messages_dropped"])),
        Column("queued", lambda row: count(row["queued"])),
    ),
    "sessions": (
        Column("client", lambda row: row["client"], False, True),
        Column("connected", lambda row: yes(row["connected"]), False),
        Column("kept", lambda row: duration(row["session_expiry_interval_s"])),
        Column("ends in", lambda row: duration(row["expires_in_s"])),
        Column("subs", lambda row: count(row["subscriptions"])),
        Column("queued", lambda row: count(row["queued"])),
        Column("bytes", lambda row: size(row["queued_bytes"])),
        Column("in flight", lambda row: count(row["in_flight"])),
    ),
    "subscriptions": (
        Column("client", lambda row: who(row), False, True),
        Column("topic filter", lambda row: row["topic_filter"], False, True),
        Column("QoS", lambda row: row["qos"]),
        Column("options", lambda row: options(row), False, True),
    ),
    "routes": (
        Column("receiver", lambda row: who(row), False, True),
        Column("connected", lambda row: yes(row["connected"]), False),
        Column("matched", lambda row: filters(row), False, True),
        Column("QoS", lambda row: "-" if row["qos"] is None else row["qos"]),
        Column("outcome", lambda row: row["outcome"], False),
    ),
    "retained": (
        Column("topic", lambda row: row["topic"], False, True),
        Column("QoS", lambda row: row["qos"]),
        Column("expires in", lambda row: duration(row["expires_in_s"])),
        Column("bytes", lambda row: count(row["payload_bytes"])),
        Column("payload", lambda row: payload(row), False, True),
    ),
    "bans": (
        Column("kind", lambda row: row["kind"], False),
        Column("name", lambda row: row["name"], False, True),
        Column("ends in", lambda row: "-" if row["ends_in_s"] is None else duration(row["ends_in_s"])),
        Column("reason", lambda row: row["reason"] or "-", False, True),
    ),
    "deliveries": (
        Column("number", lambda row: row["number"]),
        Column("state", lambda row: row["state"], False),
        Column("id", lambda row: row["packet_identifier"]),
        Column("QoS", lambda row: row["qos"]),
        Column("bytes", lambda row: count(row["bytes"])),
        Column("topic", lambda row: row["topic"] or "-", False, True),
    ),
    "messages": (
        Column("time", lambda row: row["time"], False),
        Column("record", lambda row: row["record"]),
        Column("QoS", lambda row: row["qos"]),
        Column("what became of it", lambda row: fate(row), False, True),
        Column("payload", lambda row: payload(row), False, True),
    ),
}
PUBLISHED_AT: Final = Column("at", lambda row: row["worker"])

NOTHING: Final = {
    "peers": "There is one worker, so there are no peers.",
    "clients": "No client is connected.",
    "sessions": "There is no session.",
    "subscriptions": "There is no subscription.",
    "retained": "No retained message matches.",
    "bans": "Nothing is banned.",
    "workers": "No worker is running.",
    "listeners": "No worker is running.",
    "config": "No setting is so.",
}

FATES: Final = {
    "queued": "waits in the queue",
    "sent_not_acknowledged": "sent, not acknowledged",
    "received_not_complete": "PUBREC came, PUBCOMP has not",
    "acknowledged": "acknowledged",
    "refused": "refused by the client",
    "dropped": "dropped",
    "skipped": "dropped",
    "other_member": "another member of the shared subscription got it",
    "no_local": "published by the client itself, with No Local",
    "not_authorized": "left out: the client may not read the topic",
    "not_subscribed": "no subscription matches",
    "earlier": "before the last SUBSCRIBE: finished, or not wanted yet",
    "unknown": "no record tells",
    "qos0_not_recorded": "at QoS 0, which leaves no trace",
    "finished": "sent and finished",
    "waits_for_worker": "waits for the client's worker",
    "on_its_way": "on its way to the client's worker",
    "passed_on": "came to the client's worker, which kept no trace of it",
    "not_passed_on": "not passed on to the client's worker",
}


def fate(row: Row) -> str:
    """Return in words what became of a message."""
    text: str = FATES.get(row["fate"]) or row["fate"]
    if "reason" in row:
        text += f": {row['reason']}"
    if "packet_identifier" in row:
        text += f" (packet identifier {row['packet_identifier']})"
    return text


def console() -> Console:
    """Return where tables go: as wide as the terminal, or COLUMNS, or as they need to be."""
    wide = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else WIDE
    return Console(width=wide, highlight=False, soft_wrap=False)


def table(name: str, rows: list[Row]) -> Table:
    """Return the table of a listing."""
    return columns_of(TABLES[name], rows)


def columns_of(columns: tuple[Column, ...], rows: list[Row]) -> Table:
    """Return a table. Where the terminal is narrow, the columns that may be are cut, and the others stay whole."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        made.add_column(
            Text(column.heading, no_wrap=True),
            justify="right" if column.right else "left",
            no_wrap=not column.cut,
            overflow="ellipsis",
            min_width=MIN_WIDTH if column.cut else None,
        )
    for row in rows:
        made.add_row(*(Text(str(column.text(row)), no_wrap=True, overflow="ellipsis") for column in columns))
    return made


def described(pairs: list[tuple[str, object]]) -> Table:
    """Return names and values, one pair a line; those without a value are left out."""
    made = Table.grid(padding=(0, 2))
    made.add_column(no_wrap=True, style="bold")
    made.add_column(overflow="fold")
    for name, value in pairs:
        if value not in (None, "", "-", [], {}):
            made.add_row(name, Text(str(value)))
    return made


def show(name: str, value: Row) -> None:
    """Print an answer."""
    parts: list[RenderableType]
    if name in DESCRIPTIONS:
        parts = DESCRIPTIONS[name](value)
    elif not value["rows"]:
        parts = [Text(NOTHING[name])]
    else:
        parts = [table(name, value["rows"])]
    if value.get("more"):
        parts.append(Text(f"There are more: --limit sets how many are shown, here {len(value['rows']):,}."))
    put(Group(*parts))


def put(shown: RenderableType) -> None:
    """Print to a terminal as it is, and to anything else without blanks at the ends of lines."""
    to = console()
    if sys.stdout.isatty():
        to.print(shown)
        return
    with to.capture() as captured:
        to.print(shown)
    sys.stdout.write("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n")


def _status(value: Row) -> list[RenderableType]:
    state = "ready" if value["ready"] else "not ready"
    return [
        described(
            [
                ("Shoal", f"{value['version']}, {state}, process {value['pid']}, up {duration(value['uptime_s'])}"),
                ("listening", ", ".join(value["listening"])),
                ("data folder", value["data_folder"]),
                ("durability", value["durability"]),
                ("workers", f"{value['workers']} of {value['workers_wanted']}"),
                ("clients", f"{count(value['clients'])} connected, {count(value['sessions'])} sessions"),
                ("subscriptions", count(value["subscriptions"])),
                (
                    "messages",
                    f"{count(value['messages_in'])} in, {count(value['messages_out'])} out, "
                    f"{count(value['dropped'])} dropped",
                ),
                ("waiting", f"{count(value['queued'])} queued"),
                ("retained", count(value["retained"])),
                ("memory", size(value["memory_bytes"])),
                ("log level", value["log_level"]),
                ("trouble", "; ".join(value["troubles"])),
            ]
        )
    ]


def _client(value: Row) -> list[RenderableType]:
    will = value["will"]
    connected = value["connected"]
    parts: list[RenderableType] = [described([
        ("client", value["client"]),
        ("worker", value["worker"]),
        ("connected", f"{value['address']}, MQTT {VERSIONS[value['version']]}, for {duration(value['connected_s'])}, "
                      f"keep alive {duration(value['keep_alive_s']) if value['keep_alive_s'] else 'none'}"
         if connected else "no"),
        ("came by", came_by(value["came_by"]) if connected and "came_by" in value else None),
        ("mount point", value["mount_point"]),
        ("identity", value.get("identity")),
        ("groups", ", ".join(value.get("groups", ())) or None),
        ("superuser", "yes" if value.get("superuser") else None),
        ("session", f"kept {duration(value['session_expiry_interval_s'])}"
         if value["session_expiry_interval_s"] else "ends with its connection"),
        ("ends in", duration(value["expires_in_s"])),
        ("received", f"{count(value['messages_in'])} messages, {size(value['bytes_in'])}" if connected else None),
        ("sent", f"{count(value['messages_out'])} messages, {size(value['bytes_out'])}, "
                 f"{size(value['output_bytes'])} not sent yet" if connected else None),
        ("owed", f"{count(value['queued'])} queued ({size(value['queued_bytes'])}), "
                 f"{count(value['in_flight'])} in flight"),
        ("window", f"{count(value['send_quota'])} more may be sent" if connected else None),
        ("dropped", ", ".join(f"{name} {count(number)}" for name, number in value.get("dropped", {}).items())),
        ("paused by", ", ".join(value.get("paused_by", []))),
        ("answer", f"{value['answer']['packet'].upper()} has waited for {value['answer']['waits_for']} for "
                   f"{duration(value['answer']['waited_s'])}" if value.get("answer") else None),
        ("QoS 2 received", ", ".join(map(str, value["incoming"]))),
        ("will", f"{will['topic']}, QoS {will['qos']}{', retained' if will['retain'] else ''}, delay "
                 f"{duration(will['delay_interval_s'])}: {payload(will)}" if will else None),
        ("replays", ", ".join(value["replays"])),
        ("subscriptions", count(value["subscriptions"])),
    ])]  # fmt: skip
    if value["topic_filters"]:
        parts += [Text(), columns_of(TABLES["subscriptions"][1:], value["topic_filters"])]
        if value["subscriptions"] > len(value["topic_filters"]):
            parts.append(Text(f"All {value['subscriptions']:,}: shoal admin subscriptions --client …"))
    if value["deliveries"]:
        parts += [Text(), table("deliveries", value["deliveries"])]
    return parts


def _routes(value: Row) -> list[RenderableType]:
    parts: list[RenderableType] = [
        described(
            [
                ("topic", value["topic"]),
                ("publish", f"QoS {value['qos']}{', retain' if value['retain'] else ''}"),
                ("publisher", _publisher(value["publisher"])),
                (
                    "filters",
                    "\n".join(f"{row['topic_filter']}  ({count(row['subscribers'])})" for row in value["filters"]),
                ),
                ("archived", "yes, it is kept for $replay" if value["archived"] else None),
            ]
        )
    ]
    if value["rows"]:
        parts += [Text(), table("routes", value["rows"])]
    elif not value["groups"]:
        parts += [Text(), Text("Nobody would receive it.")]
    for group in value["groups"]:
        picked = (
            f"{who(group['picked'])} would get it at QoS {group['qos']}: {group['outcome']}"
            if (group["picked"])
            else "nobody would get it: no_member"
        )
        parts += [
            Text(),
            Text(
                f"shared subscription {group['group']} on {group['topic_filter']}, "
                f"{group['strategy'].replace('_', ' ')}, {count(group['members'])} members: {picked}"
            ),
            Text("  " + ", ".join(map(who, group["shown"])), overflow="fold"),
        ]
    return parts


def _receivers(value: Row) -> str:
    """Return in words whom a publish was for."""
    number = value["receivers"]
    text = f"{count(number)} receiver{'' if number == 1 else 's'}"
    if not value["unknown"]:
        return text
    return f"{text}, and those of worker {', '.join(map(str, value['unknown']))}, which gave no answer"


def _publisher(value: Row | None) -> str | None:
    if value is None:
        return None
    if not value["connected"]:
        return f"{value['client']}, not connected"
    verdict = "allowed" if value["allowed"] else "not allowed: not_authorized"
    return f"{value['client']}, {verdict} ({value['decided_by']})"


WOULD_BE: Final = {
    "no_subscription": "dropped: no subscription of the client matches",
    "shared_subscription": "one for a member of the shared subscription",
    "sent": "sent at once",
    "queued": "queued",
    "not_authorized": "left out: the client may not read the topic",
}


def _passed_on(row: Row) -> str:
    """Return in words how a worker passes on what is published with it to the client's worker."""
    wanted = ", ".join(f"{each['topic_filter']} (QoS {each['qos']})" for each in row["filters"])
    waits = "".join(
        f", {count(row[name])} {words} in all"
        for name, words in (("queued", "waiting"), ("in_flight", "on their way"))
        if row[name]
    )
    return f"link {row['link']}, {f'wanted by {wanted}' if wanted else 'nothing wanted'}{waits}"


def _why(value: Row) -> list[RenderableType]:
    would_be = value["would_be"]
    parts: list[RenderableType] = [described([
        ("client", f"{value['client']}, {'connected' if value['connected'] else 'not connected'}, session "
         + (f"kept {duration(value['session_expiry_interval_s'])}" if value["session_expiry_interval_s"]
            else "ends with its connection")),
        ("topic", value["topic"]),
        ("matched by", filters(value) or "no topic filter of this client"),
        ("a message now", WOULD_BE.get(would_be, f"dropped: {would_be}")),
        ("owed in all", f"{count(value['queued'])} queued, {count(value['in_flight'])} in flight"),
        ("dropped in all", ", ".join(f"{name} {count(number)}" for name, number in value["dropped"].items())),
        *((f"from worker {row['worker']}", _passed_on(row)) for row in value.get("passed_on_by", ())),
        *((f"from worker {worker}", "unknown: it gave no answer") for worker in value.get("unknown", ())),
    ]), Text()]  # fmt: skip
    if value["messages"] and "passed_on_by" in value:
        time, *others = TABLES["messages"]
        parts.append(columns_of((time, PUBLISHED_AT, *others), value["messages"]))
    elif value["messages"]:
        parts.append(table("messages", value["messages"]))
    else:
        parts.append(Text("The log has no message on this topic." if value["log"] else "There is no log."))
    return parts + [Text(f"In memory only: {fate(row)}, QoS {row['qos_granted']}") for row in value["unlogged"]]


DESCRIPTIONS: Final[dict[str, Callable[[Row], list[RenderableType]]]] = {
    "status": _status,
    "client": _client,
    "routes": _routes,
    "why": _why,
    "acl": asked_about,
    "shadow": on_trial,
    "drain": lambda value: [Text("The broker has ended." if value.get("ended") else "The broker is ending.")],
    "restart": lambda value: [Text(f"{count(len(value['workers']))} workers have new processes."),
                              *([Text(value["error_text"])] if value["error_text"] else [])],
    "log_level": lambda value: [Text(value["level"])],
    "reload": lambda value: [
        Text(f"Read again, by {count(value['workers'])} {'worker' if value['workers'] == 1 else 'workers'}."),
        *(table(name, value[name]) for name in ("listeners", "authenticators", "authorizers") if value[name]),
        *reloaded(value)],
    "forget": lambda value: [Text(f"{value['peer']}: forgotten, {count(value['messages_dropped'])} messages dropped")],
    "kick": lambda value: [Text(f"{value['client']}: " + " and ".join(
        (["disconnected"] if value["disconnected"] else []) + (["session ended"] if value["session_ended"] else [])))],
    "ban": lambda value: [Text(f"The {value['kind']} {value['name']} is banned"
                               + (f" for {duration(value['ends_in_s'])}." if value["ends_in_s"] is not None else "."))],
    "unban": lambda value: [Text(f"The {value['kind']} {value['name']} is banned no more.")],
    "publish": lambda value: [Text(f"{value['topic']}: {_receivers(value)}"
                                   + (", in the log" if value["recorded"] else ""))],
}  # fmt: skip

_LEFT_OUT: Final = frozenset({"time", "direction", "packet", "event", "payload", "payload_base64", "payload_bytes"})


def event_line(event: Row) -> str:
    """Return the line of a trace that says what was seen."""
    if event.get("event") == "tracing":
        state = "has a session" if event["session"] else "has no session yet"
        return f"Looking at {event['client']}, which {state}. Ctrl-C ends it."
    time = event.get("time", "")[11:23] or "            "
    arrow = {"in": "->", "out": "<-"}.get(event.get("direction", ""), "--")
    words: list[str] = [time, arrow, event.get("packet") or event.get("event") or "?"]
    for name, value in event.items():
        if name in _LEFT_OUT or value is False or value == "" or value == {} or value is None:
            continue
        words.append(f"{name}={_value(value)}")
    if "payload_bytes" in event:
        words.append(f"{event['payload_bytes']} B: {payload(event)}")
    return " ".join(words)


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}={_value(item)}" for name, item in value.items() if item) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value)
