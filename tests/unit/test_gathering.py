"""Workers are asked seldom, however many ask, and what is told was found after it was asked for."""

import trio
import trio.testing

from broker.admin.gathering import Gathering

GAP_S = 0.1


class Workers:
    """Counts how often it was asked; an answer takes a while."""

    def __init__(self) -> None:
        self.asked = 0
        self.state = ""

    async def gather(self) -> str:
        self.asked += 1
        found = self.state
        await trio.sleep(0.01)
        return found


async def test_who_comes_while_it_is_asked_gets_the_next_answer(autojump_clock: trio.testing.MockClock) -> None:
    workers = Workers()
    gathering = Gathering(workers.gather, GAP_S)
    found: list[str] = []

    async def ask() -> None:
        found.append(await gathering.found())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(0.005)
        workers.state = "new"
        for _ in range(1000):
            nursery.start_soon(ask)
    assert found == ["", *["new"] * 1000]
    assert workers.asked == 2


async def test_who_asks_again_and_again_waits(autojump_clock: trio.testing.MockClock) -> None:
    gathering = Gathering(Workers().gather, GAP_S)
    began_s = trio.current_time()
    for _ in range(11):
        await gathering.found()
    assert trio.current_time() - began_s >= 10 * GAP_S


async def test_one_that_leaves_keeps_no_other_from_an_answer(autojump_clock: trio.testing.MockClock) -> None:
    workers = Workers()
    gathering = Gathering(workers.gather, GAP_S)
    found: list[str] = []

    async def ask() -> None:
        found.append(await gathering.found())

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.005):
            nursery.start_soon(ask)
            await gathering.found()
        workers.state = "later"
    assert found
    assert workers.asked <= 3
