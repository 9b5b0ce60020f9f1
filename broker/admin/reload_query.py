"""A reload: what one worker answers, and how the answers of several become one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from broker.admin.listener_query import listeners_of, merged_listeners, merged_members
from broker.admin.pagination import QueryError, Row
from broker.config.loader import Config

if TYPE_CHECKING:
    from broker.admin.worker_view import WorkerView

IN_FORCE_S: Final = 15.0  # that a reload waits for its rights: the log may take nothing now


async def reload_files(queries: WorkerView, arguments: Row) -> Row:
    """Read the files of listeners, authenticators and authorizers again; what they say is in force then.

    With `config`, settings, these too: all of it, or nothing.
    """
    worker = queries.worker
    reload = worker.reload
    given = arguments.get("config")
    await reload.reload(None if given is None else lambda: partial(worker.change, msgspec.convert(given, Config)))
    with trio.move_on_after(IN_FORCE_S) as waited:
        if reload.authorizers is not None:
            await worker.rights_in_force()
    return {
        "error_text": reload.error,
        "in_force": not waited.cancelled_caught,
        "listeners": listeners_of(worker),
        "authenticators": [one.describe() for one in reload.authenticators],
        "authorizers": [] if reload.authorizers is None else reload.authorizers.describe(),
        "rules": reload.rules_changed,
        "users": reload.users_changed,
    }


def merged_reload(answers: Mapping[int, Row | QueryError]) -> Row:
    """Return what all workers answer, as one. Raises QueryError: one has not answered, or could not use a file."""
    _raise_if_not_reloaded(answers)
    answered = [answer for answer in answers.values() if not isinstance(answer, QueryError)]
    rows = merged_listeners(answer["listeners"] for answer in answered)
    return {
        "workers": len(answers),
        "listeners": [row for row in rows if row["handshakes"] is not None],
        "authenticators": merged_members((answer["authenticators"] for answer in answered), "authenticator"),
        "authorizers": merged_members((answer["authorizers"] for answer in answered), "authorizer"),
        # All have read the same files; one that saw the change before the others has it behind it.
        "rules": max((answer["rules"] for answer in answered), key=_changes),
        "users": max((answer["users"] for answer in answered), key=_changes),
        "in_force": all(answer["in_force"] for answer in answered),
    }


def _raise_if_not_reloaded(answers: Mapping[int, Row | QueryError]) -> None:
    """Raise QueryError if a worker has not answered, or could not use a file: which one, and who goes on as before."""
    wrong: dict[int, str] = {}
    for worker, answer in answers.items():
        if isinstance(answer, QueryError):
            raise answer
        if answer["error_text"] is not None:
            wrong[worker] = answer["error_text"]
    if not wrong:
        return
    stays = "Nothing has changed: what was read before stays in use."
    if len(wrong) < len(answers):  # the file was written between the looks of two workers
        stays = f"What was read before stays in use at worker {', '.join(map(str, wrong))}, and not at the others."
    raise QueryError(422, "not_reloaded", f"{next(iter(wrong.values()))} {stays}")


def _changes(change: Row | None) -> int:
    """Return how many rules or users a reload has changed."""
    return -1 if change is None else change["come"] + change["gone"] + change.get("altered", 0)
