"""Our own `shoal sub` and `shoal pub`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterable
from typing import Any

from tests.clients.drivers.base import ANSWER_TIMEOUT_S, Driver, Message, Options
from tests.clients.drivers.processes import Announcements, Program
from tests.support.process import ROOT

SHOAL = [sys.executable, "-m", "broker.cli.main"]


def _bytes(value: Any) -> bytes:
    return b64decode(value["base64"]) if isinstance(value, dict) else value.encode()


class ShoalDriver(Driver):
    name = "shoal"
    must_subscribe_to_resume = True
    knows_session_present = False

    def connect(self, client_identifier: str, *, durable: bool = False, will: Message | None = None) -> bool:
        self.client_identifier = client_identifier
        self.programs: list[Program] = []
        self.options = ["-i", client_identifier]
        if durable:
            self.options += ["--no-clean-start"]
            self.options += ["--session-expiry-interval", "300"] if self.version == 5 else []
        if will is not None:
            self.options += ["--will-topic", will.topic, "--will-payload", will.payload.decode()]
            self.options += ["--will-qos", str(will.qos), *(["--will-retain"] if will.retain else [])]
        return False

    def subscribe(self, topic_filter: str, qos: int = 0, options: Options | None = None) -> None:
        options = options or Options()
        arguments = ["--no-local"] if options.no_local else []
        arguments += ["--retain-as-published"] if options.retain_as_published else []
        arguments += ["--retain-handling", str(options.retain_handling)] if options.retain_handling else []
        self._subscribe([topic_filter], qos, arguments)

    def subscribe_all(self, topic_filters: list[str], qos: int = 0) -> None:
        self._subscribe(topic_filters, qos, [])

    def _subscribe(self, topic_filters: list[str], qos: int, arguments: list[str]) -> None:
        arguments = [*arguments, "-q", str(qos), "--json", "-d"]
        arguments += [part for topic_filter in topic_filters for part in ("-t", topic_filter)]
        said = Announcements()

        def line(text: bytes) -> None:
            if text.startswith(b"{"):
                self._take(json.loads(text))
            else:
                said.lines.put(text)

        self.programs.append(Program(self._command("sub") + self.options + arguments, line, cwd=ROOT))
        assert f"with QoS {qos}".encode() in said.wait_for(b"subscribed to")

    def _take(self, fields: dict[str, Any]) -> None:
        properties = fields["properties"]
        if "correlation_data" in properties:
            properties["correlation_data"] = _bytes(properties["correlation_data"])
        if "user_property" in properties:
            properties["user_property"] = [tuple(pair) for pair in properties["user_property"]]
        self.inbox.put(Message(fields["topic"], _bytes(fields["payload"]), fields["qos"], fields["retain"], properties))

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: dict[str, Any] | None = None
    ) -> None:
        arguments = ["-t", topic, "-q", str(qos), *(["-r"] if retain else []), "-f", "-"]
        for name, value in (properties or {}).items():
            for item in value if isinstance(value, list) else [value]:
                text = os.fsdecode(item) if isinstance(item, bytes) else item
                parts = text if isinstance(text, tuple) else [str(text)]
                arguments += [f"--{name.replace('_', '-')}", *parts]
        subprocess.run(self._command("pub") + arguments, input=payload, cwd=ROOT, check=True, timeout=ANSWER_TIMEOUT_S)

    def publish_all(self, topic: str, payloads: Iterable[bytes], qos: int = 0) -> None:
        subprocess.run(
            [*self._command("pub"), "-t", topic, "-q", str(qos), "-l"],
            input=b"\n".join(payloads),
            cwd=ROOT,
            check=True,
            timeout=ANSWER_TIMEOUT_S,
        )

    def _command(self, verb: str) -> list[str]:
        return [*SHOAL, verb, "--url", f"tcp://127.0.0.1:{self.port}", "-V", str(self.version)]

    def disconnect(self) -> None:
        while self.programs:
            self.programs.pop().end(signal.SIGINT)

    def close(self) -> None:
        self.disconnect()


DRIVER = ShoalDriver
