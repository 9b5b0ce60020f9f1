"""What workers keep for one another: what stands there counts, not what comes last."""

from __future__ import annotations

from typing import Any

import trio

from broker.control.shared_state import SharedState
from broker.wire.application_message import build
from broker.worker.worker import open_broker
from tests.support.embedded import CONFIG, TIMEOUT_S, until


async def test_a_message_that_comes_late_shows_nothing_older_than_what_stands_there() -> None:
    applied: list[tuple[str, Any]] = []
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(CONFIG) as broker, trio.open_nursery() as nursery:
            state = SharedState(broker.in_process, broker.router)
            state.follow("kind", lambda key, value: applied.append((key, value)))
            nursery.start_soon(state.run)
            await until(lambda: broker.router.tree.receivers(b"$shoal/kind/a"))
            await state.put("kind", "a", {"number": 2})
            # By put(), and by the message; once more, if the subscription found it retained already.
            await until(lambda: len(applied) >= 2)
            for payload in (b'{"number":1}', b""):
                broker.router.announce(build(b"$shoal/kind/a", payload, 0, False, None, 0))
            broker.reactor.wake()  # nothing else has it turn
            await until(lambda: len(applied) >= 4)
            assert applied == [("a", {"number": 2})] * len(applied)
            await state.put("kind", "a", None)
            await until(lambda: len(applied) >= 6 and applied[-2:] == [("a", None)] * 2)
            first = applied.index(("a", None))
            assert applied == [("a", {"number": 2})] * first + [("a", None)] * (len(applied) - first)
            nursery.cancel_scope.cancel()
