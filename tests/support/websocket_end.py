"""Our end of a WebSocket without a socket, for tests of frames alone."""

from __future__ import annotations

import struct
from typing import Any

from broker.transport.facts import Facts
from broker.transport.layer import Layers
from broker.transport.proxies import Proxies
from broker.transport.upgrade import Upgrade, Upgrades
from broker.transport.websocket import WebSocket
from broker.wire.reasons import ClientError
from tests.support.websockets import ACCEPT, CLOSE, Frame, frames_in, request

UPGRADES = Upgrades(("/mqtt",), (), True, Proxies((), is_unix=False))


class End:
    """Our end of a WebSocket.

    Attributes:
        plain: what was let through.
        sent: what is for the socket.
        error: how it ended, if that was the client's fault.
    """

    def __init__(self, *, opened: bool = True) -> None:
        facts = Facts(listener=0)
        self.layers: Any = Layers([WebSocket(Upgrade(UPGRADES, facts, "192.0.2.1:5"))], facts)
        self.plain = bytearray()
        self.sent = bytearray()
        self.error: ClientError | None = None
        if opened:
            self.feed(request())
            assert ACCEPT in self.sent
            self.sent.clear()

    def feed(self, *pieces: bytes) -> End:
        """Have bytes come; nothing comes behind an error or an end."""
        for piece in pieces:
            if self.error is not None or self.layers.state[1]:
                break
            plain, error = self.layers.feed(piece)
            self.plain += plain
            if error is not None:
                assert isinstance(error, ClientError), error
                self.error = error
                self.layers.end(error.close)
            self.sent += self.layers.take_raw()
        return self

    @property
    def frames(self) -> list[Frame]:
        """What was sent, which has to be whole frames."""
        rest = bytearray(self.sent)
        found = frames_in(rest)
        assert not rest
        return found

    @property
    def code(self) -> int | None:
        """The code of the Close frame that was sent last; None: there was none, or it had none."""
        closes = [one.payload for one in self.frames if one.opcode == CLOSE]
        assert len(closes) <= 1
        return struct.unpack("!H", closes[0][:2])[0] if closes and closes[0] else None
