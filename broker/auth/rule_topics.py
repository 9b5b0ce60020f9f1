"""Topic filters of rules as they are written; ${clientid} and ${username} stand for what the client has."""

from __future__ import annotations

import re
from typing import Final

from broker.auth.rule import CLIENT_IDENTIFIER, PERCENT, USER_NAME
from router.matching.topic_names import check_topic_filter

LEVELS_MAX: Final = 201
PLACEHOLDERS: Final = {"${clientid}": CLIENT_IDENTIFIER, "${username}": USER_NAME}


def topic_filter_of(text: str) -> bytes:
    """Return a rule's topic filter, with the marks of what the client has in it. Raises ValueError: what is wrong."""
    if re.search(r"\$\{(?!clientid\}|username\})", text) is not None:
        raise ValueError("expected no placeholders but ${clientid} and ${username}")
    if PERCENT.intersection(text.split("/")):
        raise ValueError("expected ${clientid} and ${username}, not %c and %u, as in ACL files")
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise ValueError("expected UTF-8") from None
    wrong = check_topic_filter(encoded)
    if wrong is not None:
        raise ValueError(wrong)
    if encoded.count(b"/") >= LEVELS_MAX:
        raise ValueError(f"a topic filter has up to {LEVELS_MAX} levels here")
    for written, mark in PLACEHOLDERS.items():
        encoded = encoded.replace(written.encode(), mark)
    return encoded


def written_filter(topic_filter: bytes) -> str:
    """Return the topic filter of a rule as it was written."""
    for written, mark in PLACEHOLDERS.items():
        topic_filter = topic_filter.replace(mark, written.encode())
    return topic_filter.decode()
