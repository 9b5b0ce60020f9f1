"""What is said of one event of the log."""

from __future__ import annotations

from typing import NamedTuple


class Event(NamedTuple):
    """One event: its name, its level, the logger it comes from, its fields, what it means, and what to do."""

    name: str
    level: str
    logger: str
    fields: str
    text: str
    advice: str = ""
