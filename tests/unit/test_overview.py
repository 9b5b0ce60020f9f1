"""The overview: what is remembered has a fixed size, and rates are of the seconds that they say."""

import math
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from broker.admin.overview import COARSE_COUNT, FINE_COUNT, NAMES, SERIES, Overview, Ring

DAY_BYTES = len(NAMES) * 4 * (FINE_COUNT + COARSE_COUNT)
AT = {name: index for index, name in enumerate(NAMES)}
NOW_S = 1_700_000_000.0


def row(value: float) -> list[float]:
    return [value] * len(NAMES)


def known(ring: Ring, count: int) -> list[float | None]:
    return [None if math.isnan(value) else value for value in ring.last("clients", count)]


def test_a_ring_has_the_means_of_its_steps_and_no_more_of_them_than_fit() -> None:
    ring = Ring(15, 4)
    size_bytes = ring.size_bytes
    for second in range(300):
        ring.add(NOW_S // 15 * 15 + second, row(second))
    assert known(ring, 4) == [232.0, 247.0, 262.0, 277.0]  # the last one is not whole yet
    assert known(ring, 2) == [262.0, 277.0]
    assert ring.ends_s == NOW_S // 15 * 15 + 270
    assert ring.size_bytes == size_bytes == len(NAMES) * 4 * 4


def test_steps_without_a_sample_have_no_value() -> None:
    ring = Ring(1, 5)
    for at_s in (0, 1, 4, 5):
        ring.add(NOW_S + at_s, row(at_s))
    assert known(ring, 5) == [0.0, 1.0, None, None, 4.0]
    for at_s in (1000, 1001):
        ring.add(NOW_S + at_s, row(7))
    assert known(ring, 5) == [None, None, None, None, 7.0]


def test_a_clock_that_is_set_back_a_little_forgets_nothing() -> None:
    ring = Ring(1, 5)
    for at_s in (0, 1, 2, -30, 2.5, 3):
        ring.add(NOW_S + at_s, row(1))
    assert known(ring, 5) == [None, None, 1.0, 1.0, 1.0]
    for at_s in (-1000, -999, -998):
        ring.add(NOW_S + at_s, row(2))
    assert known(ring, 5) == [None, None, None, 2.0, 2.0]


class Workers:
    """A backend whose workers say what a test puts into them; one without numbers is silent."""

    def __init__(self) -> None:
        self.numbers: dict[int, list[float] | None] = {0: [0.0] * len(SERIES), 1: [0.0] * len(SERIES)}

    def workers(self) -> list[int]:
        return list(self.numbers)

    def describe(self) -> dict[str, Any]:
        return {"ready": True}

    async def ask(self, worker: int, query: str, arguments: dict[str, Any]) -> dict[str, Any]:
        found = self.numbers[worker]
        if found is None:
            await trio.sleep_forever()
        assert found is not None
        return {"numbers": list(found)}


async def test_rates_are_of_a_second_whatever_a_worker_does(autojump_clock: trio.testing.MockClock) -> None:
    backend = Workers()
    overview = Overview(backend)  # type: ignore[arg-type]
    messages = AT["messages_in_qos0"] - 1

    def counted(worker: int, count: float) -> None:
        numbers = backend.numbers[worker] or [0.0] * len(SERIES)
        numbers[messages] = count
        numbers[AT["clients"] - 1] = 3
        numbers[AT["retained"] - 1] = 9
        backend.numbers[worker] = numbers

    async with trio.open_nursery() as nursery:
        nursery.start_soon(overview.run)
        rows = overview.follow()
        counted(0, 100)
        counted(1, 50)
        first = await anext(rows)
        assert (first["event"], first["messages_in_qos0"]) == ("overview", 0)  # before which nothing is known
        assert (first["clients"], first["retained"], first["workers"]) == (6, 9, 2)
        counted(0, 110)
        second = await anext(rows)
        assert second["event"] == "change"
        assert second["messages_in_qos0"] == pytest.approx(10)
        assert "clients" not in second
        counted(1, 4)  # another process has taken its place
        assert (await anext(rows))["messages_in_qos0"] == pytest.approx(4)
        backend.numbers[1] = None
        silent = await anext(rows)
        assert (silent["workers"], silent["clients"]) == (1, 3)
        counted(1, 24)
        backend.numbers[2] = [1.0]  # of another version
        after = await anext(rows)
        assert after["workers"] == 2
        assert 8 < after["messages_in_qos0"] < 12  # of two seconds
        numbers = backend.numbers[0] or []
        numbers[AT["clients"] - 1] = 1
        await trio.sleep(5)
        late = await anext(rows)  # what came meanwhile is not lost
        assert (late["event"], late["clients"]) == ("change", 4)
        await rows.aclose()  # type: ignore[attr-defined]
        nursery.cancel_scope.cancel()


async def test_the_past_of_all_series_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    overview = Overview(Workers())  # type: ignore[arg-type]
    assert sum(ring.size_bytes for ring in overview.rings.values()) == DAY_BYTES < 2_000_000
    past = msgspec.json.decode(await overview.history(NAMES, 15, None))
    assert {len(values) for values in past["series"].values()} == {COARSE_COUNT}
    assert set(past["series"]["clients"]) == {None}
    past = msgspec.json.decode(await overview.history(["clients"], 15, 31))
    assert len(past["series"]["clients"]) == 3
