"""What several workers say of what happened to messages, put together; without anything that only a worker needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.admin.pagination import Row

LAST_DEFAULT: Final = 10
UNDER_WAY: Final = ("waits_for_worker", "on_its_way")
PASSED: Final = ("worker", "link", "filters", "would_be", "queued", "queued_bytes", "in_flight")


def merged_why(answer: Row, others: dict[int, Row], last: int) -> Row:
    """Return what the worker of a client says, with what the others say of messages that were published with them.

    A message that came to the client's worker is told of once, as that one has it.

    Args:
        answer: explain() of the client's worker.
        others: explain_passing() by worker, of those that answered.
        last: so many messages are told of, the newest.
    """
    arrived = {(row["worker"], row["record_there"]) for row in answer["messages"] if "record_there" in row}
    rows = list(answer["messages"])
    # What it has before these was left out, so nobody knows whether anything older had come.
    since = rows[0]["time"] if len(rows) == last else ""
    for worker, told in others.items():
        for row in told["messages"]:
            if (worker, row["owed_as"]) in arrived or (row["time"] < since and row["fate"] not in UNDER_WAY):
                continue
            rows.append({**{name: value for name, value in row.items() if name != "owed_as"}, "worker": worker})
    rows.sort(key=lambda row: str(row["time"]))
    return {
        **answer, "messages": rows[-last:],
        "unlogged": [*({**row, "worker": answer["worker"]} for row in answer["unlogged"]),
                     *({**row, "worker": worker} for worker, told in others.items() for row in told["unlogged"])],
        "passed_on_by": [{name: told[name] for name in PASSED} for told in others.values() if told["link"] is not None],
    }  # fmt: skip
