"""Enhanced authentication (4.12): one exchange of AUTH packets between an authenticator and its client."""

from __future__ import annotations

import math
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

import trio

from broker.auth.outcome import Accepted, Outcome, Pending, Refused, UndecidedError
from broker.logs import get
from broker.wire.packets import Auth, encode_fitting
from broker.wire.reasons import ClientError, CloseReason, Reason

if TYPE_CHECKING:
    from broker.auth.principal import Principal
    from broker.transport.facts import Facts

log = get("authentication")

FAILED = Refused(Reason.IMPLEMENTATION_SPECIFIC_ERROR, "authentication failed")


def checked(outcome: object) -> Outcome:
    """Return what an authenticator decided. Raises TypeError for what is no decision."""
    if isinstance(outcome, (Accepted, Refused)):
        return outcome
    raise TypeError(f"an authenticator returned {type(outcome).__name__}, not Accepted or Refused")


class Connection(Protocol):
    """What an exchange needs of the client's connection: broker.reactor.connection.Connection."""

    peer: str | None
    facts: Facts | None
    principal: Principal | None
    is_closing: bool
    packet_bytes_max: int

    def write_packet(self, frame: bytes) -> None:
        """Send a packet."""

    def unpark(self) -> None:
        """Parse on behind the packet that waited."""


class Exchange:
    """An enhanced authentication under way (4.12), as the authenticator sees it.

    Attributes:
        method: Authentication Method of the CONNECT, None if it names none.
        data: Authentication Data that came with the CONNECT or AUTH that began the exchange, None if none did.
        again: whether this is a re-authentication of a connected client.
        under_way: whether the authenticator has yet to decide.
        identifier: of the client, as it was asked about when its will was; empty: it has not been.
    """

    __slots__ = (
        "_answer",
        "_answer_timeout_s",
        "_answered",
        "_connection",
        "_pending",
        "_scope",
        "again",
        "data",
        "identifier",
        "method",
        "under_way",
    )

    def __init__(
        self,
        connection: Connection,
        method: str | None,
        data: bytes | None,
        *,
        pending: Pending | None,
        answer_timeout_s: float = math.inf,
    ) -> None:
        """Make one: of a CONNECT, which counts among `pending`; or without it of a client that is connected.

        Args:
            answer_timeout_s: how long the client may take to answer a challenge; a CONNECT's deadline is its own.
        """
        self.method = method
        self.data = data
        self.again = pending is None
        self.under_way = True
        self.identifier = b""
        self._connection = connection
        self._pending = pending
        self._answer_timeout_s = answer_timeout_s
        self._scope: trio.CancelScope | None = None
        self._answered: trio.Event | None = None
        self._answer: Auth | None = None

    @property
    def has_waited(self) -> bool:
        """Whether the authenticator did not decide at once."""
        return self._scope is not None

    @property
    def peer(self) -> str | None:
        """The client's address as text, None if it is not known."""
        peer: str | None = self._connection.peer
        return peer

    @property
    def facts(self) -> Facts | None:
        """What the connection tells of its client: certificate, TLS, listener; None: plain, by the first listener."""
        return self._connection.facts

    @property
    def principal(self) -> Principal | None:
        """What the client was accepted as before, if this is a re-authentication; else None."""
        return self._connection.principal if self.again else None

    async def challenge(self, data: bytes) -> bytes:
        """Send AUTH 0x18 with data and return the data of the client's AUTH [MQTT-4.12.0-2].

        The wait is cancelled if the connection ends meanwhile. The client's other packets go on during a
        re-authentication; before that, they are errors.

        Args:
            data: 0..65,535 bytes.

        Raises:
            ClientError: the client did not answer in time, or its Maximum Packet Size is too small; let it pass.
        """
        assert self.method is not None, "a client without an authentication method cannot be asked [MQTT-4.12.0-6]"
        assert self._answered is None or self._answered.is_set(), "one challenge at a time"
        connection = self._connection
        if connection.is_closing:
            await trio.sleep_forever()  # until its end is dealt with, which cancels this
        frame = encode_fitting(
            Auth(Reason.CONTINUE_AUTHENTICATION, {"authentication_method": self.method, "authentication_data": data}),
            5,
            connection.packet_bytes_max,
        )
        if not frame:
            raise ClientError(Reason.PACKET_TOO_LARGE, "MQTT-3.1.2-24", "no challenge fits the Maximum Packet Size")
        self._answered = trio.Event()
        self._answer = None
        connection.write_packet(frame)
        if self._pending is not None:
            # Now it is the client that is waited for, within its time to CONNECT: nobody else has to wait for that.
            self._pending.remove(connection)
            connection.unpark()
        with trio.move_on_after(self._answer_timeout_s):
            await self._answered.wait()
        if self._answer is None:
            raise ClientError(
                Reason.NOT_AUTHORIZED,
                "MQTT-4.12.1-2",
                "a challenge was not answered in time",
                CloseReason.BAD_AUTHENTICATION,
            )
        answer: bytes = self._answer.properties.get("authentication_data", b"")
        return answer

    def answer(self, packet: Auth) -> bool:
        """Hand over the client's AUTH. False: none was asked for."""
        if self._answered is None or self._answered.is_set() or not self.under_way:
            return False
        if self._pending is not None:
            self._pending.add(self._connection)
        self._answer = packet
        self._answered.set()
        return True

    def begin(self) -> None:
        """The authenticator waits: outcome() follows."""
        self._scope = trio.CancelScope()
        if self._pending is not None:
            self._pending.add(self._connection)

    async def outcome(self, deciding: Awaitable[Outcome]) -> Outcome | ClientError | None:
        """Return what the authenticator decides in the end, or what the client did wrong; None if it left before."""
        assert self._scope is not None, "begin() comes first"
        try:
            with self._scope:
                return checked(await deciding)
        except ClientError as error:
            return error
        except UndecidedError as error:
            return Refused(Reason.SERVER_UNAVAILABLE, str(error))
        except Exception:
            log.exception("authenticator_failed")
            return FAILED
        finally:
            if self._pending is not None:
                self._pending.remove(self._connection)
        return None

    def abandon(self) -> None:
        """The connection ended: no authenticator waits for its client any more."""
        if self._scope is not None:
            self._scope.cancel()
