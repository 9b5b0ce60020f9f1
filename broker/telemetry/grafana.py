"""A board for Grafana 10 and 11: every metric that there is, in the rows in which an operator looks for them.

Which panels there are stands here; what a panel asks for follows from the table of families
(broker.telemetry.prometheus): counters are shown as rates, histograms as quantiles, all by their labels. `shoal
generate grafana` prints it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from broker.telemetry.prometheus import BROKER, FAMILIES, Family, sample

SCHEMA_VERSION: Final = 39  # of Grafana 10.4 and 11, which read older ones as well
COLUMNS: Final = 24
PANEL_HEIGHT: Final = 7
STAT_HEIGHT: Final = 4
QUANTILES: Final = (0.5, 0.99)
WHERE: Final = 'job=~"$job", instance=~"$instance"'
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
UNITS: Final = {"seconds": "s", "bytes": "bytes", "": "short"}
RATES: Final = {"seconds": "percentunit", "bytes": "Bps", "": "cps"}  # of a counter: seconds in a second are a share

WORST: Final = frozenset({"shoal_ready", "shoal_worker_up", "shoal_tls_certificate_days_left"})  # the lowest counts


class Panel(NamedTuple):
    """One panel of plots.

    Attributes:
        title: what it shows.
        families: whose samples; several are told apart by their names.
        by: labels to tell the plots apart by, beside a family's own.
        unit: as Grafana names it, where the family's own is not meant.
    """

    title: str
    families: tuple[str, ...]
    by: tuple[str, ...] = ()
    unit: str = ""


class Stat(NamedTuple):
    """A big number.

    Attributes:
        title: what it says.
        expression: in PromQL.
        unit: as Grafana names it.
        red_below, red_from: which values are wrong; None: none.
    """

    title: str
    expression: str
    unit: str = "short"
    red_below: float | None = None
    red_from: float | None = None


def _rate_of(name: str) -> str:
    return f"sum(rate({sample(name)}{{{WHERE}}}[$__rate_interval]))"


STATS: Final = (
    Stat("Ready", f"min({sample('shoal_ready')}{{{WHERE}}})", "bool_yes_no", red_below=1),
    Stat("Workers", f"sum({sample('shoal_worker_up')}{{{WHERE}}})", red_below=1),
    Stat("Clients connected", f"sum({sample('shoal_clients_connected')}{{{WHERE}}})"),
    Stat("Messages in", _rate_of("shoal_messages_received"), "cps"),
    Stat("Messages out", _rate_of("shoal_messages_sent"), "cps"),
    Stat("Dropped", _rate_of("shoal_messages_dropped"), "cps"),
    Stat("Queued", f"sum({sample('shoal_queued_messages')}{{{WHERE}}})"),
    Stat("Up for", f"time() - max({sample('shoal_start_time_seconds')}{{{WHERE}}})", "s"),
)

ROWS: Final = {
    "Health": (
        Panel("Checks of /readyz", ("shoal_ready",)),
        Panel("Workers that answer", ("shoal_worker_up",)),
        Panel("Version", ("shoal_build_info",)),
        Panel("Started", ("shoal_start_time_seconds",), ("instance",), "dateTimeAsIso"),
        Panel("Log lines that were not written", ("shoal_log_lines_suppressed", "shoal_log_lines_dropped")),
        Panel("Faults", ("shoal_unraisable",)),
    ),
    "Messages": (
        Panel("Messages received", ("shoal_messages_received",)),
        Panel("Messages sent", ("shoal_messages_sent",)),
        Panel("Messages dropped", ("shoal_messages_dropped",)),
        Panel("Payloads", ("shoal_payload_received_bytes", "shoal_payload_sent_bytes")),
        Panel("Network", ("shoal_network_received_bytes", "shoal_network_sent_bytes")),
        Panel("Packets received", ("shoal_packets_received",)),
        Panel("Packets sent", ("shoal_packets_sent",)),
        Panel("Messages replayed", ("shoal_replayed_messages",)),
    ),
    "Clients": (
        Panel("Clients and sessions", ("shoal_clients_connected", "shoal_sessions", "shoal_connections")),
        Panel("Clients by worker", ("shoal_clients_connected",), ("worker",)),
        Panel("Connections opened", ("shoal_connections_opened", "shoal_clients_handed_over")),
        Panel("Connections closed", ("shoal_connections_closed",)),
        Panel("Connections refused", ("shoal_connects_refused",)),
        Panel("Reading paused", ("shoal_reading_paused",)),
        Panel("Accepting paused", ("shoal_accepting_paused",)),
        Panel("Sessions expired", ("shoal_sessions_expired",)),
    ),
    "Subscriptions and queues": (
        Panel("Subscriptions", ("shoal_subscriptions",)),
        Panel("Subscriptions refused", ("shoal_subscriptions_refused",)),
        Panel("Subscriptions revoked", ("shoal_subscriptions_revoked",)),
        Panel("Queued and in flight", ("shoal_queued_messages", "shoal_inflight_messages")),
        Panel("Queued and not taken", ("shoal_queued_bytes", "shoal_output_buffer_bytes")),
        Panel("Retained messages", ("shoal_retained_messages", "shoal_retained_pending")),
        Panel("Retained bytes", ("shoal_retained_bytes",)),
        Panel("Replays", ("shoal_replays",)),
    ),
    "Log": (
        Panel("Records", ("shoal_log_records", "shoal_log_syncs")),
        Panel("Written", ("shoal_log_written_bytes",)),
        Panel("Records that wait for the disk", ("shoal_log_waiting_records",), ("worker",)),
        Panel("Trouble", ("shoal_log_trouble", "shoal_log_errors"), ("worker",)),
        Panel("Segments", ("shoal_log_segments",), ("worker",)),
    ),
    "Workers": (
        Panel("Turns", ("shoal_turn_duration_seconds",), ("worker",)),
        Panel("Waiting for a turn", ("shoal_turn_lag_seconds",), ("worker",)),
        Panel("Time in turns", ("shoal_turn_phase_seconds",)),
        Panel("Time in turns, by worker", ("shoal_turn_phase_seconds",), ("worker",)),
        Panel("Slow turns", ("shoal_slow_turns",), ("worker",)),
        Panel("Memory", ("shoal_memory_resident_bytes",), ("worker",)),
        Panel("Limit of memory reached", ("shoal_memory_full",), ("worker",)),
    ),
    "TLS and files": (
        Panel("Handshakes", ("shoal_tls_handshakes",)),
        Panel("Days left of certificates", ("shoal_tls_certificate_days_left",), (), "d"),
        Panel("Reloads", ("shoal_reloads", "shoal_reloads_failed")),
    ),
}


def board() -> dict[str, Any]:
    """Return the board, as Grafana imports it."""
    panels = list(_panels())
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "title": "Shoal",
        "uid": "shoal",
        "tags": ["mqtt", "shoal"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_source_variable(), _variable("job", ""), _variable("instance", 'job=~"$job"')]},
        "panels": panels,
    }


def text() -> str:
    """Return the board as it is written to a file."""
    return json.dumps(board(), indent=2) + "\n"


def expressions() -> list[str]:
    """Return what all panels ask for."""
    return [target["expr"] for panel in board()["panels"] for target in panel.get("targets", ())]


def _panels() -> Iterator[dict[str, Any]]:
    y = 0
    width = COLUMNS // len(STATS)
    for number, stat in enumerate(STATS):
        yield {**_stat(stat), "gridPos": {"x": number * width, "y": y, "w": width, "h": STAT_HEIGHT}}
    y += STAT_HEIGHT
    for title, panels in ROWS.items():
        yield {
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
        }
        y += 1
        for number, panel in enumerate(panels):
            column = number % 3
            place = {"x": column * 8, "y": y, "w": 8, "h": PANEL_HEIGHT}
            yield {**_plots(panel), "gridPos": place}
            if column == 2 or number == len(panels) - 1:
                y += PANEL_HEIGHT


_BY_NAME: Final = {family.name: family for family in (*BROKER, *FAMILIES)}


def _plots(panel: Panel) -> dict[str, Any]:
    families = [_BY_NAME[name] for name in panel.families]
    # Several families of one panel have one unit; a counter beside a gauge is shown as it is.
    units = RATES if families[0].kind == "counter" else UNITS
    targets = [
        {"refId": f"{chr(ord('A') + number)}", "datasource": SOURCE, "expr": expression, "legendFormat": legend}
        for number, (expression, legend) in enumerate(
            found for family in families for found in _asked(family, panel.by, several=len(families) > 1)
        )
    ]
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": "\n\n".join(family.text for family in families),
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit or units[families[0].unit],
                "custom": {"fillOpacity": 8, "lineWidth": 1, "showPoints": "never"},
            },
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def _asked(family: Family, by: tuple[str, ...], *, several: bool) -> Iterator[tuple[str, str]]:
    """Yield each expression of a family, and the legend of what it gives."""
    own = tuple(label.strip() for label in family.label.split(",") if label)
    labels = tuple(dict.fromkeys((*own, *by)))
    name = family.name.removeprefix("shoal_").removesuffix(f"_{family.unit}").replace("_", " ")
    legend = " ".join([name] * (several or not labels) + [_legend(label) for label in labels])
    if family.kind == "histogram":
        grouped = ", ".join((*labels, "le"))
        buckets = f"sum by ({grouped}) (rate({family.name}_bucket{{{WHERE}}}[$__rate_interval]))"
        for quantile in QUANTILES:
            yield f"histogram_quantile({quantile}, {buckets})", f"{legend} p{quantile * 100:g}"
        return
    of = sample(family.name) + f"{{{WHERE}}}"
    if family.kind == "counter":
        of = f"rate({of}[$__rate_interval])"
    # What all workers say alike, or is said of the broker as a whole, is no sum of several.
    how = "min" if family.name in WORST else "max" if family.is_shared or family in BROKER else "sum"
    yield f"{how} by ({', '.join(labels)}) ({of})" if labels else f"{how}({of})", legend


def _legend(label: str) -> str:
    """Return what stands for a label: its value, and its name where the value alone says nothing."""
    value = f"{{{{{label}}}}}"
    return f"{label} {value}" if label in ("worker", "qos", "shared", "resumed", "listener") else value


def _stat(stat: Stat) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if stat.red_below is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": stat.red_below}]
    if stat.red_from is not None:
        steps.append({"color": "red", "value": stat.red_from})
    return {
        "type": "stat",
        "title": stat.title,
        "datasource": SOURCE,
        "targets": [{"refId": "A", "datasource": SOURCE, "expr": stat.expression, "legendFormat": stat.title}],
        "fieldConfig": {
            "defaults": {"unit": stat.unit, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "options": {"graphMode": "area", "colorMode": "value", "reduceOptions": {"calcs": ["lastNotNull"]}},
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(name: str, matching: str) -> dict[str, Any]:
    where = f"{{{matching}}}" if matching else ""
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({sample('shoal_build_info')}{where}, {name})", "refId": name},
        "definition": f"label_values({sample('shoal_build_info')}{where}, {name})",
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }
