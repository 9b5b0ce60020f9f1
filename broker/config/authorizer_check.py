"""What [[authorizer]] tables may say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from broker.config.authenticator_check import url_problems
from broker.config.authorizer import AUTHORIZER_TYPES, Authorizer, HttpRightsTable
from broker.config.setting import Problem
from broker.config.typed_tables import TypedTables

AUTHORIZERS: Final = TypedTables("authorizer", AUTHORIZER_TYPES, ("urls",))


def authorizer_problems(tables: Iterable[Authorizer], problem: Callable[[str, Any, str], Problem]) -> Iterator[Problem]:
    """Yield what is wrong with authorizers whose values are each in their range.

    Args:
        problem: makes one of a key, what was found and what was expected.
    """
    tables = tuple(tables)
    yield from AUTHORIZERS.repeated_names(tables, problem)
    for number, table in enumerate(tables, 1):
        if isinstance(table, HttpRightsTable):
            yield from url_problems(f"authorizer {number}.urls", table.urls, problem)
