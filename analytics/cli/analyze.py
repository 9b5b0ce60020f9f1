"""`shoal analyze`: the jobs of analytics.reports.jobs, and the report, on a data folder, a lake, or both."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from analytics.cli.lake import data_folder, open_session, spark_options, telling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from analytics.source.options import Options

WIDTH = 200  # of what does not go to a terminal

Command = TypeVar("Command", bound=Callable[..., Any])

# What is asked of the log alone, because a lake has no more than messages.
_LOG_OPTIONS = (
    click.option("--data-dir", metavar="DIR", help="The broker's data folder."),
    click.option("--since", metavar="TIME", help="From then on: 2026-11-21T09:30:00Z, or -24h."),
    click.option("--until", metavar="TIME", help="Before then."),
)
_LAKE_OPTIONS = (
    click.option("--lake", metavar="LAKE", help="A lake: what is in it is read there, and what is not, in the log."),
    click.option("--topic-filter", metavar="FILTER", help="Only messages that it matches."),
)
_LAKE_ONLY = click.option("--lake-only", is_flag=True, help="Read the lake and no log.")
_SOURCE_OPTIONS = (*_LOG_OPTIONS, *_LAKE_OPTIONS, _LAKE_ONLY)
_OUTPUT_OPTIONS = (
    click.option("-n", "limit", type=click.IntRange(min=1), default=40, show_default=True, help="Rows to print."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line."),
)


def _options(*which: Any) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for option in reversed(which):
            command = option(command)
        return command

    return add


class Source:
    """What the options of a command name: where messages are, and which ones are wanted."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.spark = open_session(given["master"], given["conf"], given["verbose"], "shoal analyze")
        self.lake: str | None = given.get("lake")
        self.lake_only: bool = given.get("lake_only", False)
        if self.lake_only and self.lake is None:
            raise click.UsageError("--lake-only needs --lake")
        self.data_dir = data_folder(given["data_dir"])
        self.options = {
            name: given[key]
            for name, key in (("since", "since"), ("until", "until"), ("topicFilter", "topic_filter"))
            if given.get(key) is not None
        }

    def messages(self) -> DataFrame:
        """Return the messages."""
        if self.lake is None:
            return self.spark.read.format("shoal").options(**self.options).load(self.data_dir)
        from pyspark.sql import functions as f

        from analytics.lake.lake import read_all, read_lake
        from analytics.lake.payload_decoders import filter_pattern

        if not self.lake_only:
            return read_all(self.spark, self.lake, self.data_dir, **self.options)
        frame = read_lake(self.spark, self.lake, since=self.options.get("since"), until=self.options.get("until"))
        topic_filter = self._wanted().topic_filter
        if topic_filter is None:
            return frame
        return frame.where(f.col("topic").rlike(filter_pattern(topic_filter.decode())))

    def other(self, name: str) -> DataFrame:
        """Return the table `events` or `deliveries` of the log, of the wanted time."""
        from analytics.lake.reading import within

        wanted = self._wanted()
        frame = self.spark.read.format("shoal").option("table", name).load(self.data_dir)
        return within(frame, wanted.since_us, wanted.until_us)

    def _wanted(self) -> Options:
        from analytics.source.options import parse_options

        return parse_options({"path": self.data_dir, **self.options})


def show(frame: DataFrame, limit: int, as_json: bool) -> None:
    """Print the first rows of a DataFrame."""
    rows = [row.asDict(recursive=True) for row in frame.limit(limit).collect()]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, default=str))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False)
    for field in frame.schema.fields:
        right = field.dataType.typeName() in ("long", "integer", "double", "byte")
        shown.add_column(field.name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(Text(_text(value)) for value in row.values()))
    Console(width=None if sys.stdout.isatty() else WIDTH).print(shown if rows else "There is nothing.")


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text)


@click.group(short_help="Ask the log, or a lake, about the fleet.")
def analyze() -> None:
    """Ask the broker's log, or a lake, about the fleet. Times are UTC."""


def _job(
    name: str, what: str, *more: Any, source_options: tuple[Any, ...] = _SOURCE_OPTIONS
) -> Callable[[Callable[..., DataFrame]], click.Command]:
    """Make a command of a function that gets a Source and the options `more`, and returns a DataFrame."""

    def make(function: Callable[..., DataFrame]) -> click.Command:
        def run(limit: int, as_json: bool, **given: Any) -> None:
            with telling():
                source = Source(given)
                arguments = {
                    key: given[key] for key in given if key in {option.name for option in command.params[: len(more)]}
                }
                show(function(source, **arguments), limit, as_json)

        command = analyze.command(name, short_help=what, help=(function.__doc__ or what))(
            _options(*more, *source_options, *_OUTPUT_OPTIONS)(spark_options(run))
        )
        return command

    return make


@_job(
    "traffic", "Messages and bytes by topic, client and time.",
    click.option("--level", type=click.IntRange(min=1), default=1, show_default=True, help="Levels that make a group."),
    click.option("--every", default="1 minute", show_default=True, help="The length of a step."),
)  # fmt: skip
def traffic(source: Source, level: int, every: str) -> DataFrame:
    """Messages and bytes by the first levels of the topic, publisher and time."""
    from analytics.reports import jobs

    return jobs.traffic(source.messages(), level=level, every=every)


@_job("latency", "How long deliveries take, by client.", source_options=_LOG_OPTIONS)
def latency(source: Source) -> DataFrame:
    """Time from acceptance to the receiver's acknowledgement, for sessions that outlive their connection."""
    from analytics.reports import jobs

    return jobs.latency(source.other("deliveries"))


@_job(
    "churn", "Who comes and goes, and who flaps.",
    click.option("--flapping", "flapping_s", type=float, default=60.0, show_default=True,
                 help="Back within so many seconds."),
    source_options=_LOG_OPTIONS,
)  # fmt: skip
def churn(source: Source, flapping_s: float) -> DataFrame:
    """How often clients came and went, for sessions that outlive their connection or have a will."""
    from analytics.reports import jobs

    return jobs.churn(source.other("events"), flapping_s=flapping_s)


@_job(
    "silent", "Who has stopped, against the usual rhythm.",
    click.option("--factor", type=float, default=5.0, show_default=True, help="Times the usual interval."),
)  # fmt: skip
def silent(source: Source, factor: float) -> DataFrame:
    """Devices that have been silent for longer than their rhythm explains."""
    from analytics.reports import jobs

    return jobs.silent(source.messages(), factor=factor)


@_job("outliers", "Payloads of unusual size.")
def outliers(source: Source) -> DataFrame:
    """Payloads whose size is out of the ordinary for their publisher."""
    from analytics.reports import jobs

    return jobs.outliers(source.messages())


@_job(
    "affected", "Who would miss it if topics went away.",
    click.option("--gone", required=True, metavar="FILTER", help="The topics that would go away."),
    source_options=(*_LOG_OPTIONS, *_LAKE_OPTIONS),
)  # fmt: skip
def affected(source: Source, gone: str) -> DataFrame:
    """The clients that publish on topics, and those whose subscriptions match them."""
    from analytics.reports import jobs

    return jobs.affected(source.messages(), source.other("events"), topic_filter=gone)


@_job(
    "gaps", "Where time series have gaps.",
    click.option("--client", help="Only this device."),
    click.option("--factor", type=float, default=3.0, show_default=True, help="Times the usual interval."),
)  # fmt: skip
def gaps(source: Source, client: str | None, factor: float) -> DataFrame:
    """Where a device sent nothing for longer than it usually does."""
    from analytics.reports import jobs

    return jobs.gaps(source.messages(), publisher=client, factor=factor)


@_job(
    "series", "One device over time.",
    click.option("--client", required=True, help="The device."),
    click.option("--every", default="1 minute", show_default=True, help="The length of a step."),
)  # fmt: skip
def series(source: Source, client: str, every: str) -> DataFrame:
    """One device's messages and bytes over time, steps without any included."""
    from analytics.reports import jobs

    return jobs.series(source.messages(), publisher=client, every=every)


@analyze.command(short_help="One HTML file with plots and tables.")
@click.option(
    "-o",
    "--output",
    default="shoal-report.html",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The file to write.",
)
@click.option("--title", default="What the fleet sent", show_default=True)
@_options(*_SOURCE_OPTIONS)
@spark_options
def report(output: Path, title: str, **given: Any) -> None:
    """Write one HTML file with plots and tables, which needs nothing else to be looked at."""
    with telling():
        from analytics.reports.report import collect, render

        source = Source(given)
        started_s = time.monotonic()
        events, deliveries = (None, None) if source.lake_only else (source.other("events"), source.other("deliveries"))
        found = collect(
            source.messages(), events, deliveries, title, lambda what: click.echo(f"looking at {what}", err=True)
        )
        output.write_text(render(found), encoding="utf-8")
        click.echo(f"{output}: {found.messages:,} messages, in {time.monotonic() - started_s:.0f} s")
