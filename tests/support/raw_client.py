"""One MQTT connection over a blocking socket, packet by packet."""

from __future__ import annotations

import socket
import time
from typing import Any, Self

from broker.wire.packets import Connack, Connect, Packet, Will, decode, encode, next_frame

TIMEOUT_S = 20.0


class RawClient:
    """Connected to a port of this machine; reads and writes packets of 5.0, or of another version."""

    def __init__(self, port: int, version: int = 5) -> None:
        self.version = version
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._data = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def connect_bytes(
        self,
        identifier: str,
        *,
        keep: bool = False,
        will: Will | None = None,
        user_name: str | None = None,
        password: bytes | None = None,
    ) -> bytes:
        """Return a CONNECT; `keep` asks for a session that outlives the connection, and for the one that there is."""
        properties: dict[str, Any] = {"session_expiry_interval": 3600} if keep and self.version == 5 else {}
        return encode(
            Connect(self.version, identifier.encode(), not keep, 0, will, user_name, password, properties), self.version
        )

    def connect(
        self,
        identifier: str,
        *,
        keep: bool = False,
        will: Will | None = None,
        user_name: str | None = None,
        password: bytes | None = None,
    ) -> Connack:
        """Say CONNECT and return the answer."""
        self.socket.sendall(
            self.connect_bytes(identifier, keep=keep, will=will, user_name=user_name, password=password)
        )
        answer = self.read()
        assert isinstance(answer, Connack), answer
        return answer

    def send(self, *packets: Packet) -> None:
        """Send packets in one piece."""
        self.socket.sendall(b"".join(encode(packet, self.version) for packet in packets))

    @property
    def has_packet(self) -> bool:
        """Whether read() would find a whole packet without waiting."""
        return next_frame(bytearray(self._data)) is not None

    def read(self) -> Packet | None:
        """Return the next packet; None if the broker has closed the connection."""
        while True:
            frame = next_frame(self._data)
            if frame is not None:
                return decode(*frame, self.version)
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._data += data


def wait_until(condition: Any, what: str, timeout_s: float = TIMEOUT_S) -> Any:
    """Return the first value of condition() that is true."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)
    return value
