"""Rights that have changed: what clients have subscribed to is judged anew, in slices."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from broker.auth.acl import Fetched, Grant
from broker.control.principals import restored
from broker.logs import get
from broker.reactor import introspection
from broker.wire.rendering import text_of
from router.core.receiver import NARROWED_OPTION
from router.sessions.replay_subscription import note

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.auth.acl import FailClosed
    from broker.auth.principal import Principal
    from router.core.receiver import Receiver
    from router.router import Router
    from router.sessions.session import Session

log = get("acl")

SLICE: Final = 128  # subscriptions that are judged between two turns: some 0.5 ms
AT_ONCE: Final = 256  # ... of a client that comes back
QOS_BITS: Final = 0x03
ASK_AGAIN_S: Final = (1.0, 60.0)  # after which those are asked again who have not answered: at first and at most


class Owner(Protocol):
    """What ends subscriptions: broker.control.controller.Controller."""

    def end_subscription(self, receiver: Receiver, topic_filter: bytes) -> None:
        """End a subscription, and what it was yet to get."""


class Judged:
    """One receiver under review."""

    __slots__ = ("another", "begun", "done", "end", "receiver", "replays")

    def __init__(self, receiver: Receiver, done: Callable[[], None] | None, another: bool) -> None:
        self.another = another
        self.receiver = receiver
        self.begun = False
        self.end: int = receiver.entry_count
        self.replays = list(getattr(receiver, "replays", None) or ())
        self.done = done


def _replays_of(receiver: Receiver) -> dict[bytes, Any]:
    return getattr(receiver, "replays", None) or {}


class RightsReview:
    """Judges subscriptions again when rights are others: all of them, or those of one client.

    A subscription that is not allowed any more ends, one whose grant is another is narrowed, or whole again, and what
    is queued leaves only as far as it may be read now. Sessions whose clients are away are judged as whom these were.

    Args:
        local: returns the receivers of in-process clients.

    Attributes:
        revoked: subscriptions that have ended so, since the start.
    """

    def __init__(self, router: Router, acl: FailClosed, owner: Owner, local: Callable[[], list[Receiver]]) -> None:
        self.revoked = 0
        self._router, self._acl, self._owner, self._local = router, acl, owner, local
        self._first: deque[Judged] = deque()  # of single clients
        self._left: list[Receiver] = []  # of all, those whose turn is yet to come
        self._current: Judged | None = None  # of these
        self._asked = trio.Event()
        self._done: list[trio.Event] = []
        self._unknown: dict[Receiver, None] = {}  # whose subscriptions others have to be asked about
        self._unknown_found = trio.Event()

    def begin(self) -> None:
        """Judge all subscriptions again; from the beginning, if that is under way. From trio's thread."""
        self._router.tree.rights_changed()
        self._current = None
        self._left = [*self._router.sessions.values(), *self._local()]
        self._asked.set()

    def judge(self, receiver: Receiver, was: Principal | None, done: Callable[[], None] | None = None) -> bool:
        """Judge those of a receiver that was another principal. Returns whether that was all; else `done` is called."""
        judged = Judged(receiver, done, was is None or was.user_name != receiver.principal.user_name)
        if self._slice(judged, AT_ONCE) >= 0:
            return True
        self._first.append(judged)
        self._asked.set()
        return False

    def go_on(self, limit: int = SLICE) -> bool:
        """Judge some. Returns whether there are more."""
        while limit > 0:
            if self._first:
                judged = self._first[0]
                limit = self._slice(judged, limit)
                if limit >= 0:
                    self._first.popleft()
                    if judged.done is not None:
                        judged.done()
                continue
            if self._current is None:
                if not self._left:
                    break
                self._current = Judged(self._left.pop(), None, False)
            limit = self._slice(self._current, limit)
            if limit >= 0:
                self._current = None
        return bool(self._first or self._left or self._current is not None)

    async def run(self, wake: Callable[[], None]) -> None:
        """Judge what is to be judged, in slices between turns. Runs until cancelled.

        Args:
            wake: has the reactor turn, for what follows from it.
        """
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            while self.go_on():
                await trio.lowlevel.checkpoint()
            # What rested on records before that leaves first: only then nothing comes any more that may not be read.
            if self._router.recording:
                self._router.effects.call(self._in_force)
                wake()
            else:
                self._in_force()

    async def in_force(self) -> None:
        """Wait until the rights of now hold everywhere."""
        done = trio.Event()
        self._done.append(done)
        self._asked.set()
        await done.wait()

    def _in_force(self) -> None:
        if not self._asked.is_set():
            for done in self._done:
                done.set()
            self._done.clear()

    def principal_of(self, receiver: Receiver) -> Principal | None:
        """Return as whom a receiver reads; None: it may read everything, or its log does not say."""
        principal: Principal | bytes | None = receiver.principal
        if isinstance(principal, bytes):
            principal = restored(receiver.client_identifier, principal)
            self._router.give_rights(receiver, principal)
            will = receiver.will
            if will is not None and principal is not None:
                will.principal = principal
        return principal

    def _slice(self, judged: Judged, limit: int) -> int:
        """Judge some subscriptions of a receiver. Returns how many more there might have been; -1: it is not done."""
        receiver, router = judged.receiver, self._router
        principal = self.principal_of(receiver)
        if principal is None or receiver.gone:
            return limit - 1
        if not judged.begun:
            judged.begun = True
            router.doubt(receiver, judged.another)
        while judged.end:
            if limit <= 0:
                return -1
            some, judged.end = introspection.subscriptions_below(router.tree, receiver, judged.end, min(limit, 32))
            limit -= len(some)
            for topic_filter, options, identifier in some:
                if not self._is_left(receiver, principal, topic_filter, options, judged.another):
                    self._judge_one(receiver, principal, topic_filter, options, identifier)
        while judged.replays:
            if limit <= 0:
                return -1
            limit -= 1
            self._judge_replay(receiver, principal, judged.replays.pop(), judged.another)
        return max(limit - 1, 0)

    def _is_left(
        self, receiver: Receiver, principal: Principal, topic_filter: bytes, options: int, another: bool
    ) -> bool:
        """Return whether a subscription stays as it is for now: it was granted to this user, and who decides is asked.

        What somebody else was granted does not count: it is refused, as long as nothing else is known.
        """
        if another or not self._acl.waits:
            return False
        fetched = self._acl.fetched(principal, "subscribe", topic_filter, options & QOS_BITS, False)
        if fetched is Fetched.KNOWN:
            return False
        self._unknown[receiver] = None
        self._unknown_found.set()
        return True

    def _judge_one(
        self, receiver: Receiver, principal: Principal, topic_filter: bytes, options: int, identifier: int
    ) -> None:
        grant = self._acl.may_subscribe(principal, topic_filter, options & QOS_BITS)
        if grant == Grant.REFUSED:
            self._end(receiver, principal, topic_filter, options)
        elif bool(options & NARROWED_OPTION) != (grant == Grant.NARROWED):
            self._router.subscribe(receiver, topic_filter, options ^ NARROWED_OPTION, identifier, asks_retained=False)

    async def ask(self) -> None:
        """Have answers fetched about subscriptions that are under review and are not known. Runs until cancelled."""
        pause_s = ASK_AGAIN_S[0]
        while True:
            await self._unknown_found.wait()
            self._unknown_found = trio.Event()
            asked, self._unknown = self._unknown, {}
            unavailable: dict[Receiver, None] = {}
            while asked:
                receiver = next(iter(asked))
                del asked[receiver]
                if not await self._ask_about(receiver):
                    unavailable[receiver] = None
            if unavailable:
                # Nobody who decides has answered: what was granted stays, and is asked about until somebody does.
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, ASK_AGAIN_S[1])
                self._unknown.update(unavailable)
                self._unknown_found.set()
            else:
                pause_s = ASK_AGAIN_S[0]

    async def _ask_about(self, receiver: Receiver) -> bool:
        """Ask about what a receiver has subscribed to. Returns whether all of it is known now."""
        all_known, end = True, receiver.entry_count
        while end:
            some, end = introspection.subscriptions_below(self._router.tree, receiver, end, 32)
            for topic_filter, options, _ in some:
                all_known &= await self._ask_about_one(receiver, topic_filter, options)
            end = min(end, receiver.entry_count)  # some may have ended meanwhile
        for topic_filter, replay in list(_replays_of(receiver).items()):
            all_known &= await self._ask_about_one(receiver, topic_filter, replay.options)
        return all_known

    async def _ask_about_one(self, receiver: Receiver, topic_filter: bytes, options: int) -> bool:
        principal = self.principal_of(receiver)
        if principal is None or receiver.gone:
            return True
        fetched = await self._acl.fetch(principal, "subscribe", topic_filter, options & QOS_BITS, False)
        if receiver.gone or self.principal_of(receiver) != principal:
            return True  # who comes as somebody else is judged then
        if fetched is not Fetched.KNOWN:
            return False
        if topic_filter in _replays_of(receiver):
            self._judge_replay(receiver, principal, topic_filter, False)
        else:
            now = introspection.subscription_to(self._router.tree, receiver, topic_filter)
            if now is not None:
                self._judge_one(receiver, principal, topic_filter, *now)
        return True

    def _judge_replay(self, session: Session, principal: Principal, topic_filter: bytes, another: bool) -> None:
        replay = _replays_of(session).get(topic_filter)
        if replay is None or self._is_left(session, principal, topic_filter, replay.options, another):
            return
        grant = self._acl.may_subscribe(principal, topic_filter, replay.options & QOS_BITS)
        if grant == Grant.REFUSED:
            self._end(session, principal, topic_filter, replay.options)
        elif bool(replay.options & NARROWED_OPTION) != (grant == Grant.NARROWED):
            replay.options ^= NARROWED_OPTION
            note(self._router, session, replay)

    def _end(self, receiver: Receiver, principal: Principal, topic_filter: bytes, options: int) -> None:
        decision = self._acl.explain(principal, "subscribe", topic_filter, options & QOS_BITS, False)
        self._owner.end_subscription(receiver, topic_filter)
        self.revoked += 1
        log.info(
            "subscription_revoked",
            client=text_of(principal.client_identifier),
            topic_filter=text_of(topic_filter),
            decided_by=decision.by,
        )
