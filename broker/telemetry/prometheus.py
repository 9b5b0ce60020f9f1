"""The metrics as Prometheus reads them: which families there are, and how they are written.

A worker writes its own samples (`samples_of`), and the process that is asked puts those of all workers together
(`page_of`), so that it has little to do however many there are. No client, topic or address is ever a label; every
value of a label is there from the start. `python -m broker.telemetry.prometheus` prints docs/metrics.md.

The formats: https://prometheus.io/docs/instrumenting/exposition_formats, and OpenMetrics 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

from broker.telemetry.metrics import Durations, Metrics
from broker.version import VERSION
from broker.wire.properties import PacketType
from broker.wire.reasons import CloseReason
from router.sessions.ledger import DROP_REASONS

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Samples = Iterable[tuple[str, float]]  # labels as they are written, "" for none, and the value


class Family(NamedTuple):
    """Metrics of one name.

    Attributes:
        name: without the `_total` of a counter; it ends in the unit.
        kind: counter, gauge or histogram.
        unit: seconds, bytes or "".
        label: that all its samples have; "": none.
        text: what it means.
        samples: of one worker's metrics.
        is_shared: all workers say the same, so there is one sample, without their label: the highest.
    """

    name: str
    kind: str
    unit: str
    label: str
    text: str
    samples: Callable[[Metrics], Samples | Durations]
    is_shared: bool = False


def _number(kind: str, name: str, text: str, field: str, unit: str = "", is_shared: bool = False) -> Family:
    """Return the family of one field of the metrics."""
    get = attrgetter(field)
    return Family(name, kind, unit, "", text, lambda metrics: (("", get(metrics)),), is_shared)


_counter = partial(_number, "counter")
_gauge = partial(_number, "gauge")


def _each(
    label: str, values: Iterable[str], counted: Callable[[Metrics], Mapping[str, float]]
) -> Callable[[Metrics], Samples]:
    """Return what gives a sample for each value of a label, 0 for what has not happened; what else is there follows."""
    written = {value: f'{label}="{value}"' for value in values}

    def samples(metrics: Metrics) -> Iterator[tuple[str, float]]:
        found = counted(metrics)
        for value, labels in written.items():
            yield labels, found.get(value, 0)
        for value in found.keys() - written.keys():
            yield f'{label}="{value}"', found[value]

    return samples


def _by_qos(counted: Callable[[Metrics], Sequence[int]]) -> Callable[[Metrics], Samples]:
    return lambda metrics: ((f'qos="{qos}"', count) for qos, count in enumerate(counted(metrics)))


PACKETS: Final = tuple(kind.name.lower() for kind in PacketType if kind is not PacketType.WILL)
REASONS: Final = tuple(map(str, CloseReason))
PHASES: Final = ("receive", "route", "control", "pump", "flush", "guest")
REFUSED: Final = ("not_authorized", "topic_filter_invalid", "quota_exceeded", "shared_subscriptions_not_supported")

FAMILIES: Final = (
    _counter("shoal_connections_opened", "Connections accepted.", "connections"),
    _gauge("shoal_connections", "Connections that are open.", "connections_open"),
    Family(
        "shoal_connections_closed",
        "counter",
        "",
        "reason",
        "Connections that ended, by the close reason.",
        _each("reason", REASONS, lambda m: m.ends),
    ),
    Family(
        "shoal_connects_refused",
        "counter",
        "",
        "reason",
        "Connections that the broker ended before their CONNECT was accepted, by the close reason.",
        _each("reason", REASONS, lambda m: m.refused),
    ),
    _gauge("shoal_clients_connected", "Sessions with a connection.", "sessions_connected"),
    _gauge("shoal_sessions", "Sessions, connected or not.", "sessions"),
    _counter(
        "shoal_sessions_expired",
        "Sessions that ended because their Session Expiry Interval passed.",
        "sessions_expired",
    ),
    Family(
        "shoal_subscriptions",
        "gauge",
        "",
        "shared",
        "Subscriptions.",
        lambda m: (
            ('shared="false"', m.subscriptions - m.shared_subscriptions),
            ('shared="true"', m.shared_subscriptions),
        ),
    ),
    Family(
        "shoal_subscriptions_refused",
        "counter",
        "",
        "reason",
        "Topic filters not granted, by the name of the reason code.",
        _each("reason", REFUSED, lambda m: m.refused_subscriptions),
    ),
    _counter(
        "shoal_subscriptions_revoked",
        "Subscriptions that ended because the rights of their clients changed.",
        "subscriptions_revoked",
    ),
    _gauge("shoal_retained_messages", "Retained messages.", "retained_messages", is_shared=True),
    _gauge("shoal_retained_bytes", "Of retained messages.", "retained_bytes", unit="bytes", is_shared=True),
    _gauge("shoal_queued_messages", "Messages of QoS 1 and 2 that wait in sessions.", "queued_messages"),
    _gauge("shoal_queued_bytes", "Of queued messages.", "queued_bytes", unit="bytes"),
    _gauge(
        "shoal_inflight_messages",
        "Messages of QoS 1 and 2 that were sent and not completely acknowledged.",
        "inflight_messages",
    ),
    Family(
        "shoal_packets_received",
        "counter",
        "",
        "type",
        "Control packets received, by their type.",
        _each("type", PACKETS, lambda m: m.packets_in),
    ),
    Family(
        "shoal_packets_sent",
        "counter",
        "",
        "type",
        "Control packets sent, by their type.",
        _each("type", PACKETS, lambda m: m.packets_out),
    ),
    Family(
        "shoal_messages_received",
        "counter",
        "",
        "qos",
        "PUBLISH packets received.",
        _by_qos(lambda m: m.messages_in_by_qos),
    ),
    Family(
        "shoal_messages_sent", "counter", "", "qos", "PUBLISH packets sent.", _by_qos(lambda m: m.messages_out_by_qos)
    ),
    Family(
        "shoal_messages_dropped",
        "counter",
        "",
        "reason",
        "Messages that did not reach a receiver, or were refused, by the reason.",
        _each("reason", DROP_REASONS, lambda m: m.dropped),
    ),
    _counter("shoal_payload_received_bytes", "Payloads received.", "payload_bytes_in", unit="bytes"),
    _counter("shoal_payload_sent_bytes", "Payloads sent.", "payload_bytes_out", unit="bytes"),
    _counter("shoal_network_received_bytes", "Read from sockets.", "bytes_in", unit="bytes"),
    _counter("shoal_network_sent_bytes", "Written to sockets.", "bytes_out", unit="bytes"),
    _gauge(
        "shoal_output_buffer_bytes",
        "Buffers with output that clients have not taken yet.",
        "output_buffer_bytes",
        unit="bytes",
    ),
    Family(
        "shoal_reading_paused",
        "counter",
        "",
        "reason",
        "How often a client was not read from for a while: it was over its rate, a queue was full, Receive Maximum of "
        "its messages waited, or it did not take what it was sent.",
        lambda m: (
            ('reason="rate"', m.throttled),
            ('reason="queue_full"', m.pushed_back),
            ('reason="receive_maximum"', m.unsettled),
            ('reason="output_full"', m.output_full),
        ),
    ),
    Family(
        "shoal_accepting_paused",
        "counter",
        "",
        "reason",
        "How often no connections were accepted for a while, by the limit or the error's name.",
        _each(
            "reason",
            ("connections_max", "pending_connects_max", "pending_handshakes_max", "passwords_waiting"),
            lambda m: m.accept_pauses,
        ),
    ),
    Family(
        "shoal_tls_handshakes",
        "counter",
        "",
        "resumed",
        "TLS handshakes that succeeded; those that failed are among the refused.",
        lambda m: (
            ('resumed="false"', m.tls_handshakes.get("full", 0)),
            ('resumed="true"', m.tls_handshakes.get("resumed", 0)),
        ),
    ),
    Family(
        "shoal_tls_certificate_days_left",
        "gauge",
        "",
        "listener",
        "Whole days until the first certificate of a listener expires; less than 0: it has.",
        _each("listener", (), lambda m: m.certificate_days),
        True,
    ),
    _counter("shoal_reloads", "How often files were read again.", "reloads", is_shared=True),
    _counter(
        "shoal_reloads_failed",
        "How often they could not be used, and what was read before was kept.",
        "reloads_failed",
        is_shared=True,
    ),
    _counter(
        "shoal_clients_handed_over",
        "Clients that came here and were sent to the worker that they live on.",
        "clients_handed_over",
    ),
    Family(
        "shoal_turn_duration_seconds",
        "histogram",
        "seconds",
        "",
        "How long turns of the event loop took, without the wait for something to do.",
        lambda m: m.turns,
    ),
    Family(
        "shoal_turn_lag_seconds",
        "histogram",
        "seconds",
        "",
        "How long before its turn a ready socket can have waited at most.",
        lambda m: m.turn_lags,
    ),
    Family(
        "shoal_turn_phase_seconds",
        "counter",
        "seconds",
        "phase",
        "Time in turns, by what was done.",
        lambda m: ((f'phase="{phase}"', getattr(m, f"{phase}_us") / 1e6) for phase in PHASES),
    ),
    _counter("shoal_slow_turns", "Turns of 10 ms or more.", "slow_turns"),
    _gauge("shoal_memory_resident_bytes", "Of the worker's process, in RAM.", "resident_bytes", unit="bytes"),
    _counter("shoal_memory_full", "How often the limit of memory was reached.", "memory_full"),
    _counter("shoal_log_records", "Records written to the commit log.", "storage_records"),
    _counter("shoal_log_written_bytes", "Of these records.", "storage_bytes", unit="bytes"),
    _counter("shoal_log_syncs", "How often the log was synced to the disk.", "storage_syncs"),
    _counter("shoal_log_errors", "How often the disk refused to write or sync.", "storage_errors"),
    _gauge("shoal_log_waiting_records", "Records that are not durable yet.", "storage_waiting_records"),
    _gauge("shoal_log_segments", "Files of the log.", "storage_segments"),
    _gauge("shoal_log_trouble", "1 while the disk refuses, else 0.", "storage_trouble"),
    _gauge(
        "shoal_retained_pending",
        "Changes of retained messages that the index on disk has not got yet.",
        "retained_pending",
    ),
    _gauge("shoal_replays", "Subscriptions to stored messages that are read.", "replays"),
    _counter("shoal_replayed_messages", "Stored messages given to clients.", "replayed_messages"),
    _counter("shoal_log_lines_suppressed", "Log lines that the rate limit held back.", "log_suppressed"),
    _counter(
        "shoal_log_lines_dropped", "Log lines that were lost because the writer could not keep up.", "log_dropped"
    ),
    _counter("shoal_unraisable", "Exceptions where none can be raised, each a fault of ours.", "unraisable"),
)

BROKER: Final = (
    Family("shoal_build_info", "gauge", "", "version, python", "1; which version runs.", lambda m: ()),
    Family("shoal_start_time_seconds", "gauge", "seconds", "", "When the broker started, since 1970.", lambda m: ()),
    Family("shoal_worker_up", "gauge", "", "worker", "1 if a worker has answered, else 0: it is away.", lambda m: ()),
    Family("shoal_ready", "gauge", "", "check", "1 for each check of `/readyz` that holds, else 0.", lambda m: ()),
)
"""What is said of the broker as a whole, with some of its workers away, too."""


_ENDINGS: Final = {"counter": "_total", "gauge": "", "histogram": "_bucket"}
_SAMPLES: Final = {family.name: family.name + _ENDINGS[family.kind] for family in (*BROKER, *FAMILIES)}


def sample(name: str) -> str:
    """Return what the samples of a family are called, a histogram's buckets. Raises KeyError: there is none."""
    return _SAMPLES[name]


def samples_of(metrics: Metrics, worker: int) -> list[Any]:
    """Return one worker's samples: for each of FAMILIES its lines, or, where it is shared, the values by label."""
    own = f'worker="{worker}"'
    found: list[Any] = []
    for family in FAMILIES:
        samples = family.samples(metrics)
        if isinstance(samples, Durations):
            found.append(_histogram(family.name, samples, own))
        else:
            found.append(dict(samples) if family.is_shared else _lines(family, samples, own))
    return found


def _lines(family: Family, samples: Samples, own: str) -> str:
    name = f"{family.name}_total" if family.kind == "counter" else family.name
    return "".join(
        f"{name}{{{labels},{own}}} {value}\n" if labels else f"{name}{{{own}}} {value}\n" for labels, value in samples
    )


def _histogram(name: str, durations: Durations, own: str) -> str:
    lines = []
    reached = 0
    for index, count in enumerate(durations.buckets[:-1]):
        reached += count
        lines.append(f'{name}_bucket{{{own},le="{(2 << index) / 1e6}"}} {reached}\n')
    lines.append(f'{name}_bucket{{{own},le="+Inf"}} {durations.count}\n')
    lines.append(f"{name}_sum{{{own}}} {durations.total_us / 1e6}\n{name}_count{{{own}}} {durations.count}\n")
    return "".join(lines)


def page_of(workers: Mapping[int, list[Any]], broker: Mapping[str, Mapping[str, float]], is_openmetrics: bool) -> bytes:
    """Return the page that is scraped.

    Args:
        workers: samples_of() of each worker, by number.
        broker: of each of BROKER, by name, the values by their labels as they are written.
        is_openmetrics: in that format, else in Prometheus's own.
    """
    page = []
    for family in BROKER:
        page += [_head(family, is_openmetrics), _shared(family, broker[family.name])]
    for number, family in enumerate(FAMILIES):
        page.append(_head(family, is_openmetrics))
        found = [samples[number] for samples in workers.values()]
        if family.is_shared:
            together: dict[str, float] = {}
            for values in found:
                for labels, value in values.items():
                    together[labels] = max(value, together.get(labels, value))
            page.append(_shared(family, together))
        else:
            page += found
    if is_openmetrics:
        page.append("# EOF\n")
    return "".join(page).encode()


def _shared(family: Family, values: Mapping[str, float]) -> str:
    name = f"{family.name}_total" if family.kind == "counter" else family.name
    return "".join(
        f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n" for labels, value in values.items()
    )


def _head(family: Family, is_openmetrics: bool) -> str:
    name = family.name
    if is_openmetrics:
        unit = f"# UNIT {name} {family.unit}\n" if family.unit else ""
        return f"# TYPE {name} {family.kind}\n{unit}# HELP {name} {family.text}\n"
    if family.kind == "counter":
        name += "_total"
    return f"# HELP {name} {family.text}\n# TYPE {name} {family.kind}\n"


def build_labels() -> str:
    """Return the labels of shoal_build_info."""
    import platform

    return f'version="{VERSION}",python="{platform.python_version()}"'


def is_openmetrics_wanted(accept: str) -> bool:
    """Return whether an Accept header asks for OpenMetrics rather than Prometheus's own format."""
    return any(
        part.split(";")[0].strip() == "application/openmetrics-text" and "q=0" not in part.replace("q=0.", "q=.")
        for part in accept.split(",")
    )


def page() -> str:
    """Return docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "What `GET /metrics` says ([operations.md](operations.md)), in the format of Prometheus or, where that is",
        "accepted, of OpenMetrics. A counter's name ends in `_total`. What a worker counts has the label `worker`, its",
        "number; where all workers say the same there is one sample. Times are in seconds, sizes in bytes. No client,",
        "topic or address is a label.",
        "",
        "This page is made of the table in broker/telemetry/prometheus.py: `python -m broker.telemetry.prometheus`.",
        "",
        "| name | type | labels | what |",
        "|---|---|---|---|",
    ]
    for family in (*BROKER, *FAMILIES):
        name = f"{family.name}_total" if family.kind == "counter" else family.name
        labels = [family.label] if family.label else []
        if not family.is_shared and family not in BROKER:
            labels.append("worker")
        lines.append(f"| `{name}` | {family.kind} | {', '.join(labels)} | {family.text} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
