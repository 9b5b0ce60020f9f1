"""`shoal generate`: what watches a broker from outside, made from the table of its metrics."""

from __future__ import annotations

import click

from broker.cli.common import prepared


@click.group()
def generate() -> None:
    """Print a board for Grafana, or alerting rules for Prometheus, for this version's metrics."""


prepared(generate)


@generate.command()
def grafana() -> None:
    """Print a board, to be imported into Grafana 10 or 11 as JSON."""
    from broker.telemetry.grafana import text

    click.echo(text(), nl=False)


@generate.command()
def alerts() -> None:
    """Print alerting rules, for `rule_files` of Prometheus."""
    from broker.telemetry.alerts import rules

    click.echo(rules(), nl=False)
