"""Bans, as an administrator sets, ends and lists them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, get_args

from msgspec import ValidationError, convert, to_builtins

from broker.admin.pagination import QueryError, Row, page
from broker.auth.bans import Ban, Kind, ban_of

if TYPE_CHECKING:
    from broker.admin.worker_view import WorkerView

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
REASON_CHARACTERS_MAX: Final = 1000
FOR_S_MAX: Final = 10 * 366 * 86_400


def asked_for(arguments: Row) -> Ban:
    """Return the ban that a request describes, which begins now. Raises QueryError."""
    kind, for_s, reason = arguments["kind"], arguments.get("for_s"), arguments.get("reason", "")
    if kind not in KINDS:
        raise QueryError(400, "bad_argument", f"kind is one of {', '.join(KINDS)}, not {kind!r}.")
    if for_s is not None and not 1 <= for_s <= FOR_S_MAX:
        raise QueryError(400, "bad_argument", f"for_s is 1 to {FOR_S_MAX:,} seconds, not {for_s:,}.")
    if len(reason) > REASON_CHARACTERS_MAX:
        raise QueryError(400, "bad_argument", f"reason has {REASON_CHARACTERS_MAX:,} characters at most.")
    try:
        return ban_of(kind, arguments["name"], reason, for_s)
    except ValueError as error:
        raise QueryError(400, "bad_argument", f"name: {error}.") from None


async def ban(queries: WorkerView, arguments: Row) -> Row:
    """Have a ban in force on this worker, and (`keep`) kept by all of them and the log."""
    try:
        found = convert(arguments["ban"], Ban)
    except ValidationError as error:
        raise QueryError(400, "bad_argument", f"ban: {error}.") from None
    bans = queries.worker.bans
    if arguments["keep"]:
        await bans.set(found)
    else:
        bans.apply(found, found.key)
    return ban_row(found)


async def unban(queries: WorkerView, arguments: Row) -> Row:
    """End a ban on this worker, and (`keep`) on all of them and in the log."""
    found = convert(arguments["ban"], Ban)
    bans = queries.worker.bans
    if not arguments["keep"]:
        bans.apply(None, found.key)
        return {}
    ended = await bans.end(found.kind, found.name)
    if ended is None:
        raise QueryError(404, "unknown_ban", f"There is no ban of the {found.kind} {found.name!r}.")
    return ban_row(ended)


async def describe_bans(queries: WorkerView, arguments: Row) -> Row:
    """Return one page of the bans that are in force."""

    async def all_of_them() -> list[Ban]:
        return list(queries.worker.bans)

    return await page(queries.listings, "bans", arguments, all_of_them, ban_row)


def ban_row(found: Ban) -> Row:
    """Return what is shown of a ban."""
    row: Row = to_builtins(found)
    row["ends_in_s"] = None if found.until_s is None else max(0.0, found.until_s - time.time())
    return row
