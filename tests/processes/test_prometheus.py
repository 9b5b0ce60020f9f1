"""A Prometheus scrapes a broker: what the board and the alerts ask for is there."""

import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from broker.telemetry.alerts import ALERTS, rules
from broker.telemetry.grafana import expressions
from tests.support.process import BrokerProcess
from tests.support.raw_client import wait_until

WITHIN = "10s"  # of $__rate_interval


class Prometheus:
    """A server that scrapes one address five times a second."""

    def __init__(self, folder: Path, scraped: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (folder / "rules.yaml").write_text(rules())
        scrape = {"job_name": "shoal", "static_configs": [{"targets": [scraped]}]}
        settings = {"global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "1s"}}
        (folder / "prometheus.yml").write_text(
            json.dumps({**settings, "rule_files": ["rules.yaml"], "scrape_configs": [scrape]})
        )
        command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb", "--log.level=error"]
        self.process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{self.port}"], cwd=folder)

    def get(self, path: str, **arguments: str) -> Any:
        """Return the data of an answer; None while there is none."""
        address = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None  # it starts
            raise AssertionError(error.read().decode()) from error
        except OSError:
            return None

    def values(self, expression: str) -> Any:
        """Return what an expression gives."""
        found = self.get("query", query=expression)
        return found["result"] if found else []


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    if not shutil.which("prometheus"):
        pytest.skip("prometheus is not installed")
    folder = tmp_path_factory.mktemp("scraped")
    certificate = trustme.CA().issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "server.key"))
    listener = f'address = "tls://127.0.0.1:0"\ncertfile = "{folder}/server.pem"\nkeyfile = "{folder}/server.key"\n'
    (folder / "shoal.toml").write_text(f'[http]\nlisten = "127.0.0.1:0"\n[[listener]]\n{listener}')
    with BrokerProcess(folder, "--config", str(folder / "shoal.toml")) as broker:
        (listening,) = wait_until(lambda: broker.events("http_listening"), "HTTP is listened on")
        server = Prometheus(folder, listening["address"].removeprefix("http://"))
        try:
            rate = f"rate(shoal_log_syncs_total[{WITHIN}])"
            wait_until(lambda: server.values(rate), "it has scraped twice", 60)
            yield server
        finally:
            server.process.kill()
            server.process.wait()


def test_every_panel_of_the_board_has_something_to_show(prometheus: Prometheus) -> None:
    for expression in expressions():
        asked = expression.replace("$__rate_interval", WITHIN).replace("$job", "shoal").replace("$instance", ".*")
        assert prometheus.values(asked), asked


def test_every_alert_rests_on_series_that_are_there(prometheus: Prometheus) -> None:
    for alert in ALERTS:
        selectors = re.findall(r"shoal_\w+(?:{[^}]*})?", alert.expression)
        assert selectors, alert
        for selector in selectors:
            assert prometheus.values(selector), selector


def test_prometheus_evaluates_the_rules_and_a_broker_that_is_well_wakes_nobody(prometheus: Prometheus) -> None:
    def evaluated() -> Any:
        (group,) = prometheus.get("rules")["groups"]
        return group["rules"] if all(rule["health"] != "unknown" for rule in group["rules"]) else None

    found = wait_until(evaluated, "the rules have been evaluated")
    assert [rule["name"] for rule in found] == [alert.name for alert in ALERTS]
    assert [rule for rule in found if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in found if rule["state"] == "firing"] == []
