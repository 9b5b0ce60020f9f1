"""MQTT.js in a Node process, told what to do by lines of JSON; installed into .cache/mqtt-js by `install`."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

from tests.clients.drivers import MissingError
from tests.clients.drivers.base import ANSWER_TIMEOUT_S, Driver, Message, Options
from tests.clients.drivers.processes import Program
from tests.support.process import ROOT

FOLDER = ROOT / ".cache" / "mqtt-js"
SCRIPT = Path(__file__).with_name("mqtt_js_driver.js")
INSTALL_TIMEOUT_S = 180

PROPERTY_NAMES = {
    "content_type": "contentType",
    "response_topic": "responseTopic",
    "message_expiry_interval": "messageExpiryInterval",
    "payload_format_indicator": "payloadFormatIndicator",
    "subscription_identifier": "subscriptionIdentifier",
}


def install() -> None:
    """Install MQTT.js outside of git, once; raise MissingError if that cannot be."""
    if (FOLDER / "node_modules" / "mqtt").is_dir():
        return
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise MissingError("node and npm")
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--prefix", str(FOLDER), "mqtt@5"],
            check=True,
            capture_output=True,
            timeout=INSTALL_TIMEOUT_S,
            cwd=FOLDER,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingError(f"MQTT.js (npm install mqtt: {error})") from error


def _to_js(properties: dict[str, Any]) -> dict[str, Any]:
    converted: dict[str, Any] = {}
    for name, value in properties.items():
        if name == "user_property":
            grouped: dict[str, list[str]] = {}
            for key, text in value:
                grouped.setdefault(key, []).append(text)
            converted["userProperties"] = grouped
        elif name == "correlation_data":
            converted["correlationData"] = b64encode(value).decode()
        else:
            # MQTT.js wants true or false for what the standard numbers 0 and 1.
            converted[PROPERTY_NAMES[name]] = bool(value) if name == "payload_format_indicator" else value
    return converted


def _from_js(properties: dict[str, Any]) -> dict[str, Any]:
    converted: dict[str, Any] = {
        name: properties[theirs] for name, theirs in PROPERTY_NAMES.items() if theirs in properties
    }
    if "payload_format_indicator" in converted:
        converted["payload_format_indicator"] = int(converted["payload_format_indicator"])
    if "userProperties" in properties:
        converted["user_property"] = [
            (key, text)
            for key, values in properties["userProperties"].items()
            for text in (values if isinstance(values, list) else [values])
        ]
    if "correlationData" in properties:
        converted["correlation_data"] = b64decode(properties["correlationData"])
    return converted


class MqttJsDriver(Driver):
    name = "mqtt_js"
    program: Program | None = None

    @classmethod
    def check_installed(cls) -> None:
        install()

    def connect(self, client_identifier: str, *, durable: bool = False, will: Message | None = None) -> bool:
        self.answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.program = Program(["node", str(SCRIPT), str(FOLDER / "node_modules" / "mqtt")], self._line)
        options: dict[str, Any] = {
            "port": self.port,
            "clientId": client_identifier,
            "protocolVersion": self.version,
            "clean": not durable,
        }
        if self.over == "ws":
            options |= {"protocol": "ws", "path": "/mqtt"}
        if durable and self.version == 5:
            options["properties"] = {"sessionExpiryInterval": 300}
        if will is not None:
            options["will"] = {
                "topic": will.topic,
                "payload": will.payload.decode(),
                "qos": will.qos,
                "retain": will.retain,
            }
        return bool(self._ask("connect", options=options)["sessionPresent"])

    def _line(self, line: bytes) -> None:
        if not line.startswith(b"{"):
            self.answers.put({"error": line.decode()})
            return
        fields = json.loads(line)
        if "topic" not in fields:
            self.answers.put(fields)
            return
        self.inbox.put(
            Message(
                fields["topic"],
                b64decode(fields["payload"]),
                fields["qos"],
                fields["retain"],
                _from_js(fields["properties"]),
            )
        )

    def _ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        assert self.program is not None
        self.program.write(json.dumps({"verb": verb, **arguments}).encode() + b"\n")
        answer = self.answers.get(timeout=ANSWER_TIMEOUT_S)
        assert "error" not in answer, answer["error"]
        return answer

    def subscribe(self, topic_filter: str, qos: int = 0, options: Options | None = None) -> None:
        given: dict[str, Any] = {"qos": qos}
        if options is not None:
            given |= {"nl": options.no_local, "rap": options.retain_as_published, "rh": options.retain_handling}
        assert self._ask("subscribe", filter=topic_filter, options=given)["granted"] == [qos]

    def unsubscribe(self, topic_filter: str) -> None:
        self._ask("unsubscribe", filter=topic_filter)

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: dict[str, Any] | None = None
    ) -> None:
        options: dict[str, Any] = {"qos": qos, "retain": retain}
        if properties:
            options["properties"] = _to_js(properties)
        self._ask("publish", name=topic, payload=b64encode(payload).decode(), options=options)

    def disconnect(self) -> None:
        if self.program is not None:
            self._ask("end")
            self._end()

    def close(self) -> None:
        if self.program is not None:
            self._end()

    def _end(self) -> None:
        assert self.program is not None
        self.program.end()
        self.program = None


DRIVER = MqttJsDriver
