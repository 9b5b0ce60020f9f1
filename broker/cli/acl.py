"""`shoal acl`: look at files of rules before a broker is given them.

Exit codes: 0 all is well; 1 a file cannot be used, or the answer is no, or something would have been refused; 2 wrong
usage, or the log cannot be read; 130 ended by Ctrl-C.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from broker.cli.log import data_folder, folder_options, progress_bar, reading, worker_folders

if TYPE_CHECKING:
    from broker.auth.rule_set import RuleSet
    from broker.storage.rights_trial import Trial
    from router.log.reader import Progress

EXIT_NO = 1
ROWS_SHOWN = 40


@click.group(short_help="Look at files of rules.")
def acl() -> None:
    """Look at ACL files and rules files; no running broker is asked."""


@acl.command(short_help="Whether files of rules can be used.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def check(files: tuple[Path, ...]) -> None:
    """Read files of rules as a broker would, and say what is wrong with them, and in which line.

    What ends with .toml is a rules file, anything else an ACL file of mosquitto's.
    """
    from broker.auth.authorizers import read_rules
    from broker.config.start_error import StartError

    wrong = False
    for file in files:
        try:
            rule_set, notes = read_rules(file)
        except StartError as error:
            click.echo(str(error), err=True)
            wrong = True
            continue
        click.echo(f"{file}: {rule_set.rule_count:,} rules, {rule_set.users_known:,} users with rules of their own.")
        for note in notes:
            click.echo(f"{file}: {note}")
    if wrong:
        sys.exit(EXIT_NO)


@acl.command(short_help="What files of rules say about one thing.")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("action", type=click.Choice(["publish", "subscribe", "read"]))
@click.argument("topic")
@click.option("-u", "--user", help="The client's user name; none without this.")
@click.option("-i", "--id", "identifier", default="client", show_default=True, help="Its client identifier.")
@click.option("--address", help="Its IP address.")
@click.option("--group", "groups", multiple=True, help="A group that it is in; may be given more than once.")
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=0, show_default=True)
@click.option("-r", "--retain", is_flag=True)
def ask(
    file: Path,
    action: str,
    topic: str,
    user: str | None,
    identifier: str,
    address: str | None,
    groups: tuple[str, ...],
    qos: int,
    retain: bool,
) -> None:
    """Say whether a file allows a client to publish to a topic, to subscribe to a topic filter, or to be sent a topic.

    Exit code 0: it does, or does in part; 1: it does not.
    """
    import time

    from broker.auth.acl import Grant
    from broker.auth.authorizers import read_rules
    from broker.auth.principal import Principal
    from broker.auth.rule_chain import RuleChain
    from broker.config.start_error import StartError
    from router.matching.topic_names import check_topic_filter, is_topic_name

    encoded = topic.encode()
    if action == "subscribe":
        wrong = check_topic_filter(encoded)
        if wrong is not None:
            raise click.UsageError(f"{topic!r}: {wrong}")
    elif not is_topic_name(encoded):
        raise click.UsageError(f"{topic!r}: a topic name has no + and no #")
    try:
        rule_set, _ = read_rules(file, time.time())
    except StartError as error:
        click.echo(str(error), err=True)
        sys.exit(EXIT_NO)
    chain = RuleChain([rule_set], decides_by_qos=True)
    decision = chain.explain(
        Principal(user, identifier.encode(), address, 0, groups=groups), action, encoded, qos, retain
    )
    words = {Grant.WHOLE: "yes", Grant.NARROWED: "in part", Grant.REFUSED: "no"}
    click.echo(f"{words[decision.grant]}: {decision.by}")
    if decision.grant == Grant.REFUSED:
        sys.exit(EXIT_NO)


@acl.command("test", short_help="What files of rules would have refused.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--since", metavar="TIME", help="24h, 7d, or a time such as 2026-11-21T09:30:00Z; all that there is without."
)
@click.option("--strict", is_flag=True, help='As with subscribe = "strict": nothing is narrowed.')
@click.option(
    "--connections",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Lines of the broker's log, JSON, that say who clients were of whom the commit log does not.",
)
@click.option("--limit", type=click.IntRange(1), default=ROWS_SHOWN, show_default=True, help="Lines of a list.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with all there is.")
@folder_options
def try_files(
    files: tuple[Path, ...],
    since: str | None,
    strict: bool,
    connections: Path | None,
    limit: int,
    as_json: bool,
    data_dir: str | None,
    file: Path | None,
) -> None:
    """Judge the messages and subscriptions in the commit log by other rules: FILES, asked in this order.

    Says what they would have refused, to whom, and by which rule, and which rules decided about nothing. The broker may
    be running; it is not asked, and nothing is changed.

    Exit code 0: nothing would have been refused; 1: something would have been.
    """
    from broker.auth.acl import Grant
    from broker.cli.trial_text import trial_json, trial_text
    from broker.storage.rights_trial import Trial

    with reading():
        folders = worker_folders(data_folder(data_dir, file))
        rule_sets = _rule_sets(files, file)
        users = None if connections is None else _users(connections)
        trial = Trial(rule_sets, _since_us(since), is_strict=strict, users=users)
        with progress_bar("Reading", sum(_bytes_in(path) for path in folders.values())) as progress:
            problems = _read(folders, trial, progress)
        for line in [trial_json(trial, problems)] if as_json else trial_text(trial, limit):
            click.echo(line)
        for problem in problems:
            click.echo(f"shoal: {problem}.", err=True)
    if any(row.grant == Grant.REFUSED for row in trial.rows.values()):
        sys.exit(EXIT_NO)


def _rule_sets(files: tuple[Path, ...], config: Path | None) -> list[RuleSet]:
    import os

    from broker.auth.authorizers import read_rules
    from broker.config.loader import ConfigError, load
    from broker.config.start_error import StartError

    try:
        # Rules may name listeners, which are in the settings.
        listeners = () if config is None else [one.address for one in load(config, os.environ, {}).listeners]
        return [read_rules(file, listeners=listeners)[0] for file in files]
    except (ConfigError, StartError) as error:
        click.echo(str(error), err=True)
        sys.exit(EXIT_NO)


def _since_us(text: str | None) -> int:
    import time

    from router.log.replay_position import parse_span, parse_time

    if text is None:
        return 0
    now_us = time.time_ns() // 1000
    try:
        if text[:1].isdecimal() and text[-1:] in "smhd":
            return max(0, now_us - parse_span(text) * 1_000_000)
        return parse_time(text, now_us)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from None


def _users(file: Path) -> dict[str, tuple[str | None, str | None]]:
    """Return who clients were, by client identifier: the user name and host that they had last."""
    import json

    from broker.auth.principal import host_of

    found: dict[str, tuple[str | None, str | None]] = {}
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if '"client_connected"' not in line:
                continue
            try:
                event = json.loads(line)
                found[event["client"]] = event["user"], host_of(event["address"])
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # a line that was cut off, or another's
    return found


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("segment-*.log"))


def _read(folders: dict[int, Path], trial: Trial, progress: Progress) -> list[str]:
    import time

    from broker.storage.rights_trial import try_log
    from router.log.disk import Disk
    from router.log.segments import SegmentError

    problems = []
    try:
        for number, path in folders.items():
            now_us = time.time_ns() // 1000
            problems += [f"{path}: {one}" for one in try_log(Disk(str(path)), number, trial, now_us, progress)]
    except SegmentError as error:
        raise click.UsageError(str(error)) from None
    return problems
