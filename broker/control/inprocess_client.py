"""Clients inside the process: publish and subscribe without a socket, from a trio task beside the broker's own.

Nothing here runs inside of a turn but the note that something came; the code that uses a client runs as trio's. Every
async method is a checkpoint, so that a loop over them never keeps the reactor from turning.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import trio

from broker.auth.acl import Grant
from broker.auth.principal import IN_PROCESS, Principal
from broker.control.presence import ClientInfo, Connected, Disconnected, Presence
from broker.control.retained_backlog import Backlog
from broker.wire import application_message
from broker.wire.application_message import ReceivedMessage
from broker.wire.reasons import CloseReason, Reason
from router.core.receiver import NARROWED_OPTION
from router.matching.topic_names import is_state_filter
from router.sessions.local_receiver import LocalClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.auth.acl import FailClosed
    from broker.reactor.epoll import Reactor
    from router.core.message import Message
    from router.router import Router

INBOX_MAX = 1000  # messages, unless connect() says otherwise
OWN_INBOX_MAX = 0xFFFFFFFF


class RefusedError(Exception):
    """The broker does not do it; `reason` says why, with the code that a network client would get."""

    def __init__(self, what: str, reason: Reason) -> None:
        super().__init__(f"{what}: {reason.name.lower().replace('_', ' ')} (0x{reason:02x})")
        self.reason = reason


class Settlement:
    """A publish that waits for its record to be durable."""

    __slots__ = ("durable", "over")

    def __init__(self) -> None:
        self.over = trio.Event()
        self.durable = False


class InProcessClient:
    """A client in the broker's own process; made by `connect` of the broker. For tasks of the broker's trio run.

    As an async context manager it disconnects at the end of the block. Iterating over it gives the messages that it
    receives, each to one of the tasks that iterate; the iteration stops after disconnect() at once, and after the end
    of the broker when the inbox is empty. All methods but disconnect() raise trio.ClosedResourceError after either.

    Attributes:
        client_identifier: its name; another name space than that of network clients.
        principal: what the ACL is asked about; None: it is not asked.
        is_own: it is the broker's own, is in no listing, and publishes below $shoal alone.
    """

    def __init__(
        self, host: InProcess, client_identifier: str, identity: str | None, inbox_max: int, *, is_own: bool = False
    ) -> None:
        self.client_identifier = client_identifier
        name = application_message.check_string("client_identifier", client_identifier, 1)
        self.principal = None if identity is None else Principal(identity, name, None, IN_PROCESS)
        self.is_own = is_own
        self.local = LocalClient(
            name,
            application_message.check_number("inbox_max", inbox_max, 1, 0xFFFFFFFF),
            host.router.ledger,
            host.reactor.arrivals,
            self._on_arrival,
        )
        host.router.give_rights(self.local, self.principal)
        self._host = host
        self._opened_ms: int = host.reactor.look_at_clock()
        self._backlog = Backlog(host.router, self.local)
        self._waiting = trio.lowlevel.ParkingLot()
        self._settlements: dict[int, Settlement] = {}
        self._published = 0
        self._received = 0
        self._ended = False

    async def __aenter__(self) -> Self:
        try:
            await trio.lowlevel.checkpoint()
        except BaseException:
            self._disconnect()  # cancelled on the way in: there is no __aexit__ then
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._disconnect()

    # Publishing ----------------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic_name: str,
        payload: bytes | bytearray | memoryview = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Mapping[str, Any] | None = None,
    ) -> int:
        """Publish a message. Returns how many subscribers it is for, a shared subscription being one; 0 is no error.

        A subscriber without room for it counts too: what it drops is counted there.

        QoS 0 returns after routing. QoS 1 and 2 return when a network client would get its PUBACK or PUBREC: when what
        the message rests on is durable. Cancelled before that, it may or may not have been published; QoS 1 and 2 are
        the same here, since nothing between us and the broker can be lost or come twice.

        Args:
            topic_name: 1..65535 bytes of UTF-8, no wildcards.
            payload: with topic name and properties up to 268,435,455 bytes; empty and retain: removes the retained one.
            properties: of MQTT 5.0 by name, as `ReceivedMessage.properties` gives them: payload_format_indicator,
                message_expiry_interval (s), content_type, response_topic, correlation_data, user_property.

        Raises:
            ValueError, TypeError: an argument is wrong; it says which, and what is expected.
            RefusedError: the ACL does not allow it, or has failed.
            trio.ClosedResourceError: disconnected, or the broker ended before the message was durable.
        """
        topic, owned = application_message.check_message(topic_name, payload, qos, properties)
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        host = self._host
        if self.principal is not None and host.acl.waits:
            await host.acl.fetch(self.principal, "publish", topic, qos, retain)
            self._check_open()
        if self.principal is not None and not host.acl.may_publish(self.principal, topic, qos, retain):
            host.router.ledger.count_dropped("not_authorized")
            await trio.lowlevel.cancel_shielded_checkpoint()
            raise RefusedError(f"publish to {topic_name!r}", Reason.NOT_AUTHORIZED)
        message = application_message.build(topic, owned, qos, retain, properties, host.reactor.look_at_clock())
        reached, recorded = host.publish(self.local, message, own=self.is_own)
        self._published += 1
        if qos and recorded:
            await self._settled()
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return reached

    async def _settled(self) -> None:
        """Wait until everything recorded so far is durable. The wait may be cancelled, what it stands for may not."""
        settlement = Settlement()
        self.local.hold()
        self._settlements[id(settlement)] = settlement

        def settle() -> None:
            self.local.release()
            self._settlements.pop(id(settlement), None)
            settlement.durable = True
            settlement.over.set()

        self._host.router.effects.call(settle)
        await settlement.over.wait()
        if not settlement.durable:
            raise trio.ClosedResourceError("the end came before the message was durable")

    # Subscribing ---------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        topic_filter: str,
        qos: int = 0,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        subscription_identifier: int | None = None,
    ) -> int:
        """Subscribe, or replace a subscription to the same topic filter. Returns the granted QoS.

        The retained messages that match come before everything else that waits, however many: they do not count for
        the inbox, and one whose topic has got a newer message meanwhile is passed over.

        Args:
            topic_filter: as network clients give it, `$share/name/filter` for a shared subscription.
            no_local: without messages that this very client publishes.
            retain_as_published: messages keep their RETAIN flag.
            retain_handling: retained messages: 0 send, 1 send if the subscription is new, 2 do not send.
            subscription_identifier: 1..268,435,455, comes back in ReceivedMessage.subscription_identifiers.

        Raises:
            ValueError, TypeError: an argument is wrong; it says which, and what is expected.
            RefusedError: the ACL does not allow it, or has failed.
            trio.ClosedResourceError: disconnected.
        """
        encoded, inner_filter = application_message.check_filter(topic_filter)
        options = application_message.check_options(
            inner_filter is not None, qos, no_local, retain_as_published, retain_handling, subscription_identifier
        )
        await trio.lowlevel.checkpoint()
        self._check_open()
        host = self._host
        if self.principal is not None and host.acl.waits:
            await host.acl.fetch(self.principal, "subscribe", encoded, qos, False)
            self._check_open()
        grant = Grant.WHOLE if self.principal is None else host.acl.may_subscribe(self.principal, encoded, qos)
        if grant == Grant.REFUSED or (is_state_filter(inner_filter or encoded) and not self.is_own):
            raise RefusedError(f"subscribe to {topic_filter!r}", Reason.NOT_AUTHORIZED)
        options |= NARROWED_OPTION if grant == Grant.NARROWED else 0
        identifier = subscription_identifier or 0
        retained = host.router.subscribe(self.local, encoded, options, identifier)
        self._backlog.add(encoded, retained, qos, identifier)
        if self._backlog:
            self._on_arrival()
        return qos

    async def unsubscribe(self, topic_filter: str) -> bool:
        """Remove a subscription. Returns whether there was one; what has come through it stays in the inbox.

        Raises:
            ValueError, TypeError: not a topic filter.
            trio.ClosedResourceError: disconnected.
        """
        encoded, _ = application_message.check_filter(topic_filter)
        await trio.lowlevel.checkpoint()
        self._check_open()
        self._backlog.drop(encoded)
        removed: bool = self._host.router.unsubscribe(self.local, encoded)
        return removed

    # Receiving -----------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        await trio.lowlevel.checkpoint()
        while (message := self._take()) is None:
            if self._ended:
                raise StopAsyncIteration
            if self._backlog:
                await trio.lowlevel.checkpoint()  # what has been read so far was in vain
            else:
                await self._waiting.park()
        self._received += 1
        return message

    def _take(self) -> ReceivedMessage | None:
        host = self._host
        now_ms = host.reactor.look_at_clock()
        backlog = self._backlog
        if not backlog.pending and backlog.scans:
            backlog.read_on()
        while (waiting := backlog.next()) is not None:
            message, granted_qos, identifier, scan = waiting
            backlog.take()
            if backlog.is_current(message, scan) and not self.local.expired(message, now_ms):
                # RETAIN 1 [MQTT3-3.3.1-8], at most at the granted QoS.
                return application_message.received(
                    message,
                    min(granted_qos, message.quality_of_service),
                    True,
                    (identifier,) if identifier else (),
                    now_ms,
                )
        if backlog:
            return None
        entry = self.local.take_next(now_ms)
        if entry is None:
            return None
        message, qos, retain, identifiers = entry
        decoded = application_message.decode_identifiers(identifiers)
        return application_message.received(message, qos, retain, decoded, now_ms)

    def _on_arrival(self) -> None:
        """Something came. Called after a turn, or between turns."""
        if self._waiting:
            self._waiting.unpark_all()

    @property
    def dropped(self) -> int:
        """Messages that found the inbox full, expired in it, or were in it at the end; never reported otherwise."""
        dropped: int = self.local.dropped
        return dropped

    @property
    def waiting(self) -> int:
        """Messages in the inbox."""
        waiting: int = self.local.waiting
        return waiting

    # Ends ----------------------------------------------------------------------------------------------------------

    async def disconnect(self) -> None:
        """Leave: the subscriptions end, the inbox is dropped, iterations stop. A second time it does nothing.

        What came through a shared subscription at QoS 1 or 2 and was not taken goes to another member. Cancelled, it
        has disconnected all the same.
        """
        self._disconnect()
        await trio.lowlevel.checkpoint()

    def _disconnect(self) -> None:
        self._backlog = Backlog(self._host.router, self.local)
        if not self._ended:
            self._host.leave(self, CloseReason.CLIENT_DISCONNECT)
        self.local.leave()
        self._host.after()

    def end(self) -> None:
        """The host has forgotten it: a task that waits for a message hears of it."""
        self._ended = True
        self._backlog.end()
        for settlement in self._settlements.values():
            settlement.over.set()
        self._settlements.clear()
        self._waiting.unpark_all()

    def _check_open(self) -> None:
        if self._ended:
            raise trio.ClosedResourceError(f"in-process client {self.client_identifier!r} has disconnected")

    def describe(self) -> ClientInfo:
        """Return what others may know of it."""
        return ClientInfo(
            self.client_identifier,
            None,
            None,
            self.principal,
            (self._host.reactor.look_at_clock() - self._opened_ms) / 1000,
            0,
            self.local.subscription_count,
            {"messages_in": self._published, "messages_out": self._received, "messages_dropped": self.dropped},
        )


class InProcess:
    """The in-process clients of one worker.

    Args:
        fail: called with an exception out of the router: its state cannot be trusted any more, the worker must end.
    """

    def __init__(
        self,
        reactor: Reactor,
        router: Router,
        acl: FailClosed,
        presence: Presence,
        fail: Callable[[BaseException], None],
    ) -> None:
        self.reactor = reactor
        self.router = router
        self.acl = acl
        self.presence = presence
        self.clients: dict[str, InProcessClient] = {}
        self._own: list[InProcessClient] = []
        self._fail = fail
        self._ended = False

    def connect(self, client_identifier: str, identity: str | None, inbox_max: int) -> InProcessClient:
        """Make a client. Raises ValueError if one of that name is connected."""
        if self._ended:
            raise trio.ClosedResourceError("the broker has ended")
        if client_identifier in self.clients:
            raise ValueError(f"client_identifier {client_identifier!r}: an in-process client of this name is connected")
        client = InProcessClient(self, client_identifier, identity, inbox_max)
        self.clients[client_identifier] = client
        if self.presence.watches:
            self.presence.tell(Connected(client.describe()))
        return client

    def connect_own(self, name: str) -> InProcessClient:
        """Make a client of the broker's own: no listing has it, and it drops nothing of what it is sent."""
        client = InProcessClient(self, name, None, OWN_INBOX_MAX, is_own=True)
        self._own.append(client)
        return client

    @property
    def own_subscriptions(self) -> int:
        """Subscriptions of the broker's own clients."""
        return sum(client.local.subscription_count for client in self._own)

    def publish(self, publisher: LocalClient | None, message: Message, *, own: bool = False) -> tuple[int, bool]:
        """Route a message. Returns how many receivers it is for and whether it rests on a record."""
        try:
            reached, recorded = self.router.publish_message(message, publisher, own=own)
        except Exception as error:
            self._fail(error)
            raise
        self.after()
        return reached, recorded

    def after(self) -> None:
        """Something was routed between turns, or by trio within one: who got it hears of it, and the pump runs."""
        self.reactor.tell_arrivals()
        if self.router.recording:
            self.reactor.wake()

    def leave(self, client: InProcessClient, reason: CloseReason) -> None:
        """Forget a client and its subscriptions."""
        if client.is_own:
            self._own.remove(client)
        else:
            del self.clients[client.client_identifier]
        self.router.remove_receiver(client.local)
        client.end()
        if self.presence.watches and not client.is_own:
            self.presence.tell(Disconnected(client.client_identifier, reason, in_process=True))

    def end(self) -> None:
        """The broker ends: every client with it."""
        self._ended = True
        for client in [*self.clients.values(), *self._own]:
            self.leave(client, CloseReason.SERVER_SHUTDOWN)
