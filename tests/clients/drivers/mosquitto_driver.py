"""The programs mosquitto_sub and mosquitto_pub."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterable
from typing import Any

from tests.clients.drivers import MissingError
from tests.clients.drivers.base import ANSWER_TIMEOUT_S, Driver, Message, Options
from tests.clients.drivers.processes import Announcements, Program


def _object(pairs: list[tuple[str, Any]]) -> Any:
    """User properties are printed as an object whose names may repeat, so every object stays a list of pairs."""
    return pairs


class MosquittoDriver(Driver):
    name = "mosquitto"
    must_subscribe_to_resume = True
    knows_session_present = False

    @classmethod
    def check_installed(cls) -> None:
        if shutil.which("mosquitto_sub") is None or shutil.which("mosquitto_pub") is None:
            raise MissingError("mosquitto_sub and mosquitto_pub (package mosquitto-clients)")

    def connect(self, client_identifier: str, *, durable: bool = False, will: Message | None = None) -> bool:
        self.programs: list[Program] = []
        self.options = ["-i", client_identifier]
        if durable:
            self.options += ["-c", *(["-x", "300"] if self.version == 5 else [])]
        if will is not None:
            self.options += ["--will-topic", will.topic, "--will-payload", will.payload.decode()]
            self.options += ["--will-qos", str(will.qos), *(["--will-retain"] if will.retain else [])]
        return False

    def subscribe(self, topic_filter: str, qos: int = 0, options: Options | None = None) -> None:
        self.subscribe_all([topic_filter], qos)

    def subscribe_all(self, topic_filters: list[str], qos: int = 0) -> None:
        said = Announcements()
        arguments = [part for topic_filter in topic_filters for part in ("-t", topic_filter)]

        def line(text: bytes) -> None:
            if text.startswith(b"{"):
                self._take(dict(json.loads(text, object_pairs_hook=_object)))
            else:
                said.lines.put(text)

        # Without a terminal it would keep back its lines until a block is full.
        command = ["stdbuf", "-oL", *self._command("mosquitto_sub"), *self.options]
        self.programs.append(Program([*command, *arguments, "-q", str(qos), "-d", "-F", "%j"], line))
        assert said.wait_for(b"Subscribed (mid").strip().endswith(str(qos).encode())

    def _take(self, fields: dict[str, Any]) -> None:
        properties = {name.replace("-", "_"): value for name, value in fields.get("properties", [])}
        if "user_properties" in properties:
            properties["user_property"] = properties.pop("user_properties")
        if "correlation_data" in properties:
            properties["correlation_data"] = properties["correlation_data"].encode()
        self.inbox.put(
            Message(
                fields["topic"], (fields["payload"] or "").encode(), fields["qos"], bool(fields["retain"]), properties
            )
        )

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: dict[str, Any] | None = None
    ) -> None:
        arguments = ["-t", topic, "-q", str(qos), *(["-r"] if retain else []), *(["-s"] if payload else ["-n"])]
        for name, value in (properties or {}).items():
            for item in value if isinstance(value, list) else [value]:
                text = item.decode() if isinstance(item, bytes) else item
                parts = text if isinstance(text, tuple) else [str(text)]
                arguments += ["-D", "publish", name.replace("_", "-"), *parts]
        subprocess.run(self._command("mosquitto_pub") + arguments, input=payload, check=True, timeout=ANSWER_TIMEOUT_S)

    def publish_all(self, topic: str, payloads: Iterable[bytes], qos: int = 0) -> None:
        subprocess.run(
            [*self._command("mosquitto_pub"), "-t", topic, "-q", str(qos), "-l"],
            input=b"\n".join(payloads) + b"\n",
            check=True,
            timeout=ANSWER_TIMEOUT_S,
        )

    def _command(self, program: str) -> list[str]:
        return [program, "-h", "127.0.0.1", "-p", str(self.port), "-V", "5" if self.version == 5 else "311"]

    def disconnect(self) -> None:
        while self.programs:
            self.programs.pop().end(signal.SIGTERM)

    def close(self) -> None:
        self.disconnect()


DRIVER = MosquittoDriver
