"""Long listings in pages: who is in one is settled when it begins, and what is said of each when its page is made."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

LISTINGS_MAX = 32  # open at once; then the one that was used longest ago ends
UNUSED_S = 60.0  # after which a listing ends
LIMIT_DEFAULT = 100
LIMIT_MAX = 1000
COST_PER_STEP = 2000  # between two checkpoints: some 2 to 3 ms
COST_OF_ROW = 20  # looking at an item costs 1

Row = dict[str, Any]


class QueryError(Exception):
    """A query that is refused: the HTTP status that says so, a reason in one word, and a sentence.

    Args:
        headers: of the answer, beside those that every answer has.
    """

    def __init__(self, status: int, reason: str, text: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        self.text = text
        self.headers = headers

    def answer(self) -> Row:
        """Return it as an answer travels."""
        return {"error": {"status": self.status, "reason": self.reason, "text": self.text}}


@dataclass(slots=True)
class Listing:
    """One listing under way; `head` is what its first page said beside its rows."""

    kind: str
    items: Sequence[Any]
    used_s: float
    head: Row = field(default_factory=dict)


class Listings:
    """The open listings of one worker. A cursor is `number.offset` or `number.offset.inner`; no other is accepted."""

    def __init__(self) -> None:
        self._open: dict[int, Listing] = {}
        self._last_number = 0

    def begin(self, kind: str, items: Sequence[Any], head: Row | None = None) -> int:
        """Keep what a listing goes through; returns its number."""
        now_s = time.monotonic()
        for number, listing in list(self._open.items()):
            if now_s - listing.used_s > UNUSED_S:
                del self._open[number]
        if len(self._open) >= LISTINGS_MAX:
            del self._open[min(self._open, key=lambda number: self._open[number].used_s)]
        self._last_number += 1
        self._open[self._last_number] = Listing(kind, items, now_s, head or {})
        return self._last_number

    def find(self, kind: str, cursor: str) -> tuple[int, Listing, list[int]]:
        """Return the listing of a cursor, its number and where to go on. Raises QueryError."""
        try:
            number, *places = map(int, cursor.split("."))
        except ValueError:
            raise QueryError(400, "bad_cursor", f"{cursor!r} is no cursor that this listing gave.") from None
        listing = self._open.get(number)
        if not 1 <= len(places) <= 2 or min(places) < 0 or (listing is not None and listing.kind != kind):
            raise QueryError(400, "bad_cursor", f"{cursor!r} is no cursor that this listing gave.")
        if listing is None:
            raise QueryError(409, "listing_ended", "This listing has ended: begin again without the cursor.")
        listing.used_s = time.monotonic()
        return number, listing, places

    def end(self, number: int) -> None:
        """Forget a listing whose last page has been made."""
        self._open.pop(number, None)


def limit_of(arguments: Row) -> int:
    """Return how many rows a page may have. Raises QueryError."""
    limit = arguments.get("limit", LIMIT_DEFAULT)
    if not 1 <= limit <= LIMIT_MAX:
        raise QueryError(400, "bad_argument", f"limit is 1 to {LIMIT_MAX}, not {limit}.")
    return int(limit)


async def page(
    listings: Listings,
    kind: str,
    arguments: Row,
    items: Callable[[], Awaitable[Sequence[Any]]],
    describe: Callable[[Any], Row | None],
    row_cost: int = COST_OF_ROW,
    head: Callable[[], Row] | None = None,
) -> Row:
    """Return one page: `rows`, and `cursor`, None at the end; the first one also has what `head` returns.

    Args:
        items: called for the first page; what it returns is gone through, whatever comes and goes meanwhile.
        describe: returns an item's row, None for one that is not wanted or not there any more.
        row_cost: what a row costs, where passing over an item costs 1.
    """
    limit = limit_of(arguments)
    cursor = arguments.get("cursor")
    answer: Row = {}
    if cursor is None:
        answer = head() if head is not None else {}
        number, position = listings.begin(kind, await items()), 0
        listing = listings.find(kind, f"{number}.0")[1]
        await trio.lowlevel.checkpoint()
    else:
        number, listing, places = listings.find(kind, cursor)
        position = places[0]
    rows: list[Row] = []
    cost = 0
    while position < len(listing.items) and len(rows) < limit:
        row = describe(listing.items[position])
        position += 1
        cost += 1
        if row is not None:
            rows.append(row)
            cost += row_cost
        if cost >= COST_PER_STEP:
            cost = 0
            await trio.lowlevel.checkpoint()
    if position >= len(listing.items):
        listings.end(number)
        return {**answer, "rows": rows, "cursor": None}
    return {**answer, "rows": rows, "cursor": f"{number}.{position}"}


def place_of(cursor: str | None, workers: int) -> tuple[int, str]:
    """Return which worker is to be asked next, and that worker's cursor. Raises QueryError."""
    if cursor is None:
        return 0, ""
    number, colon, place = cursor.partition(":")
    if not colon or not number.isascii() or not number.isdigit() or len(number) > 6 or int(number) >= workers:
        raise QueryError(400, "bad_cursor", f"{cursor!r} is no cursor that this listing gave.")
    return int(number), place
