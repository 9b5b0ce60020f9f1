"""`shoal top`: a live screen of a running broker: rates, workers, drops by reason, clients that are behind."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from broker.cli.log import data_folder, folder_options, reading

Row = dict[str, Any]

EXIT_NO_BROKER: Final = 2
SLOWEST: Final = 50
CUT: Final = ("furthest behind", "address")  # columns that may be cut where the terminal is narrow


@click.command(short_help="Watch a running broker.")
@folder_options
@click.option(
    "-i",
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Print one screen and end; that is so too where no terminal reads.")
def top(data_dir: str | None, file: Path | None, interval: float, once: bool) -> None:
    """Show rates, workers, drops by reason, and the clients that are furthest behind, until q or Ctrl-C.

    Rates are those since the last look; on the first screen, of a first interval.
    """
    from broker.cli.admin_client import AdminClient, AdminError
    from broker.cli.admin_text import put

    client = AdminClient.of(data_folder(data_dir, file))
    try:
        with reading():
            if once or not sys.stdout.isatty():
                before = look(client)
                time.sleep(min(interval, 1.0))
                put(screen(before, look(client)))
            else:
                _run(client, interval)
    except AdminError as error:
        click.echo(f"shoal: {error}", err=True)
        sys.exit(EXIT_NO_BROKER)
    finally:
        client.close()


def _run(client: Any, interval: float) -> None:
    """Renew the screen until q is pressed or Ctrl-C. Raises AdminError when the broker has gone."""
    from rich.live import Live

    from broker.cli.admin_text import console

    terminal = console()
    before = look(client)
    with _keys() as pressed, Live(console=terminal, screen=True, auto_refresh=False) as live:
        live.update(screen(before, before, terminal.height), refresh=True)
        while not pressed(interval):
            now = look(client)
            live.update(screen(before, now, terminal.height), refresh=True)
            before = now


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """Give a function that waits for so many seconds and returns whether q was pressed meanwhile."""
    descriptor = sys.stdin.fileno() if sys.stdin.isatty() else -1
    saved = termios.tcgetattr(descriptor) if descriptor >= 0 else None

    def pressed(seconds: float) -> bool:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            ready = select.select([descriptor] if descriptor >= 0 else [], [], [], left_s)[0]
            if ready and os.read(descriptor, 16)[:1] in (b"q", b"Q", b"\x03", b""):
                return True
        return False

    try:
        if saved is not None:
            tty.setcbreak(descriptor)
        yield pressed
    finally:
        if saved is not None:
            termios.tcsetattr(descriptor, termios.TCSADRAIN, saved)


def look(client: Any) -> Row:
    """Return what the broker says of itself now."""
    return {
        "at_s": time.monotonic(),
        "status": client.ask("GET", "/status"),
        "workers": client.ask("GET", "/workers")["rows"],
        "slowest": client.ask("GET", "/slowest", {"limit": SLOWEST})["rows"],
    }  # fmt: skip


def _rate(before: Row, now: Row, value: Any) -> float:
    """Return by how much something grew each second, over the workers that have not been restarted."""
    seconds = now["at_s"] - before["at_s"]
    older = {row["worker"]: row for row in before["workers"] if "error" not in row}
    grown = sum(
        max(0, value(row) - value(older[row["worker"]]))
        for row in now["workers"]
        if "error" not in row and row["worker"] in older
    )
    return float(grown / seconds) if seconds > 0 else 0.0


def screen(before: Row, now: Row, height: int | None = None) -> Any:
    """Return the screen of two looks: rates are what lies between them.

    Args:
        height: lines that there are; None for any number.
    """
    from rich.console import Group
    from rich.text import Text

    from broker.cli.admin_text import described
    from broker.cli.cells import count, duration, size

    status = now["status"]

    def rate(name: str) -> float:
        return _rate(before, now, lambda row: row[name])

    head = Text(
        f"Shoal {status['version']}  {'ready' if status['ready'] else 'NOT READY'}  "
        f"up {duration(status['uptime_s'])}  {', '.join(status['listening'])}",
        style="bold",
        no_wrap=True,
    )
    totals = described(
        [
            ("messages", f"{count(rate('messages_in'))}/s in, {count(rate('messages_out'))}/s out"),
            ("bytes", f"{size(rate('bytes_in'))}/s in, {size(rate('bytes_out'))}/s out"),
            (
                "clients",
                f"{count(status['clients'])} connected, {count(status['sessions'])} sessions, "
                f"{rate('connections'):.1f}/s new",
            ),
            ("waiting", f"{count(status['queued'])} messages queued, {count(status['retained'])} retained"),
            ("trouble", "; ".join(status["troubles"])),
        ]
    )
    parts: list[Any] = [head, totals, Text(), _workers(before, now), Text(), _drops(before, now)]
    used = 9 + len(now["workers"]) + 4 + len(_dropped(now))
    left = len(now["slowest"]) if height is None else max(0, height - used)
    if now["slowest"]:
        parts += [Text(), _slowest(now["slowest"][:left])]
    else:
        parts += [Text(), Text("No client is behind.")]
    return Group(*parts)


def _made(*headings: tuple[str, bool]) -> Any:
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading, right in headings:
        made.add_column(
            heading,
            justify="right" if right else "left",
            no_wrap=heading not in CUT,
            overflow="ellipsis",
            min_width=10 if heading in CUT else None,
        )
    return made


def _workers(before: Row, now: Row) -> Any:
    from broker.cli.cells import count, size

    made = _made(
        ("worker", True),
        ("clients", True),
        ("in/s", True),
        ("out/s", True),
        ("busy", True),
        ("turn p99", True),
        ("turn max", True),
        ("queued", True),
        ("memory", True),
    )
    for row in now["workers"]:
        if "error" in row:
            made.add_row(str(row["worker"]), row["error"])
            continue
        one = {**now, "workers": [row]}
        busy = _rate(before, one, lambda counted: counted["turns"]["total_us"]) / 10_000
        made.add_row(
            str(row["worker"]),
            count(row["sessions_connected"]),
            count(_rate(before, one, lambda counted: counted["messages_in"])),
            count(_rate(before, one, lambda counted: counted["messages_out"])),
            f"{min(busy, 100):.0f} %",
            f"{row['turns']['p99_us']:,} µs",
            f"{row['turns']['max_us']:,} µs",
            count(row["queued_messages"]),
            size(row["resident_bytes"]),
        )
    return made


def _dropped(look_: Row) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in look_["workers"]:
        for reason, number in row.get("dropped", {}).items():
            found[reason] = found.get(reason, 0) + number
    return found


def _drops(before: Row, now: Row) -> Any:
    from rich.text import Text

    from broker.cli.cells import count

    dropped = _dropped(now)
    if not dropped:
        return Text("No message has been dropped.")
    made = _made(("dropped because of", False), ("messages", True), ("each second", True))
    for reason, number in sorted(dropped.items(), key=lambda item: -item[1]):
        rate = _rate(before, now, lambda row, reason=reason: row["dropped"].get(reason, 0))
        made.add_row(reason, count(number), count(rate))
    return made


def _slowest(rows: list[Row]) -> Any:
    from rich.text import Text

    from broker.cli.cells import count, size

    made = _made(
        ("furthest behind", False),
        ("address", False),
        ("behind", True),
        ("unsent", True),
        ("queued", True),
        ("in flight", True),
        ("dropped", True),
    )
    for row in rows:
        made.add_row(
            Text(row["client"], no_wrap=True),
            Text(row["address"] or "-", no_wrap=True),
            size(row["behind_bytes"]),
            size(row["output_bytes"]),
            count(row["queued"]),
            count(row["in_flight"]),
            count(row["messages_dropped"]),
        )
    return made
