"""The soak's verdict: what is flat holds, what only grows does not."""

import random

from tests.tools.soak.loads import Seen
from tests.tools.soak.verdict import what_grew

WARM_S = 60


def samples(seconds: int = 600, **growth_per_sample: float) -> list[dict[str, int]]:
    """Samples that go up and down by chance, and up by what is asked for."""
    draw = random.Random(1)
    start = {"resident KiB": 40_000, "descriptors": 230, "clients/total": 240, "shoal/queued/messages": 1000}
    return [
        {
            "second": second,
            "shoal/errors/unraisable": 0,
            **{
                name: int(value * draw.uniform(0.97, 1.03) + growth_per_sample.get(name.replace("/", "_"), 0) * number)
                for name, value in start.items()
            },
        }
        for number, second in enumerate(range(0, seconds, 10))
    ]


def test_what_goes_up_and_down_holds() -> None:
    assert what_grew(samples(), WARM_S) == []


def test_what_only_grows_is_named() -> None:
    (found,) = what_grew(samples(clients_total=3), WARM_S)
    assert found.startswith("clients/total only grows")
    (found,) = what_grew(samples(descriptors=4), WARM_S)
    assert found.startswith("descriptors only grows")


def test_memory_that_grows_by_a_tenth_is_found() -> None:
    taken = samples()
    for number, sample in enumerate(taken):
        sample["resident KiB"] += 80 * number
    assert "resident memory grew" in what_grew(taken, WARM_S)[0]


def test_growth_before_it_is_warm_does_not_count() -> None:
    taken = samples()
    for sample in taken[:6]:
        sample["resident KiB"] = 20_000
    assert what_grew(taken, WARM_S) == []


def test_too_short_a_run_is_no_verdict() -> None:
    assert "too few" in what_grew(samples(100), WARM_S)[0]


def test_an_exception_that_could_not_be_raised_is_a_fault() -> None:
    taken = samples()
    taken[-1]["shoal/errors/unraisable"] = 1
    assert what_grew(taken, WARM_S) == ["1 exceptions could not be raised"]


def test_a_number_that_is_missing_is_seen_however_the_others_come() -> None:
    seen = Seen()
    for number in (1, 3, 2, 2, 6, 5):
        seen.add(number)
    assert (seen.low, seen.above, seen.repeated) == (3, {5, 6}, 1)
