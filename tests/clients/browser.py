"""MQTT.js in Debian's Chromium, over WebSocket with TLS: `make test-browser`. Not part of `make test`, for its size."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.wire.packets import Publish, Suback, Subscribe, subscription
from tests.support.certificates import certificates
from tests.support.process import ROOT, BrokerProcess
from tests.support.raw_client import RawClient

CHROMIUM = (
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
LIBRARY = ROOT / ".cache" / "mqtt-js" / "node_modules" / "mqtt" / "dist" / "mqtt.min.js"
# It tells the broker what it saw, by the message `result`.
PAGE = """<!doctype html><meta charset="utf-8"><script src="mqtt.min.js"></script><script>
const results = []
const client = mqtt.connect("wss://localhost:%(wss)d/mqtt", {protocolVersion: %(version)d, clientId: "browser"})
client.on("error", error => results.push("error " + error.message))
client.on("message", (topic, payload, packet) => {
  results.push([topic, payload.length, packet.qos])
  if (results.length < 3) return
  const refused = new WebSocket("ws://localhost:%(ws)d/mqtt", "mqtt")
  refused.onopen = () => tell("open")
  refused.onclose = event => tell(event.code)
})
client.on("connect", () => client.subscribe("page/#", {qos: 2}, () => {
  client.publish("page/0", "first")
  client.publish("page/1", "grün", {qos: 1})
  client.publish("page/2", new Uint8Array(900000), {qos: 2})
}))
function tell (other) { client.publish("result", JSON.stringify({results, other}), {qos: 1}) }
</script>"""


@contextmanager
def chromium(page: Path, certificate: str) -> Iterator[None]:
    """Have a browser open a page; it trusts the one certificate."""
    key = subprocess.run(
        f"openssl x509 -in {certificate} -pubkey -noout | openssl pkey -pubin -outform der",
        shell=True,
        check=True,
        capture_output=True,
    ).stdout
    pin = base64.b64encode(hashlib.sha256(key).digest()).decode()
    with (page.parent / "chromium.log").open("wb") as log:
        running = subprocess.Popen(
            [
                *CHROMIUM,
                f"--user-data-dir={page.parent / 'profile'}",
                f"--ignore-certificate-errors-spki-list={pin}",
                "--remote-debugging-port=0",
                page.as_uri(),
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            running.terminate()
            running.wait(30)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("version", [4, 5])
def test_a_page_talks_mqtt_over_wss(tmp_path: Path, version: int, workers: int) -> None:
    certificate, key = certificates().server
    settings = tmp_path / "shoal.toml"
    settings.write_text(f"""
[[listener]]
address = "wss://127.0.0.1:0"
certfile = "{certificate}"
keyfile = "{key}"
[[listener]]
address = "ws://127.0.0.1:0"
websocket_origins = ["https://app.example.org"]
""")
    with BrokerProcess(tmp_path, "--workers", str(workers), "--config", str(settings)) as broker:
        shutil.copy(LIBRARY, tmp_path)
        page = tmp_path / "page.html"
        page.write_text(PAGE % {"wss": broker.ports["wss"], "ws": broker.ports["ws"], "version": version})
        with RawClient(broker.port) as client:
            client.connect("hears")
            client.send(Subscribe(1, (subscription(b"result", 0),)))
            assert isinstance(client.read(), Suback)
            with chromium(page, certificate):
                message: Any = client.read()
        assert isinstance(message, Publish)
        said = json.loads(message.payload)
    assert said["results"] == [["page/0", 5, 0], ["page/1", 5, 1], ["page/2", 900_000, 2]]
    assert said["other"] == 1006  # a browser does not say more of a page whose origin is refused
