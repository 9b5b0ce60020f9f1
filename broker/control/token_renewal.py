"""`$auth/renew`: a client publishes its next token there, and stays connected until that one ends."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.auth.enhanced_auth import Exchange
from broker.auth.outcome import Accepted, Outcome
from broker.wire.application_message import build
from broker.wire.packets import Connect, may_carry
from broker.wire.properties import PacketType
from broker.wire.reasons import ClientError, Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.control.connect import Handshake
    from broker.control.requests import Request, Requests
    from router.router import Router

RENEW: Final = b"$auth/renew"
RESULT: Final = b"$auth/result"


class TokenRenewal:
    """Has the authenticator decide on such a token, as on one that comes by AUTH (4.12.1).

    A token that is refused changes nothing: the connection goes on until the one before ends.

    Args:
        handshake: knows the authenticator, and what an outcome means to a connection.
        router: the worker's.
    """

    def __init__(self, handshake: Handshake, router: Router) -> None:
        self._handshake = handshake
        self._router = router

    def serve(self, requests: Requests, takes_tokens: Callable[[int], bool]) -> None:
        """From now on take tokens. No right is needed: a client that has one may as well connect by it.

        Args:
            takes_tokens: whether an authenticator of a listener does, by its number.
        """
        requests.take(RENEW, self.on_request, asks_acl=False, mounted=True, of=takes_tokens)
        # What comes from there is the broker's word, for those too who have subscribed to it.
        requests.take(RESULT, _refuse, asks_acl=False, mounted=True, of=takes_tokens)

    def on_request(self, request: Request) -> None:
        """Deal with a token. What the client sends behind it waits until that is done."""
        connection = request.connection
        exchange = Exchange(connection, None, request.payload, pending=None)
        connect = Connect(connection.version, connection.session.client_identifier)
        outcome = self._handshake.ask(connect, exchange)
        if isinstance(outcome, Awaitable):
            assert self._handshake.spawn is not None, "requests come while serve() runs"
            exchange.begin()
            self._handshake.spawn(self._decide_later, request, exchange, outcome)
        else:
            self._decide(request, outcome)

    async def _decide_later(self, request: Request, exchange: Exchange, deciding: Awaitable[Outcome]) -> None:
        outcome = await exchange.outcome(deciding)
        assert not isinstance(outcome, ClientError), "who renews a token so is not asked anything"
        if outcome is not None:
            self._decide(request, outcome)

    def _decide(self, request: Request, outcome: Outcome) -> None:
        session, connection = request.session, request.connection
        if session is None:
            return
        reason, said = Reason.SUCCESS, dict[str, Any]()
        if isinstance(outcome, Accepted):
            self._handshake.take_on(connection, outcome)
            said = {"ok": True, "expires_at": outcome.expires_at_s}
        else:
            said = {"ok": False, "error": outcome.text or outcome.reason.name.lower().replace("_", " ")}
            reason = outcome.reason if may_carry(PacketType.PUBACK, outcome.reason) else Reason.UNSPECIFIED_ERROR
        topic_name = RESULT if connection.mount_point is None else connection.mount_point.mounted(RESULT)
        self._router.tell(build(topic_name, msgspec.json.encode(said), 0, False, None, 0), session)
        request.end(reason)


def _refuse(request: Request) -> None:
    request.end(Reason.NOT_AUTHORIZED)
