"""What links bring of the time before a subscription, and whom it is not for."""

from __future__ import annotations

from typing import Any

from router.retained_fences import Fences


class Tree:
    """Subscriptions of receivers, who are names."""

    def __init__(self, **filters: list[bytes]) -> None:
        self.filters = filters

    def subscriptions_of(self, receiver: str) -> list[tuple[bytes, int, int]]:
        return [(topic_filter, 0, 0) for topic_filter in self.filters[receiver]]


def fences(**passed: int) -> Any:
    made: Any = Fences()
    made.passed = {int(worker[1:]): record for worker, record in passed.items()}
    return made


def test_what_a_link_has_brought_already_needs_no_fence() -> None:
    found = fences(w1=7)
    found.put("a", b"t", {1: 7, 5: 100})         # nothing comes from 5: it has no link
    assert len(found) == 0
    found.put("a", b"t", {1: 8})
    assert found.behind(1, 8, b"t", Tree(a=[b"t"])) == ["a"]
    assert found.behind(1, 9, b"t", Tree(a=[b"t"])) == []
    assert found.behind(2, 8, b"t", Tree(a=[b"t"])) == []
    found.brought(1, 7)
    assert len(found) == 1
    found.brought(1, 8)
    assert len(found) == 0


def test_who_wanted_it_before_by_any_subscription_gets_it() -> None:
    found = fences(w1=0)
    found.put("a", b"t", {1: 8})
    found.put("b", b"t", {1: 8})
    tree = Tree(a=[b"t", b"+", b"$share/g/t"], b=[b"t", b"u", b"$share/g/t"])
    assert found.behind(1, 3, b"t", tree) == ["b"]
    found.put("a", b"+", {1: 2})
    assert found.behind(1, 3, b"t", tree) == ["b"]
    assert found.behind(1, 2, b"t", tree) == ["a", "b"]
    found.take_down("a", b"t")
    found.forget("b")
    assert found.behind(1, 2, b"t", Tree(a=[b"+"])) == ["a"]


def test_numbers_that_a_worker_gives_anew_are_behind_no_fence() -> None:
    found = fences(w1=5)
    found.put("a", b"t", {1: 20})
    found.began(1, 10)
    assert found.behind(1, 11, b"t", Tree(a=[b"t"])) == []
    assert found.behind(1, 10, b"t", Tree(a=[b"t"])) == ["a"]
    found.brought(1, 10)
    assert len(found) == 0
