"""`[http] listen`: /metrics, /livez and /readyz, asked as Prometheus and Kubernetes ask them."""

import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as prometheus_families

from broker.telemetry.prometheus import BROKER, FAMILIES
from broker.wire.packets import Ack, Publish, Suback, Subscribe, subscription
from broker.wire.reasons import CloseReason
from tests.support.process import BrokerProcess
from tests.support.raw_client import RawClient, wait_until
from tests.support.workers import Workers

OPENMETRICS = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*;q=0.1"


class Answer:
    """Status, content type and text of one request."""

    def __init__(self, broker: BrokerProcess, path: str, accept: str = "*/*", method: str = "GET") -> None:
        wait_until(lambda: broker.events("http_listening"), "HTTP is listened on")
        (listening,) = broker.events("http_listening")
        port = int(listening["address"].rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request(method, path, headers={"Accept": accept})
        answer = connection.getresponse()
        self.status, self.kind, self.text = answer.status, answer.headers["Content-Type"], answer.read().decode()
        connection.close()


def samples(broker: BrokerProcess) -> dict[str, float]:
    """Return what /metrics says, by name and labels as they are written."""
    lines = Answer(broker, "/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


@pytest.fixture(scope="module", params=[1, 3])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"SHOAL_HTTP__LISTEN": "127.0.0.1:0"}
    folder = tmp_path_factory.mktemp("broker")
    with Workers(folder, **settings) if request.param == 3 else BrokerProcess(folder, environment=settings) as running:
        yield running


@pytest.mark.parametrize("accept", ["*/*", OPENMETRICS])
def test_a_page_is_what_strict_readers_take(broker: BrokerProcess, accept: str) -> None:
    page = Answer(broker, "/metrics", accept)
    assert page.status == 200
    if accept == OPENMETRICS:
        assert page.kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        found = {family.name: family for family in openmetrics_families(page.text)}
        assert page.text.endswith("# EOF\n")
    else:
        assert page.kind == "text/plain; version=0.0.4; charset=utf-8"
        found = {family.name: family for family in prometheus_families(page.text)}
    assert list(found) == [family.name for family in (*BROKER, *FAMILIES)]
    for family in (*BROKER, *FAMILIES):
        assert found[family.name].type == family.kind
        assert found[family.name].documentation == family.text
        assert family.name.endswith(family.unit)


def test_promtool_has_nothing_against_the_page(broker: BrokerProcess) -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed")
    page = Answer(broker, "/metrics").text
    checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_what_is_counted_is_there_with_every_label_from_the_start(broker: BrokerProcess) -> None:
    before = samples(broker)
    workers = {name for name in before if name.startswith("shoal_worker_up")}
    assert all(before[name] == 1 for name in workers)
    for reason in CloseReason:
        assert f'shoal_connections_closed_total{{reason="{reason}",worker="0"}}' in before
    with RawClient(broker.port) as client:
        client.connect("counted")
        client.send(Subscribe(1, (subscription(b"some/topic", 1),)))
        assert isinstance(client.read(), Suback)
        client.send(Publish(b"some/topic", b"12345", 1, packet_identifier=2))
        assert {type(client.read()), type(client.read())} == {Publish, Ack}
        after = samples(broker)

        def grown(name: str) -> float:
            return sum(after[one] - before[one] for one in after if re.fullmatch(name + r'[{,]worker="\d"}', one))

        assert grown("shoal_clients_connected") == 1
        assert grown(r'shoal_messages_received_total{qos="1"') == 1
        assert grown(r'shoal_messages_sent_total{qos="1"') == 1
        assert grown("shoal_payload_received_bytes_total") == 5
        assert grown(r'shoal_packets_received_total{type="subscribe"') == 1
        assert grown("shoal_turn_duration_seconds_count") > 0
    assert not any("some/topic" in name or "counted" in name for name in after)


def test_probes_get_a_word_and_whoever_wants_more_asks_for_it(broker: BrokerProcess) -> None:
    assert (Answer(broker, "/livez").status, Answer(broker, "/livez").text) == (200, "ok\n")
    assert (Answer(broker, "/readyz").status, Answer(broker, "/readyz").text) == (200, "ok\n")
    assert Answer(broker, "/readyz?verbose").text == "[+]draining ok\n[+]workers ok\n[+]log ok\nok\n"
    assert Answer(broker, "/livez", method="HEAD").text == ""


def test_nothing_else_is_there_and_nothing_can_be_changed(broker: BrokerProcess) -> None:
    for path in ("/clients", "/status", "/api/v1/clients", "/metricsx"):
        assert Answer(broker, path).status == 404, path
    for method in ("POST", "PUT", "DELETE"):
        assert Answer(broker, "/metrics", method=method).status == 405, method


def test_a_worker_that_is_away_makes_the_broker_unready_and_not_dead(tmp_path: Path) -> None:
    with Workers(tmp_path, SHOAL_HTTP__LISTEN="127.0.0.1:0") as broker:
        assert Answer(broker, "/readyz").status == 200
        victim = broker.pids()[1]
        os.kill(victim, signal.SIGSTOP)  # it turns no more, and is not seen to have ended
        try:
            assert Answer(broker, "/livez").status == 200  # for a while: it may be busy
            assert samples(broker)['shoal_worker_up{worker="1"}'] == 0
            wait_until(lambda: Answer(broker, "/livez").status == 503, "a worker that does not turn is noticed")
            assert "worker 1 has not turned" in Answer(broker, "/livez").text
        finally:
            os.kill(victim, signal.SIGCONT)
        wait_until(lambda: Answer(broker, "/livez").status == 200, "it turns again")
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: Answer(broker, "/readyz").status == 503, "a worker that has ended is noticed")
        wait_until(lambda: Answer(broker, "/readyz?verbose").status == 200, "it is replaced")


def test_an_address_that_is_taken_is_said_by_name(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        broker = BrokerProcess(tmp_path, environment={"SHOAL_HTTP__LISTEN": str(port)})
        with pytest.raises(AssertionError, match=f"The address http://127.0.0.1:{port} is in use .*http.listen"):
            broker.start()


@pytest.mark.parametrize(("text", "expected"), [("http://a:1", "without what is spoken there"), ("a", "a port from 0")])
def test_an_address_that_is_none_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    broker = BrokerProcess(tmp_path, environment={"SHOAL_HTTP__LISTEN": text})
    with pytest.raises(AssertionError, match=expected):
        broker.start()
