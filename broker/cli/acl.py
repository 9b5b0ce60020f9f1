"""`shoal acl`: look at files of rules before a broker is given them.

Exit codes: 0 all is well; 1 a file cannot be used, or the answer is no; 2 wrong usage.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

EXIT_NO = 1


@click.group(short_help="Look at files of rules.")
def acl() -> None:
    """Look at ACL files and rules files; no broker is asked."""


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
