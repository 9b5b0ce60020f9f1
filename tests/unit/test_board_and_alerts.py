"""`shoal generate`: the board has every metric, each alert fires when it should, and is silent when it should not."""

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from broker.telemetry.alerts import ALERTS, DROPS_BY_DISK, DROPS_BY_LIMIT, LOGINS_REFUSED, rules, table
from broker.telemetry.grafana import COLUMNS, board, expressions
from broker.telemetry.prometheus import BROKER, FAMILIES, sample
from broker.wire.reasons import CloseReason
from router.sessions.ledger import DROP_REASONS

ROOT = Path(__file__).parents[2]
WHERE = {"job": "shoal", "instance": "one:9641"}
# What clients or publishers have asked for, or not been allowed: no alert is for it.
DROPS_AS_ASKED = {
    "offline", "expired", "too_large", "refused", "session_ended", "no_member", "not_authorized", "payload_too_large",
    "outside_mount",
}  # fmt: skip


def buckets(slow: str, fast: str) -> dict[str, str]:
    """Return the series of a histogram whose turns take 30 to 130 ms, and up to 2 ms."""
    name = "shoal_turn_duration_seconds_bucket"
    return {
        f'{name}{{worker="1",le="0.002048"}}': fast,
        f'{name}{{worker="1",le="0.032768"}}': fast,
        f'{name}{{worker="1",le="0.131072"}}': slow,
        f'{name}{{worker="1",le="+Inf"}}': slow,
    }


# Of each alert: what makes it fire, the labels that it has then, and when it fires; and what is no reason to.
CASES: dict[str, tuple[dict[str, str], dict[str, str], str, dict[str, str]]] = {
    "ShoalAbsent": ({}, {}, "3m", {"shoal_build_info": "1x20"}),
    "ShoalNotReady": (
        {'shoal_ready{check="log"}': "1 1 0x20"}, {"check": "log"}, "6m", {'shoal_ready{check="draining"}': "0x20"},
    ),
    "ShoalWorkerAway": (
        {'shoal_worker_up{worker="1"}': "1 1 0x20"}, {"worker": "1"}, "6m", {'shoal_worker_up{worker="1"}': "1 0 1x20"},
    ),
    "ShoalWorkerRestarts": (
        {'shoal_connections_opened_total{worker="1"}': "5 0 9 0 3x20"}, {"worker": "1"}, "6m",
        {'shoal_connections_opened_total{worker="1"}': "5 0 9x20"},
    ),
    "ShoalLogTrouble": (
        {'shoal_log_trouble{worker="1"}': "0 1x20"}, {"worker": "1"}, "4m", {'shoal_log_trouble{worker="1"}': "0x20"},
    ),
    "ShoalLogWaits": (
        {'shoal_log_waiting_records{worker="1"}': "2000+100x30"}, {"worker": "1"}, "25m",
        {'shoal_log_waiting_records{worker="1"}': "9000-100x30"},
    ),
    "ShoalMessagesDropped": (
        {'shoal_messages_dropped_total{reason="queue_full",worker="1"}': "0+1x30"}, {"reason": "queue_full"}, "20m",
        {'shoal_messages_dropped_total{reason="offline",worker="1"}': "0+1x30"},
    ),
    "ShoalMessagesLost": (
        {'shoal_messages_dropped_total{reason="unreadable",worker="1"}': "0 0 1x20"}, {"reason": "unreadable"}, "4m",
        {'shoal_messages_dropped_total{reason="unreadable",worker="1"}': "3x20"},
    ),
    "ShoalTurnsLong": (buckets("0+10x30", "0+1x30"), {"worker": "1"}, "25m", buckets("0+1000x30", "0+1000x30")),
    "ShoalMemoryFull": (
        {'shoal_memory_full_total{worker="1"}': "0 0 1x20"}, {"worker": "1"}, "5m",
        {'shoal_memory_full_total{worker="1"}': "2x20"},
    ),
    "ShoalAcceptingPaused": (
        {'shoal_accepting_paused_total{reason="connections_max",worker="1"}': "0+1x30"}, {"reason": "connections_max"},
        "25m", {'shoal_accepting_paused_total{reason="connections_max",worker="1"}': "0 1x30"},
    ),
    "ShoalLoginsRefused": (
        {'shoal_connects_refused_total{reason="banned",worker="1"}': "0+1x240 240+600x30"}, {}, "252m",
        {'shoal_connects_refused_total{reason="banned",worker="1"}': "0+600x280"},
    ),
    "ShoalCertificateExpires": (
        {'shoal_tls_certificate_days_left{listener="2"}': "13x9"}, {"listener": "2"}, "4m",
        {'shoal_tls_certificate_days_left{listener="2"}': "14x9"},
    ),
    "ShoalCertificateExpired": (
        {'shoal_tls_certificate_days_left{listener="2"}': "0x9"}, {"listener": "2"}, "4m",
        {'shoal_tls_certificate_days_left{listener="2"}': "1x9"},
    ),
    "ShoalReloadFailed": (
        {"shoal_reloads_failed_total": "0 0 1x20"}, {}, "5m", {"shoal_reloads_failed_total": "1x20"},
    ),
    "ShoalLogLinesLost": (
        {'shoal_log_lines_dropped_total{worker="1"}': "0+5x30"}, {"worker": "1"}, "20m",
        {'shoal_log_lines_dropped_total{worker="1"}': "7x30"},
    ),
    "ShoalFault": (
        {'shoal_unraisable_total{worker="1"}': "0 0 1x20"}, {"worker": "1"}, "5m",
        {'shoal_unraisable_total{worker="1"}': "1x20"},
    ),
}  # fmt: skip
OWN_LABELS = {"ShoalAbsent"}  # absent() has no series, so it has no labels


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed")
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)


def series_of(given: dict[str, str]) -> list[dict[str, str]]:
    """Return series as promtool takes them, with what Prometheus adds to each."""
    added = ",".join(f'{name}="{value}"' for name, value in WHERE.items())
    found = []
    for series, values in given.items():
        name, _, labels = series.rstrip("}").partition("{")
        found.append({"series": f"{name}{{{labels + ',' if labels else ''}{added}}}", "values": values})
    return found


def expected(alert: Any, labels: dict[str, str]) -> dict[str, Any]:
    """Return an alert as promtool expects it."""
    every = labels if alert.name in OWN_LABELS else {**WHERE, **labels}
    summary = re.sub(r"{{ \$labels\.(\w+) }}", lambda found: every[found[1]], alert.summary)
    return {
        "exp_labels": {**every, "severity": alert.severity},
        "exp_annotations": {"summary": summary, "description": alert.to_do},
    }


def test_every_alert_fires_when_it_should_and_is_silent_when_it_should_not(tmp_path: Path) -> None:
    assert list(CASES) == [alert.name for alert in ALERTS]
    tests = []
    for alert in ALERTS:
        wrong, labels, at, right = CASES[alert.name]
        for given, alerts in ((wrong, [expected(alert, labels)]), (right, [])):
            rule_test = [{"eval_time": at, "alertname": alert.name, "exp_alerts": alerts}]
            tests.append({"interval": "1m", "input_series": series_of(given), "alert_rule_test": rule_test})
    (tmp_path / "rules.yaml").write_text(rules())
    (tmp_path / "test.yaml").write_text(json.dumps({"rule_files": ["rules.yaml"], "tests": tests}))
    checked = promtool("check", "rules", "--lint-fatal", str(tmp_path / "rules.yaml"))
    assert checked.returncode == 0, checked.stderr
    tried = promtool("test", "rules", str(tmp_path / "test.yaml"))
    assert tried.returncode == 0, tried.stdout + tried.stderr


def test_the_board_has_every_metric_and_no_panel_on_another() -> None:
    asked = set(re.findall(r"shoal_\w+", " ".join(expressions())))
    assert asked == {sample(family.name) for family in (*BROKER, *FAMILIES)}
    panels = board()["panels"]
    covered = Counter(
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    )
    assert max(covered.values()) == 1
    assert max(x for x, _ in covered) < COLUMNS
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_reason_of_a_drop_is_of_one_kind() -> None:
    assert Counter((*DROPS_BY_LIMIT, *DROPS_BY_DISK, *DROPS_AS_ASKED)) == Counter(DROP_REASONS)
    assert set(LOGINS_REFUSED) <= set(CloseReason)


def test_the_page_says_what_to_do_about_every_alert() -> None:
    assert table() in (ROOT / "docs/operations.md").read_text(), "python -m broker.telemetry.alerts"
