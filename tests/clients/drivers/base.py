"""What every driver can do."""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

ANSWER_TIMEOUT_S = 20.0  # for what must come: it fails a test, it is not waited for in a good run


@dataclass(frozen=True)
class Message:
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: dict[str, Any] = field(default_factory=dict)  # as broker.wire.properties names and types them


@dataclass(frozen=True)
class Options:
    """Subscription options of 5.0."""

    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Driver(ABC):
    """One client of one library, used by one test; every verb blocks until the broker has answered.

    Args:
        port: of the broker, or of a relay before it, on 127.0.0.1.
        version: 4 (3.1.1) or 5.
        over: "tcp", or "ws" where the library speaks it.
    """

    name = ""
    must_subscribe_to_resume = False  # a program that connects and subscribes in one
    knows_session_present = True

    def __init__(self, port: int, version: int, over: str = "tcp") -> None:
        self.port = port
        self.version = version
        self.over = over
        self.inbox: queue.Queue[Message] = queue.Queue()

    @classmethod  # noqa: B027  (whoever runs none has nothing to do)
    def check_installed(cls) -> None:
        """Raise MissingError if a program that this driver runs is not there."""

    @abstractmethod
    def connect(self, client_identifier: str, *, durable: bool = False, will: Message | None = None) -> bool:
        """Connect, with a session that outlives the connection if `durable`; return Session Present."""

    @abstractmethod
    def subscribe(self, topic_filter: str, qos: int = 0, options: Options | None = None) -> None:
        """Subscribe to a topic filter."""

    def subscribe_all(self, topic_filters: list[str], qos: int = 0) -> None:
        """Subscribe to several topic filters on one connection."""
        for topic_filter in topic_filters:
            self.subscribe(topic_filter, qos)

    def unsubscribe(self, topic_filter: str) -> None:
        """Unsubscribe from a topic filter; AssertionError from what cannot, and need not be asked."""
        raise AssertionError(f"{self.name} cannot unsubscribe while it is connected")

    @abstractmethod
    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: dict[str, Any] | None = None
    ) -> None:
        """Publish; at QoS 1 and 2 return when the exchange is complete."""

    def publish_all(self, topic: str, payloads: Iterable[bytes], qos: int = 0) -> None:
        for payload in payloads:
            self.publish(topic, payload, qos)

    def receive(self) -> Message:
        """Return the next message; queue.Empty if none comes."""
        return self.inbox.get(timeout=ANSWER_TIMEOUT_S)

    @abstractmethod
    def disconnect(self) -> None:
        """Send DISCONNECT and close."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything, in whatever state the connection is. Called once, at the end of a test."""
