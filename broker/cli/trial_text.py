"""What `shoal acl test` prints."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from broker.auth.acl import Grant
from broker.cli.cells import count
from broker.wire.rendering import text_of
from router.log.replay_position import format_time

if TYPE_CHECKING:
    from broker.storage.rights_trial import Key, Row, Trial

NAMED_MAX: Final = 5  # clients in one line
GRANTS: Final = {Grant.REFUSED: "refused", Grant.NARROWED: "narrowed"}


def in_order(trial: Trial) -> list[tuple[Key, Row]]:
    """Return what would have been refused, the most frequent first, then what would have been narrowed."""
    return sorted(trial.rows.items(), key=lambda pair: (pair[1].grant, -pair[1].count, pair[0].client, pair[0].name))


def trial_text(trial: Trial, limit: int) -> Iterator[str]:
    """Yield lines for people; of long lists the first so many."""
    rows = in_order(trial)
    refused = [row for _, row in rows if row.grant == Grant.REFUSED]
    narrowed = len(rows) - len(refused)
    yield (
        f"{count(trial.messages)} messages and {count(trial.subscriptions)} subscriptions judged: "
        f"{count(sum(row.count for row in refused))} would have been refused"
        + (f", {count(narrowed)} narrowed." if narrowed else ".")
    )
    yield from _some([_row(key, row) for key, row in rows], limit)
    unknown = trial.unknown_messages + trial.unknown_subscriptions
    if unknown:
        names = [text_of(client) for client in list(trial.unknown)[:NAMED_MAX]]
        named = ", ".join([*names, "..."] if len(trial.unknown) > NAMED_MAX else names)
        yield (
            f"Not judged, because the log does not say who the client was: {count(trial.unknown_messages)} messages, "
            f"{count(trial.unknown_subscriptions)} subscriptions ({named}). --connections FILE says it."
        )
    if trial.unread:
        yield f"Not judged, because there are too many: {count(trial.unread)} subscriptions."
    unused = list(trial.unused())
    if unused:
        yield f"{count(len(unused))} {'rule' if len(unused) == 1 else 'rules'} decided about nothing:"
        yield from _some([f"  {words}" for words in unused], limit)


def trial_json(trial: Trial, problems: list[str]) -> str:
    """Return everything as one JSON object."""
    return json.dumps(
        {
            "messages": trial.messages,
            "subscriptions": trial.subscriptions,
            "rows": [_told(key, row) for key, row in in_order(trial)],
            "not_judged": {
                "messages": trial.unknown_messages,
                "subscriptions": trial.unknown_subscriptions,
                "clients": {text_of(client): number for client, number in trial.unknown.items()},
                "of_the_broker": trial.of_the_broker,
                "too_many": trial.unread,
            },
            "of_superusers": trial.of_superusers,
            "unused": list(trial.unused()),
            "problems": problems,
        },
        ensure_ascii=False,
    )


def _told(key: Key, row: Row) -> dict[str, Any]:
    return {
        "verdict": GRANTS[row.grant],
        "client": text_of(key.client),
        "user": key.user,
        "action": key.action,
        "topic": text_of(key.name),
        "count": row.count,
        "last": format_time(row.last_us),
        "decided_by": row.by,
    }


def _row(key: Key, row: Row) -> str:
    if not key.name:
        return f"  {GRANTS[row.grant]} {key.action}, {count(row.count)} times: others"
    who = f"{text_of(key.client)} ({'no user name' if key.user is None else key.user})"
    times = f", {count(row.count)} times" if row.count > 1 else ""
    return f"  {GRANTS[row.grant]}: {who} {key.action} {text_of(key.name)}{times}: {row.by}"


def _some(lines: Iterable[str], limit: int) -> Iterator[str]:
    found = list(lines)
    yield from found[:limit]
    if len(found) > limit:
        yield f"  ... and {count(len(found) - limit)} more; --limit shows more, --json all"
