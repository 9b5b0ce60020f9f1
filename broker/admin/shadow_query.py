"""Rules on trial: what one worker says of them, and how the answers of several become one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from broker.admin.pagination import QueryError, Row

if TYPE_CHECKING:
    from broker.admin.worker_view import WorkerView


async def describe_shadow(queries: WorkerView, arguments: Row) -> Row:
    """Return how rules on trial have differed from those that count. Raises QueryError: there are none."""
    shadow = queries.worker.reload.shadow
    if shadow is None:
        raise QueryError(404, "no_shadow", "No [[authorizer]] has a file on trial: shadow = FILE sets one.")
    found: Row = shadow.describe()
    return found


def merged_shadows(answers: Mapping[int, Row | QueryError]) -> Row:
    """Return what all workers answer, as one: sums, the most frequent first. Raises QueryError."""
    merged: Row = {"for_s": 0.0, "refused": 0, "allowed": 0, "beyond": 0}
    rows: dict[tuple[str, ...], Row] = {}
    rules: dict[tuple[str, ...], Row] = {}
    for answer in answers.values():
        if isinstance(answer, QueryError):
            raise answer
        merged["for_s"] = max(merged["for_s"], answer["for_s"])
        for name in ("refused", "allowed", "beyond"):
            merged[name] += answer[name]
        for into, found, key in (
            (rows, answer["rows"], ("verdict", "user", "action", "topic")),
            (rules, answer["rules"], ("verdict", "decided_by")),
        ):
            for row in found:
                known = into.setdefault(tuple(row[name] for name in key), row)
                if known is not row:
                    known["count"] += row["count"]
    return {**merged, "rules": _by_count(rules), "rows": _by_count(rows)}


def _by_count(rows: Mapping[tuple[str, ...], Row]) -> list[Row]:
    return sorted(rows.values(), key=lambda row: -row["count"])
