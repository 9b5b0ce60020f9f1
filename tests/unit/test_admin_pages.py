"""Listings of several workers, some of which give no answer."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

import broker.admin.api
from broker.admin.api import Admin
from broker.admin.http_server import REQUEST_S
from broker.admin.pagination import QueryError

Row = dict[str, Any]


class Workers:
    """A backend whose workers have two clients each, one a page; some are silent, away, or know nobody."""

    def __init__(
        self, count: int, silent: tuple[int, ...] = (), away: tuple[int, ...] = (), ignorant: tuple[int, ...] = ()
    ) -> None:
        self.count, self.silent, self.away, self.ignorant = count, silent, away, ignorant
        self.asked: list[int] = []
        self.publishers: dict[int, str] = {}  # worker -> who has a session there

    def workers(self) -> list[int]:
        return [worker for worker in range(self.count) if worker not in self.away]

    def home_of(self, client: str) -> int:
        return 0

    def describe(self) -> Row:
        return {"ready": not self.away, "workers_wanted": self.count}

    async def ask(self, worker: int, query: str, arguments: Row) -> Row:
        self.asked.append(worker)
        if worker in self.silent:
            await trio.sleep_forever()
        if worker in self.ignorant:
            raise QueryError(404, "unknown_client", "There is no session of 'x'.")
        if query == "why_passed":
            return {"messages": [], "unlogged": [], "link": None}
        if query in ("client", "kick", "why") and self.publishers.get(worker) != arguments["client"]:
            raise QueryError(404, "unknown_client", "There is no session of 'x'.")
        if query in ("client", "kick", "why"):
            return {"worker": worker, "messages": [], "unlogged": []}
        if query == "route_head":
            return {
                "publisher": None,
                "filters": [{"topic_filter": "#", "subscribers": 2}],
                "groups": [],
                "archived": False,
            }
        second = arguments.get("cursor") == "2"
        return {"rows": [{"client": f"{worker}-{2 if second else 1}"}], "cursor": None if second else "2"}

    async def drain(self) -> Row:
        raise AssertionError("not asked")

    async def keep_house(self) -> None:
        raise AssertionError("not asked")


async def answered(backend: Workers, path: str) -> Row:
    answer = await Admin(backend).answer("GET", path, b"")
    assert isinstance(answer, tuple)
    return answer[1]


def listed(backend: Workers, path: str = "/clients", limit: int = 100) -> tuple[list[str], list[str], int]:
    """All of a listing: who is in it, what it says of workers without an answer, and how many pages it had."""
    names: list[str] = []
    missing: list[str] = []

    async def main() -> int:
        cursor, pages = "", 0
        while True:
            page = await answered(backend, f"{path}?limit={limit}{cursor}")
            pages += 1
            names.extend(row["client"] for row in page["rows"])
            missing.extend(row["text"] for row in page["unanswered"])
            if page["cursor"] is None:
                return pages
            cursor = f"&cursor={page['cursor']}"

    pages = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return names, missing, pages


SILENT = f"Worker 1 has not answered in {broker.admin.api.WORKER_S:.0f} s."
EVERYBODY = ["0-1", "0-2", "1-1", "1-2", "2-1", "2-2"]
OTHERS = ["0-1", "0-2", "2-1", "2-2"]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_a_listing_goes_through_all_workers(limit: int) -> None:
    assert listed(Workers(3), limit=limit)[:2] == (EVERYBODY, [])


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_a_silent_worker_is_named_once_and_the_others_are_listed(limit: int) -> None:
    backend = Workers(3, silent=(1,))
    names, missing, _ = listed(backend, limit=limit)
    assert (names, missing) == (OTHERS, [SILENT])
    assert backend.asked.count(1) == 1, "nobody waits for it twice"


def test_each_page_waits_for_one_silent_worker_at_most() -> None:
    names, missing, pages = listed(Workers(4, silent=(0, 1, 2)))
    assert (names, len(missing), pages) == (["3-1", "3-2"], 3, 4)


@pytest.mark.parametrize("path", ["/clients", "/sessions", "/subscriptions"])
def test_a_worker_that_is_away_is_not_asked_and_is_named(path: str) -> None:
    backend = Workers(3, away=(1,))
    assert listed(backend, path) == (OTHERS, ["Worker 1 does not serve clients now."], 1)
    assert 1 not in backend.asked


def test_any_worker_lists_what_is_retained() -> None:
    assert listed(Workers(3), "/retained") == (["0-1", "0-2"], [], 1)
    assert listed(Workers(3, away=(0,), silent=(1,)), "/retained", 1) == (["2-1", "2-2"], [], 2)
    with pytest.raises(QueryError, match="Worker 1 has not answered"):
        listed(Workers(2, away=(0,), silent=(1,)), "/retained")


def test_who_is_known_nowhere_is_an_error_unless_somebody_may_know_him() -> None:
    with pytest.raises(QueryError, match="no session of 'x'"):
        listed(Workers(2, ignorant=(0, 1)), "/subscriptions")
    assert listed(Workers(2, ignorant=(0,)), "/subscriptions")[:2] == (["1-1", "1-2"], [])
    assert listed(Workers(2, ignorant=(0,), silent=(1,)), "/subscriptions")[:2] == ([], [SILENT])


@pytest.mark.parametrize("publisher", ["", "&publisher=x"])
def test_whom_a_publish_reaches_is_told_after_one_wait_for_all_silent_workers(publisher: str) -> None:
    backend = Workers(4, silent=(1, 2))
    backend.publishers[3] = "x"

    async def main() -> None:
        began = trio.current_time()
        page = await answered(backend, f"/routes?topic=a{publisher}")
        assert trio.current_time() - began < 1.5 * broker.admin.api.WORKER_S
        assert [row["client"] for row in page["rows"]] == ["0-1", "0-2", "3-1", "3-2"]
        assert [missing["worker"] for missing in page["unanswered"]] == [1, 2]
        assert page["filters"] == [{"topic_filter": "#", "subscribers": 4}]
        assert page["cursor"] is None

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert (backend.asked.count(1), backend.asked.count(2)) == (1, 1)


@pytest.mark.parametrize(
    ("silent", "complaint"),
    [((1,), "Worker 1 has not answered"), ((), "no session of 'x'"), ((0, 1, 2), "Worker 0 has not answered")],
)
def test_a_publisher_may_be_at_a_worker_that_is_silent(silent: tuple[int, ...], complaint: str) -> None:
    async def main() -> None:
        with pytest.raises(QueryError, match=complaint):
            await answered(Workers(3, silent=silent), "/routes?topic=a&publisher=x")

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("cursor", ["3:", "x:1", "1", "1000000000000:"])
def test_a_cursor_of_no_worker_is_refused(cursor: str) -> None:
    async def main() -> None:
        with pytest.raises(QueryError, match="is no cursor that this listing gave"):
            await Admin(Workers(3)).answer("GET", f"/clients?cursor={cursor}", b"")

    trio.run(main)


@pytest.mark.parametrize("question", ["client", "kick", "why"])
def test_a_question_about_a_client_goes_to_its_home(question: str) -> None:
    backend = Workers(3, silent=(2,))
    backend.publishers[0] = "x"

    async def main() -> None:
        assert (await backend_answers(backend, question))["worker"] == 0
        assert backend.asked == [0] if question != "why" else [0, 1, 2]
        assert trio.current_time() <= broker.admin.api.WORKER_S

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("question", ["client", "kick", "why"])
def test_who_is_not_known_at_home_is_looked_for_everywhere_and_a_silent_worker_costs_one_wait(question: str) -> None:
    backend = Workers(4, silent=(2,))
    backend.publishers[1] = "x"

    async def main() -> None:
        assert (await backend_answers(backend, question))["worker"] == 1
        assert trio.current_time() <= broker.admin.api.WORKER_S + broker.admin.api.AGAIN_S < REQUEST_S
        backend.publishers.clear()
        with pytest.raises(QueryError, match="no session of 'x'"):
            await backend_answers(backend, question)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_home_that_is_silent_or_away_is_named() -> None:
    async def main() -> None:
        with pytest.raises(QueryError, match="Worker 0 has not answered") as caught:
            await backend_answers(Workers(2, silent=(0,)), "why")
        assert caught.value.status == 503
        assert trio.current_time() <= broker.admin.api.WORKER_S
        with pytest.raises(QueryError, match="Worker 0, where this client lives, does not serve"):
            await backend_answers(Workers(2, away=(0,)), "why")
        with pytest.raises(QueryError, match="No worker is ready"):
            await backend_answers(Workers(1, away=(0,)), "why")

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def backend_answers(backend: Workers, question: str) -> Row:
    path = {"client": "/clients/x", "kick": "/clients/x/kick", "why": "/clients/x/why?topic=a"}[question]
    answer = await Admin(backend).answer("POST" if question == "kick" else "GET", path, b"")
    assert isinstance(answer, tuple)
    return answer[1]
