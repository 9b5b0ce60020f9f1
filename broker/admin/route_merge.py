"""What several workers say of where a publish would go, put together; without anything that only a worker needs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.admin.pagination import Row

MEMBERS_SHOWN_MAX: Final = 100


def merged_heads(heads: dict[int, Row]) -> Row:
    """Return what several workers say of filters and groups as one broker's: worker -> its describe_head().

    Whose turn it is in a shared subscription is said as for a publisher on its own worker, or else on the first. Where
    no member of the worker that is picked may read the topic, it is that of the next worker that has one.
    """
    first = next((head for head in heads.values() if head["publisher"] is not None), next(iter(heads.values())))
    filters: Counter[str] = Counter()
    groups: dict[tuple[str, str], Row] = {}
    here: dict[tuple[str, str], dict[str, Row]] = {}
    for head in [first, *(head for head in heads.values() if head is not first)]:
        for row in head["filters"]:
            filters[row["topic_filter"]] += row["subscribers"]
        for row in head["groups"]:
            name = row["group"], row["topic_filter"]
            known = groups.setdefault(name, {**row, "members": 0, "shown": []})
            here.setdefault(name, {})[str(row["worker"])] = row["here"]
            known["members"] += row["members"]
            known["shown"] += row["shown"][: MEMBERS_SHOWN_MAX - len(known["shown"])]
    for name, row in groups.items():
        del row["here"]
        # The publisher's worker picks a worker, and that one picks the member, or sends the message on.
        worker = "" if row["picked"] is None else row["picked"].get("peer", "").rpartition("/")[2]
        if worker in here[name]:
            picks = [here[name].pop(worker), *here[name].values()]
            row |= next((pick for pick in picks if pick["picked"] is not None), picks[0])
    return {
        **first,
        "filters": [
            {"topic_filter": topic_filter, "subscribers": count} for topic_filter, count in filters.items() if count
        ],
        "groups": [row for row in groups.values() if row["members"] or row["picked"]],
        "archived": any(head["archived"] for head in heads.values()),
    }
