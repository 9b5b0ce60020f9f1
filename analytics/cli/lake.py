"""`shoal lake`, and what it shares with `shoal analyze` and `shoal replay`: the commands of the extra `analytics`.

`shoal` finds them by the table in broker/cli/main.py, which knows their modules' names and imports one when it is asked
for. Exit codes: 0 done; 1 it went wrong, and a sentence says how; 2 wrong usage; 130 ended by Ctrl-C.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from analytics.lake.arrow_lake import ArrowLake

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
POLL_S = 1

MORE_MEMORY = "give it more with --conf spark.driver.memory=4g, or take fewer messages at once with --messages-max"
_JAVA_IS_GONE = ("Connection refused", "Answer from Java side is empty", "while trying to connect to the Java server")
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit): .")

Command = TypeVar("Command", bound=Callable[..., Any])

_SPARK_OPTIONS = (
    click.option("--master", metavar="URL", help="Where Spark runs: local[4], spark://HOST:7077. Default: here."),
    click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; may be repeated."),
    click.option("-v", "--verbose", is_flag=True, help="Show Spark's own log."),
)


_WITH_SPARK = click.option(
    "--spark", "with_spark", is_flag=True, help="Let Spark do it, as it must where LAKE is no folder of this machine."
)


def spark_options(command: Command) -> Command:
    """Add --master, --conf and --verbose to a command; open_session() makes a session of what they give."""
    for option in reversed(_SPARK_OPTIONS):
        command = option(command)
    return command


def fail(sentence: str) -> NoReturn:
    """Print a sentence and end with 1."""
    click.echo(f"shoal: {sentence}", err=True)
    raise SystemExit(EXIT_FAILED)


def need_arrow() -> None:
    """End with a sentence if what every command here needs is not there."""
    if any(importlib.util.find_spec(name) is None for name in ("pyarrow", "numpy")):
        fail("this command needs PyArrow, which is not installed: pip install 'shoal-mqtt[lake]'.")


def need_extra() -> None:
    """End with a sentence if Spark is not there."""
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "pyarrow")):
        fail("this command needs Spark, which is not installed: pip install 'shoal-mqtt[analytics]'.")
    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    if shutil.which(java) is None:
        fail(
            "Spark needs Java 17 or newer, which is not installed: on Debian, apt-get install openjdk-17-jre-headless."
        )


def open_session(master: str | None, conf: tuple[str, ...], verbose: bool, name: str) -> SparkSession:
    """Return a session for a command, or end with a sentence."""
    settings = {}
    for setting in conf:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r} is not KEY=VALUE", param_hint="--conf")
        settings[key] = value
    need_extra()
    from analytics.source.spark_session import session

    return session(master=master, name=name, settings=settings, verbose=verbose)


def spark_if_needed(
    path: str, with_spark: bool, master: str | None, conf: tuple[str, ...], verbose: bool, name: str
) -> SparkSession | None:
    """Return a session where a lake needs one, or one is wanted; else None."""
    need_arrow()
    from analytics.lake.engines import needs_spark

    if not (with_spark or master is not None or conf or verbose or needs_spark(path)):
        return None
    return open_session(master, conf, verbose, name)


@contextmanager
def telling() -> Iterator[None]:
    """Say in one sentence what went wrong; end quietly at Ctrl-C and SIGTERM."""
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    except click.ClickException:
        raise
    except Exception as error:
        if os.environ.get("SHOAL_TRACEBACK"):
            raise
        fail(sentence_of(error))


def _interrupted(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def sentence_of(error: BaseException) -> str:
    """Return what an error says, without the traces of the processes that it came through."""
    text = str(error)
    if type(error).__name__ == "NetworkError":  # it names the broker; "Connection refused" is not Java's here
        return text
    if "OutOfMemoryError" in text:
        return f"Spark's Java process has not enough memory: {MORE_MEMORY}"
    if isinstance(error, ConnectionError) or any(each in text for each in _JAVA_IS_GONE):
        return f"Spark's Java process has ended, perhaps because it had not enough memory: {MORE_MEMORY}"
    lines = [line.strip() for line in text.splitlines()]
    # What was raised in a Python process of Spark stands behind its traceback, with the name of its class.
    for line in lines:
        name, colon, sentence = line.partition(": ")
        if colon and name.split(".")[-1] in ("LogError", "LakeError", "NetworkError", "ValueError") and sentence:
            return sentence
    if "Traceback" in text:
        return next((line for line in reversed(lines) if _RAISED.match(line)), "a process of Spark failed: see -v")
    return next((line for line in lines if line), type(error).__name__)


def data_folder(given: str | None) -> str:
    """Return the data folder that an option or the environment names, as `shoal serve` has it by default."""
    return given or os.environ.get("SHOAL_DATA_DIR") or "shoal-data"


# shoal lake -----------------------------------------------------------------------------------------------------------


class LakeCommands(click.Group):
    """`shoal lake LAKE` writes; what is done to a lake that is there has a name: `shoal lake repair LAKE`."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        if not arguments or arguments[0] not in (*self.commands, *context.help_option_names):
            arguments = ["write", *arguments]
        return super().parse_args(context, arguments)


@click.group(cls=LakeCommands, short_help="Write the log into a lake of Parquet files.")
def lake() -> None:
    """The broker's log as a lake of Parquet files or Delta tables.

    `shoal lake LAKE` is `shoal lake write LAKE`. A lake that is called as one of the commands is written ./repair.
    """


@lake.command(short_help="Write the log into a lake, and go on with what comes.")
@click.argument("path", metavar="LAKE")
@click.option("--data-dir", metavar="DIR", help="The broker's data folder.")
@click.option("--decoders", metavar="FILE", help="TOML file that says what payloads mean.")
@click.option("--once", is_flag=True, help="End when all that is in the log now is in the lake.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look for new messages.",
)
@click.option(
    "--messages-max", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="Messages in one batch."
)
@click.option(
    "--format",
    "layout",
    type=click.Choice(["parquet", "delta"]),
    default="parquet",
    show_default=True,
    help="Parquet files, or a Delta table.",
)
@click.option("--keep-days", type=click.IntRange(min=1), help="Forget days before so many, today among them.")
@click.option("--go-on-behind-loss", is_flag=True, help="Go on although messages were removed before they were read.")
@_WITH_SPARK
@spark_options
def write(
    path: str, data_dir: str | None, decoders: str | None, once: bool, every_s: float, messages_max: int, layout: str,
    keep_days: int | None, go_on_behind_loss: bool, with_spark: bool, master: str | None, conf: tuple[str, ...],
    verbose: bool,
) -> None:  # fmt: skip
    """Write all messages of the broker's log into LAKE, each of them once, and go on with what comes.

    It may be ended or killed at any time and started again; so may the broker. LAKE is a folder, or with Spark whatever
    that can write to: hdfs://..., s3a://... The tables in it are `messages`, `quarantine`, and one for each decoder.
    An option of Spark's means --spark.
    """
    with telling():
        spark = spark_if_needed(path, with_spark, master, conf, verbose, "shoal lake")
        from analytics.lake.engines import open_lake
        from analytics.lake.payload_decoders import load_payloads
        from analytics.lake.retention import forget
        from analytics.lake.writer import Plan

        plan = Plan(
            data_folder(data_dir), path, tuple(load_payloads(decoders)) if decoders else (), messages_max,
            options={"failOnDataLoss": "false"} if go_on_behind_loss else {},
        )  # fmt: skip
        written = open_lake(plan, spark, layout)
        for table in written.new_tables():
            click.echo(
                f"{table} gets what comes from now on. To decode what is in the lake already: shoal lake decode {path}"
                f" {table} --decoders {decoders}"
            )
        if spark is None:
            write_on(written, None if once else every_s, keep_days)
        else:
            if keep_days is not None:
                forget(written, first_day(keep_days))
            follow(written.start(every_s=None if once else every_s))


@lake.command(name="repair", short_help="Make a lake whole whose files were removed or damaged.")
@click.argument("path", metavar="LAKE")
@click.option("--data-dir", metavar="DIR", help="The broker's data folder.")
@click.option("--forget", is_flag=True, help="Bring nothing back from the log.")
@_WITH_SPARK
@spark_options
def repair_lake(
    path: str, data_dir: str | None, forget: bool, with_spark: bool, master: str | None, conf: tuple[str, ...],
    verbose: bool,
) -> None:  # fmt: skip
    """Forget files that are gone from LAKE, and bring back from the log the messages that were in them.

    Nobody may be writing to LAKE.
    """
    with telling():
        spark = spark_if_needed(path, with_spark, master, conf, verbose, "shoal lake repair")
        from analytics.lake.payload_decoders import MESSAGES, QUARANTINE
        from analytics.lake.repair import repair

        done = repair(spark, path, None if forget else data_folder(data_dir))
        for name in done.damaged:
            click.echo(f"{name} cannot be read, and is called {name}.damaged now")
        for table, count in sorted(done.missing.items()):
            click.echo(f"{table}: {count} files are gone")
        click.echo(f"{done.restored:,} messages came back from the log")
        decoded = [table for table in done.missing if table not in (MESSAGES, QUARANTINE)]
        if decoded:
            click.echo(f"To decode again what is missing: shoal lake decode {path} {decoded[0]} --decoders FILE")


@lake.command(name="decode", short_help="Decode what is in a lake already.")
@click.argument("path", metavar="LAKE")
@click.argument("table", metavar="TABLE")
@click.option("--decoders", metavar="FILE", required=True, help="TOML file that says what payloads mean.")
@click.option("--data-dir", metavar="DIR", help="The broker's data folder.")
@click.option("--since", metavar="TIME", help="Messages accepted from then on: 2026-11-21T09:30:00Z, or -24h.")
@click.option("--until", metavar="TIME", help="Messages accepted before then.")
@_WITH_SPARK
@spark_options
def decode_lake(
    path: str, table: str, decoders: str, data_dir: str | None, since: str | None, until: str | None, with_spark: bool,
    master: str | None, conf: tuple[str, ...], verbose: bool,
) -> None:  # fmt: skip
    """Decode messages of LAKE that are not in TABLE yet, which a decoder in FILE has.

    For a decoder that was added later, and for messages in the quarantine that it can decode now. Nobody may be writing
    to LAKE. It may be ended and begun again.
    """
    with telling():
        spark = spark_if_needed(path, with_spark, master, conf, verbose, "shoal lake decode")
        from analytics.lake.history import decode_history
        from analytics.lake.payload_decoders import load_payloads
        from analytics.lake.writer import Plan

        def told(day: str, decoded: int, quarantined: int) -> None:
            click.echo(f"{day}: {decoded:,} decoded, {quarantined:,} in the quarantine")

        plan = Plan(data_folder(data_dir), path, tuple(load_payloads(decoders)))
        decoded, quarantined = decode_history(spark, plan, table, since=since, until=until, told=told)
        click.echo(f"done: {decoded:,} decoded, {quarantined:,} in the quarantine")


@lake.command(name="forget", short_help="Forget the old days of a lake.")
@click.argument("path", metavar="LAKE")
@click.option("--keep-days", type=click.IntRange(min=1), required=True, help="So many days stay, today among them.")
@_WITH_SPARK
@spark_options
def forget_days(
    path: str, keep_days: int, with_spark: bool, master: str | None, conf: tuple[str, ...], verbose: bool
) -> None:
    """Remove the days of LAKE that are older, in all tables. They do not come back from the log.

    Nobody may be writing to LAKE: `shoal lake LAKE --keep-days N` does it once a day itself.
    """
    with telling():
        spark = spark_if_needed(path, with_spark, master, conf, verbose, "shoal lake forget")
        from analytics.lake.engines import open_lake
        from analytics.lake.retention import forget
        from analytics.lake.writer import Plan

        opened = open_lake(Plan("", path), spark)
        try:
            gone = forget(opened, first_day(keep_days))
        finally:
            opened.close()
        for table, count in sorted(gone.items()):
            click.echo(f"{table}: {count} files are gone")
        click.echo(f"done: the lake begins with {first_day(keep_days)}")


def first_day(keep_days: int) -> str:
    """Return the first of so many days, of which today is the last, in UTC."""
    return (datetime.now(UTC).date() - timedelta(days=keep_days - 1)).isoformat()


def write_on(lake: ArrowLake, every_s: float | None, keep_days: int | None = None) -> None:
    """Write batches and print a line for each: all that there is now, or, with every_s, for ever.

    Args:
        every_s: how often to look for new messages; None: end when all is there.
        keep_days: forget days before these, when a day begins; None: keep all.
    """
    from analytics.lake.retention import forget

    if every_s is None:
        lake.end_here()
    messages, number = 0, 0
    started_s = time.monotonic()
    try:
        while True:
            begun_s = time.monotonic()
            if keep_days is not None and (first := first_day(keep_days)) > lake.state.since:
                for table, count in sorted(forget(lake, first).items()):
                    click.echo(f"{table}: {count} files from before {first} are gone")
            found = lake.write()
            if found:
                messages += found
                click.echo(
                    f"batch {number}: {found:,} messages in {time.monotonic() - begun_s:.1f} s, {messages:,} in all"
                )
                sys.stdout.flush()
                number += 1
            elif every_s is None:
                break
            if every_s is not None and found < lake.plan.messages_max:
                time.sleep(max(0.0, begun_s + every_s - time.monotonic()))
    finally:
        lake.close()
    click.echo(f"done: {messages:,} messages in {time.monotonic() - started_s:.1f} s")


def follow(query: StreamingQuery) -> None:
    """Print a line for each batch until a stream ends, by itself or by Ctrl-C. Raises what ended it."""
    told = -1
    messages = 0
    started_s = time.monotonic()
    try:
        while True:
            active = query.isActive
            for progress in query.recentProgress:
                if progress["batchId"] > told and progress["numInputRows"]:
                    told = progress["batchId"]
                    messages += progress["numInputRows"]
                    seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
                    click.echo(
                        f"batch {told}: {progress['numInputRows']:,} messages in {seconds:.1f} s, {messages:,} in all"
                    )
                    sys.stdout.flush()
            if not active:
                break
            query.awaitTermination(POLL_S)
        failure = query.exception()
        if failure is not None:
            raise failure
    finally:
        query.stop()
    click.echo(f"done: {messages:,} messages in {time.monotonic() - started_s:.1f} s")
