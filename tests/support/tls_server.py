"""A server's end of TLS by Python's `ssl`, without a socket."""

from __future__ import annotations

import ssl
from typing import Any


def server_context(pair: tuple[str, str], **settings: Any) -> ssl.SSLContext:
    """Return what servers with a certificate are made of; settings are attributes, or methods with one argument."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    for name, value in settings.items():
        getattr(context, name)(value) if callable(getattr(context, name)) else setattr(context, name, value)
    return context


class TlsServer:
    """One connection.

    Attributes:
        opened: the handshake is over.
        received: what the client has said.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.opened = False
        self.received = b""

    def feed(self, data: bytes) -> bytes:
        """Take bytes; return those to be sent."""
        self.incoming.write(data)
        try:
            if not self.opened:
                self.tls.do_handshake()
                self.opened = True
            while data := self.tls.read(65536):
                self.received += data
        except ssl.SSLError:  # it wants more, or has failed and says so to the client
            pass
        return self.outgoing.read()

    def say(self, data: bytes) -> bytes:
        """Return what is to be sent to say something."""
        while data:
            data = data[self.tls.write(data) :]
        return self.outgoing.read()
