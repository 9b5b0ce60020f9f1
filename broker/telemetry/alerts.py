"""Alerting rules for Prometheus: what an operator is woken for, and what is to be done then.

The names of metrics come from the table of families (broker.telemetry.prometheus), so a rule cannot ask for one that
there is not. `shoal generate alerts` prints the rules, `python -m broker.telemetry.alerts` the table of
docs/operations.md.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from broker.telemetry.prometheus import sample

# Drops that a limit or a fault of ours makes; all others follow from what clients ask for, or their publishers do.
DROPS_BY_LIMIT: Final = (
    "queue_full", "queue_oldest", "output_full", "retained_full", "memory", "inbox_full", "peer_away", "peer_gone",
)  # fmt: skip
DROPS_BY_DISK: Final = ("unreadable", "log_unavailable")
LOGINS_REFUSED: Final = ("bad_user_name_or_password", "not_authorized", "banned", "connection_rate_exceeded")


class Alert(NamedTuple):
    """One rule.

    Attributes:
        name: of the alert.
        expression: in PromQL; it fires for each series that it has.
        after: how long the expression has to hold.
        severity: critical (clients are cut off or lose something now) or warning.
        summary: one sentence; `{{ $labels.x }}` stands for a label of the series.
        to_do: what the operator does.
    """

    name: str
    expression: str
    after: str
    severity: str
    summary: str
    to_do: str


def _rate(name: str, *by: str, within: str = "5m", of: tuple[str, ...] = ()) -> str:
    """Return the rate of a counter, by labels; `of`: for these reasons only."""
    where = f'{{reason=~"{"|".join(of)}"}}' if of else ""
    return f"sum by ({', '.join(('job', 'instance', *by))}) (rate({sample(name)}{where}[{within}]))"


_REFUSED: Final = _rate("shoal_connects_refused", of=LOGINS_REFUSED)
# Of the time that there is, so a broker that is new to Prometheus is compared with itself.
_REFUSED_USUALLY: Final = f"avg_over_time(({_REFUSED})[1d:5m])"
_TURNS: Final = _rate("shoal_turn_duration_seconds", "worker", "le")

ALERTS: Final = (
    Alert(
        "ShoalAbsent",
        f"absent({sample('shoal_build_info')})",
        "2m",
        "critical",
        "No broker is scraped.",
        "Is it running, and does `[http] listen` say the address that Prometheus asks? The target's page in Prometheus "
        "has the error.",
    ),
    Alert(
        "ShoalNotReady",
        f'min by (job, instance, check) ({sample("shoal_ready")}{{check!="draining"}}) == 0',
        "2m",
        "critical",
        "Clients should not be sent to {{ $labels.instance }}: the check {{ $labels.check }} fails.",
        "`curl http://ADDRESS/readyz?verbose` says why; `workers`: see ShoalWorkerAway, `log`: see ShoalLogTrouble.",
    ),
    Alert(
        "ShoalWorkerAway",
        f"min by (job, instance, worker) ({sample('shoal_worker_up')}) == 0",
        "2m",
        "critical",
        "Worker {{ $labels.worker }} of {{ $labels.instance }} does not answer.",
        "Its clients cannot connect. The log says `worker_ended` or `worker_killed` and why; a worker that hangs is "
        "ended and started again by itself after `processes.stall_s`.",
    ),
    Alert(
        "ShoalWorkerRestarts",
        f"resets({sample('shoal_connections_opened')}[30m]) > 1",
        "0m",
        "warning",
        "Worker {{ $labels.worker }} of {{ $labels.instance }} has ended several times.",
        "The log says `worker_ended` and by what: no memory left, a fault in native code. Keep it for a report.",
    ),
    Alert(
        "ShoalLogTrouble",
        f"max by (job, instance, worker) ({sample('shoal_log_trouble')}) == 1",
        "30s",
        "critical",
        "The disk of {{ $labels.instance }} takes nothing: QoS 1 and 2 are refused.",
        "`shoal admin status` has the error. Make room, or mend the disk; the broker goes on by itself.",
    ),
    Alert(
        "ShoalLogWaits",
        f"min_over_time({sample('shoal_log_waiting_records')}[5m]) > 1000"
        f" and deriv({sample('shoal_log_waiting_records')}[10m]) > 0",
        "5m",
        "warning",
        "The log of worker {{ $labels.worker }} of {{ $labels.instance }} falls behind.",
        "The disk is slower than what is published with QoS 1 and 2: acknowledgements come late. A faster disk, or "
        "more workers.",
    ),
    Alert(
        "ShoalMessagesDropped",
        f"{_rate('shoal_messages_dropped', 'reason', of=DROPS_BY_LIMIT)} > 0",
        "5m",
        "warning",
        "{{ $labels.instance }} drops messages: {{ $labels.reason }}.",
        "`shoal admin slowest` names the clients that are behind, `shoal admin why CLIENT TOPIC` says what one lost. A "
        "limit of `[mqtt]` or `[limits]` may be too low.",
    ),
    Alert(
        "ShoalMessagesLost",
        f"{_rate('shoal_messages_dropped', 'reason', of=DROPS_BY_DISK)} > 0",
        "0m",
        "critical",
        "{{ $labels.instance }} loses messages to its disk: {{ $labels.reason }}.",
        "`unreadable`: `shoal log verify` says which files are damaged. `log_unavailable`: see ShoalLogTrouble.",
    ),
    Alert(
        "ShoalTurnsLong",
        f"histogram_quantile(0.99, {_TURNS}) > 0.05",
        "10m",
        "warning",
        "Turns of worker {{ $labels.worker }} of {{ $labels.instance }} take more than 50 ms.",
        "Every message waits that long. `slow_turns` in the log says in which phase; more workers share the load.",
    ),
    Alert(
        "ShoalMemoryFull",
        f"increase({sample('shoal_memory_full')}[10m]) > 0",
        "0m",
        "warning",
        "Worker {{ $labels.worker }} of {{ $labels.instance }} has reached its limit of memory.",
        "It reads nothing and queues nothing while it is there. `shoal admin slowest` names whose queues are long; "
        "`limits.memory_bytes_max` is the limit.",
    ),
    Alert(
        "ShoalAcceptingPaused",
        f"{_rate('shoal_accepting_paused', 'reason')} > 0",
        "10m",
        "warning",
        "{{ $labels.instance }} lets clients wait before it accepts them: {{ $labels.reason }}.",
        "The limit of that name in `[limits]` is reached again and again, or descriptors have run out.",
    ),
    Alert(
        "ShoalLoginsRefused",
        f"{_REFUSED} > 1 and {_REFUSED} > 10 * {_REFUSED_USUALLY}",
        "5m",
        "warning",
        "{{ $labels.instance }} refuses ten times as many clients as usual.",
        "`connection_ended` in the log names reason and address. A changed password, an expired token, or somebody who "
        "tries: `shoal admin ban`.",
    ),
    Alert(
        "ShoalCertificateExpires",
        f"min by (job, instance, listener) ({sample('shoal_tls_certificate_days_left')}) < 14",
        "0m",
        "warning",
        "A certificate of listener {{ $labels.listener }} of {{ $labels.instance }} expires within 14 days.",
        "Write the new one over the old files: it is read without a restart. `shoal admin listeners` says what is in "
        "use.",
    ),
    Alert(
        "ShoalCertificateExpired",
        f"min by (job, instance, listener) ({sample('shoal_tls_certificate_days_left')}) < 1",
        "0m",
        "critical",
        "A certificate of listener {{ $labels.listener }} of {{ $labels.instance }} expires today or has expired.",
        "As for ShoalCertificateExpires, and now.",
    ),
    Alert(
        "ShoalReloadFailed",
        f"increase({sample('shoal_reloads_failed')}[15m]) > 0",
        "0m",
        "warning",
        "{{ $labels.instance }} could not use files that have changed.",
        "It goes on with what it had read before. `shoal admin reload` says what is wrong and where.",
    ),
    Alert(
        "ShoalLogLinesLost",
        f"rate({sample('shoal_log_lines_dropped')}[5m]) > 0",
        "5m",
        "warning",
        "{{ $labels.instance }} cannot write its log lines as fast as they come.",
        "What takes them is too slow: the terminal, the pipe or the disk of `log.file`.",
    ),
    Alert(
        "ShoalFault",
        f"increase({sample('shoal_unraisable')}[1h]) > 0",
        "0m",
        "warning",
        "Worker {{ $labels.worker }} of {{ $labels.instance }} has a fault of its own.",
        "The log has `unraisable` with a traceback: please report it.",
    ),
)


def rules() -> str:
    """Return the file of rules, as YAML; every text in it is quoted as JSON is, which YAML reads."""
    lines = ["groups:", "  - name: shoal", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression)}",
            f"        for: {alert.after}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          description: {json.dumps(alert.to_do)}",
        ]
    return "\n".join(lines) + "\n"


def table() -> str:
    """Return what docs/operations.md says of each."""
    lines = ["| alert | after | severity | what to do |", "|---|---|---|---|"]
    lines += [f"| `{alert.name}` | {alert.after} | {alert.severity} | {alert.to_do} |" for alert in ALERTS]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
