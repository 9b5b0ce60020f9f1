"""Clients that connect again and again."""

from __future__ import annotations

import time
from _blake2 import blake2b  # hashlib would load OpenSSL
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from broker.auth.addresses import subscriber_of
from broker.auth.outcome import Refused
from broker.logs import get
from broker.wire.reasons import Reason

if TYPE_CHECKING:
    from broker.wire.packets import Connect

log = get("flapping")

WINDOW_S: Final = 60.0
PAUSE_MAX_S: Final = 3600.0
FORGOTTEN_S: Final = 2 * PAUSE_MAX_S  # after its last CONNECT
CLIENTS_MAX: Final = 100_000  # then the one that came longest ago is forgotten
TOO_OFTEN: Final = Refused(Reason.CONNECTION_RATE_EXCEEDED, "the client connects too often")


class Flapping:
    """An Admission that makes a client wait which connects too often: a minute, and twice as long each time again.

    Two devices of one client identifier, which take over from each other for ever, come to rest by it. It is asked
    before anybody has proved who he is: so CONNECTs from elsewhere do not make a client wait.

    Args:
        per_minute_max: CONNECTs of one client identifier from one address, 1 or more.
    """

    def __init__(self, per_minute_max: int) -> None:
        self._per_minute_max = per_minute_max
        # By a digest of client identifier and address, for an identifier may have 64 KiB: CONNECTs in the window, when
        # that began, how often it had to wait, and until when.
        self._clients: OrderedDict[bytes, tuple[int, float, int, float]] = OrderedDict()

    def admit(self, connect: Connect, peer: str | None) -> Refused | None:
        """Count a CONNECT, and refuse it if its client has to wait. Without a client identifier none does."""
        identifier = connect.client_identifier
        if not identifier:
            return None
        now_s = time.monotonic()
        origin = subscriber_of(peer).encode()
        key = blake2b(identifier, key=blake2b(origin).digest(), digest_size=16).digest()
        count, begun_s, times, until_s = self._clients.pop(key, (0, now_s, 0, 0.0))
        if now_s - max(begun_s, until_s) >= FORGOTTEN_S:
            times = 0
        if now_s - begun_s >= WINDOW_S:
            count, begun_s = 0, now_s
        if now_s >= until_s:
            count += 1
            if count > self._per_minute_max:
                pause_s = min(PAUSE_MAX_S, WINDOW_S * 2.0**times)
                count, times, until_s = 0, min(times + 1, 30), now_s + pause_s
                log.warning("client_flaps", client=identifier, address=peer, pause_s=pause_s)
        self._clients[key] = count, begun_s, times, until_s
        if len(self._clients) > CLIENTS_MAX:
            self._clients.popitem(last=False)
        return TOO_OFTEN if now_s < until_s else None
