"""What `shoal admin` prints of users and of rights, and of their changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from broker.cli.cells import count, duration
from broker.config.setting import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

Row = dict[str, Any]

ROWS_SHOWN: Final = 40
ALLOWED: Final = {"whole": "yes", "narrowed": "in part", "refused": "no"}


def asked_about(value: Row) -> list[RenderableType]:
    """Return the lines that say what a client may do, and who that is."""
    user = "no user name" if value["user"] is None else f"user name {value['user']}"
    address = "" if value["address"] is None else f", from {value['address']}"
    there = "which is connected" if value["known_from"] == "connection" else "as it was described"
    return [
        Text(f"{ALLOWED[value['allowed']]}: {value['decided_by']}"),
        Text(f"{value['client']}, {there}: {user}{address}"),
    ]


def reloaded(value: Row) -> list[RenderableType]:
    """Return the lines that say what a reload has changed of users and of rules."""
    lines = [
        *(_settings(value["settings"]) if "settings" in value else []),
        *_changed("Users", value["users"]),
        *_changed("Rules", value["rules"]),
    ]
    if not value["in_force"]:
        lines.append(Text("What clients may do by it is not in force everywhere yet: the log is behind."))
    return lines


def _settings(changes: Sequence[Row]) -> list[RenderableType]:
    if not changes:
        return [Text("Settings: as before.")]
    lines = [f"Settings: {count(len(changes))} changed."]
    for change in changes:
        is_table = change["from"] is None and change["to"] is None
        values = "" if is_table else f": {shown(change['from'])} -> {shown(change['to'])}"
        lines.append(f"  {change['key']}{values}, {change['counts']}")
    return [Text("\n".join(lines))]


def on_trial(value: Row) -> list[RenderableType]:
    """Return the lines that say what rules on trial would have decided otherwise."""
    lines = [
        f"For {duration(value['for_s'])}: {count(value['refused'])} would have been refused or narrowed, "
        f"{count(value['allowed'])} allowed."
    ]
    lines += [f"  {count(row['count'])} {row['verdict']}: {row['decided_by']}" for row in value["rules"][:ROWS_SHOWN]]
    if value["rows"]:
        lines.append("Of these:")
    lines += [
        f"  {count(row['count'])} {row['verdict']}: {row['client']} "
        f"({'no user name' if row['user'] is None else row['user']}) {row['action']} {row['topic']}"
        for row in value["rows"][:ROWS_SHOWN]
    ]
    beyond = sum(row["count"] for row in value["rows"][ROWS_SHOWN:]) + value["beyond"]
    if beyond:
        lines.append(f"  ... and {count(beyond)} of others; --json has more")
    return [Text("\n".join(lines))]


def _changed(of_what: str, change: Row | None) -> list[RenderableType]:
    if change is None:
        return []
    altered = change.get("altered", 0)
    in_all = change["come"] + change["gone"] + altered
    if not in_all:
        return [Text(f"{of_what}: as before.")]
    beyond = in_all - len(change["shown"])
    when = f", {duration(change['seconds_ago'])} ago" if change["seconds_ago"] >= 1 else ""
    passwords = f", {count(altered)} with another password" if altered else ""
    counts = f"{count(change['come'])} new, {count(change['gone'])} gone{passwords}"
    more = [f"... and {count(beyond)} more"] if beyond > 0 else []
    return [Text("\n".join([f"{of_what}: {counts}{when}.", *change["shown"], *more]))]
