"""`shoal replay`: publish a stretch of the log again, to any broker, as fast as it was or at another speed."""

from __future__ import annotations

import heapq
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from analytics.cli.lake import data_folder, telling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.log.reader import Row

TELL_EVERY_S: Final = 1.0
PAUSE_S_MAX: Final = 0.5


@click.command(short_help="Publish a stretch of the log again.")
@click.argument("url", metavar="tcp://HOST:PORT")
@click.option("--data-dir", metavar="DIR", help="The data folder that has the log.")
@click.option("--since", metavar="TIME", help="From then on: 2026-11-21T09:30:00Z, or -1h.")
@click.option("--until", metavar="TIME", help="Before then.")
@click.option("--topic-filter", metavar="FILTER", help="Only messages that it matches.")
@click.option(
    "--speed",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Times as fast as it was; 0: as fast as it goes.",
)
@click.option("--topic-prefix", default="", metavar="TEXT", help="Put this in front of each topic name.")
@click.option("--qos", type=click.IntRange(0, 2), help="Publish with this QoS and not with that of each message.")
@click.option("-u", "--user", help="User name.")
@click.option(
    "-P",
    "--password",
    envvar="MQTT_PASSWORD",
    help="Password; the environment variable MQTT_PASSWORD keeps it out of sight.",
)
def replay(
    url: str, data_dir: str | None, since: str | None, until: str | None, topic_filter: str | None, speed: float,
    topic_prefix: str, qos: int | None, user: str | None, password: str | None,
) -> None:  # fmt: skip
    """Publish the messages of a stretch of the log again, in their order, with their properties.

    It needs no Spark. A broker that takes messages more slowly than they come delays those that follow.
    """
    with telling():
        from analytics.source.mqtt_client import Client

        published = 0
        late = 0.0
        with Client(url, username=user, password=password) as client:
            told_s = started_s = time.monotonic()
            first_us: int | None = None
            for row in _rows(data_folder(data_dir), since, until, topic_filter):
                fields = row.fields
                if first_us is None:
                    first_us, started_s = row.time_us, time.monotonic()
                if speed:
                    due_s = started_s + (row.time_us - first_us) / 1e6 / speed
                    late = max(late, _wait_until(client, due_s))
                client.publish(
                    topic_prefix + fields["topic_name"].decode(), fields["payload"],
                    fields["qos"] if qos is None else qos,
                    fields["retain"], fields["properties"],
                )  # fmt: skip
                published += 1
                if time.monotonic() - told_s >= TELL_EVERY_S and sys.stderr.isatty():
                    told_s = time.monotonic()
                    click.echo(f"\r{published:,} messages", nl=False, err=True)
            client.flush()
            took_s = time.monotonic() - started_s
            if client.refused:
                codes = ", ".join(f"{code:#04x}" for code in sorted(set(client.refused)))
                raise ValueError(f"{url} refused {len(client.refused)} of {published} messages: reason code {codes}")
        behind = f", up to {late:.1f} s late" if late > 1 else ""
        click.echo(f"{published:,} messages in {took_s:.1f} s{behind}")


def _wait_until(client: Any, due_s: float) -> float:
    """Wait until it is time, with the connection looked after; return how late we are, in seconds."""
    now_s = time.monotonic()
    if due_s > now_s:
        client.send()
    while (left_s := due_s - time.monotonic()) > 0:
        client.look_after(min(left_s, PAUSE_S_MAX))
    return max(0.0, now_s - due_s)


def _rows(folder: str, since: str | None, until: str | None, topic_filter: str | None) -> Iterator[Row]:
    from analytics.source.log_reader import worker_folders
    from analytics.source.options import parse_options
    from router.log.disk import Disk
    from router.log.reader import Reader
    from router.log.record_scan import Scan

    named = {"since": since, "until": until, "topicFilter": topic_filter}
    wanted = parse_options({"path": folder, **{name: value for name, value in named.items() if value is not None}})
    readers = [
        Reader(
            Disk(path), worker,
            Scan(wanted.topic_filter, since_us=wanted.since_us, until_us=wanted.until_us),
            since_us=wanted.since_us, until_us=wanted.until_us,
        )
        for worker, path in worker_folders(folder).items()
    ]  # fmt: skip
    # Each log is in the order of its clock, but for a clock that was set back.
    yield from heapq.merge(*(reader.rows() for reader in readers), key=_time)
    for reader in readers:
        for problem in reader.problems:
            click.echo(f"shoal: {problem}.", err=True)


def _time(row: Row) -> int:
    return row.time_us
