"""Which peers are let in where links are encrypted: ZeroMQ asks over ZAP (RFC 27), once per connection."""

from __future__ import annotations

from collections.abc import Mapping

import zmq
from zmq.utils import z85

ENDPOINT = "inproc://zeromq.zap.01"
DOMAIN = "shoal"
VERSION = b"1.0"


class Gate:
    """Answers ZeroMQ's questions about connections of one context. Only known public keys come in.

    Args:
        context: of the sockets that it guards; none of them may be bound before.
        names: the node that a public key (Z85, 40 bytes) belongs to; may be changed at any time, for new connections.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], names: Mapping[bytes, bytes]) -> None:
        self.names = names
        self.refused = 0
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ENDPOINT)
        self.fd = int(self.socket.getsockopt(zmq.FD))

    def answer(self) -> None:
        """Answer all questions that have come."""
        while True:
            try:
                question = self.socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            self.socket.send_multipart(self.verdict(question), zmq.DONTWAIT)

    def verdict(self, question: list[bytes]) -> list[bytes]:
        """Return the answer to one question: version, request, domain, address, identity, mechanism, credentials."""
        request = question[1] if len(question) > 1 else b""
        name = None
        if len(question) == 7 and question[0] == VERSION and question[5] == b"CURVE" and len(question[6]) == 32:
            name = self.names.get(z85.encode(question[6]))
        if name is None:
            self.refused += 1
            return [VERSION, request, b"400", b"unknown key", b"", b""]
        return [VERSION, request, b"200", b"OK", name, b""]

    def close(self) -> None:
        """Answer ZAP no more: the context's connections are refused from here on."""
        self.socket.close()
