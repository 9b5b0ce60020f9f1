"""The options of the source, checked where they are given."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from router.log.record_scan import TIME_MAX, TIME_MIN
from router.log.replay_position import parse_time
from router.matching.topic_names import SHARE_PREFIX, check_topic_filter

if TYPE_CHECKING:
    from collections.abc import Mapping

MESSAGES_PER_TRIGGER: Final = 1_000_000
ROWS_PER_BATCH: Final = 65_536
TABLES: Final = ("messages", "events", "deliveries")
BYTES_PER_BATCH: Final = 16_777_216
_BOOLEANS: Final = {"true": True, "false": False}
_KNOWN: Final = {
    "path", "topicfilter", "since", "until", "workers", "failondataloss", "maxmessagespertrigger", "startingposition",
    "url", "username", "password", "clientidentifier", "behind", "upto", "table",
}  # fmt: skip

# What a catalog says of a table, beside its options: CREATE TABLE ... USING shoal.
_OF_CATALOGS: Final = {"provider", "owner", "comment", "collation", "external", "is_managed_location", "location"}
_OF_FOLDERS: Final = {"until", "workers", "startingposition", "behind", "upto", "table"}
_OF_BROKERS: Final = {"username", "password", "clientidentifier"}
_OF_MESSAGES: Final = {"topicfilter", "since", "until", "behind", "upto", "maxmessagespertrigger", "startingposition"}


@dataclass(frozen=True, slots=True)
class Options:
    """What a query wants of a data folder.

    Args:
        path: the folder; empty if a broker is to be asked over the network.
        topic_filter: only messages that it matches; None: all.
        since_us, until_us: only messages accepted at this time or later, and before that time; µs since 1970.
        workers: only the logs of these; None: all.
        fail_on_loss: an error where messages are missing, instead of going on behind them.
        messages_max: in one micro-batch of a stream.
        latest: a stream that begins, begins at the end of the log.
        behind: only what comes behind these places, {worker: {incarnation, number, segment, position}}.
        upto: of a table, only what comes up to these places; None: to the end.
        table: one of TABLES.
        url: of a broker, tcp://HOST:PORT; empty if a folder is read.
    """

    path: str
    topic_filter: bytes | None = None
    since_us: int = TIME_MIN
    until_us: int = TIME_MAX
    workers: frozenset[int] | None = None
    fail_on_loss: bool = True
    messages_max: int = MESSAGES_PER_TRIGGER
    latest: bool = False
    behind: dict[str, dict[str, int]] = field(default_factory=dict)
    upto: dict[str, dict[str, int]] | None = None
    table: str = "messages"
    url: str = ""
    username: str | None = None
    password: str | None = None
    client_identifier: str = ""


def parse_options(given: Mapping[str, str]) -> Options:
    """Return the options of a reader. Raises ValueError with one sentence.

    Args:
        given: by name; capital letters do not matter.
    """
    options = plain(given)
    if options.get("path", "").startswith("file:/"):
        options["path"] = "/" + options["path"].removeprefix("file:").lstrip("/")
    unknown = sorted(set(options) - _KNOWN)
    if unknown:
        raise ValueError(
            f"there is no option {unknown[0]!r} of the source shoal; there are {', '.join(sorted(_KNOWN))}"
        )
    path, url = options.get("path", ""), options.get("url", "")
    if bool(path) == bool(url):
        raise ValueError("name one of the two: a data folder, with load(FOLDER), or a broker, with the option url")
    elsewhere = sorted((_OF_FOLDERS if url else _OF_BROKERS) & set(options))
    if elsewhere:
        raise ValueError(f"the option {elsewhere[0]!r} is for {'a data folder' if url else 'a broker'} only")
    now_us = time.time_ns() // 1000
    starting = options.get("startingposition", "earliest")
    if starting not in ("earliest", "latest"):
        raise ValueError(f"startingPosition is earliest or latest, and not {starting!r}")
    table = options.get("table", "messages")
    if table not in TABLES:
        raise ValueError(f"table is one of {', '.join(TABLES)}, and not {table!r}")
    without = sorted(_OF_MESSAGES & set(options)) if table != "messages" else []
    if without:
        raise ValueError(f"the option {without[0]!r} is for the table messages only, and not for {table}")
    return Options(
        path=path,
        topic_filter=_topic_filter(options["topicfilter"]) if "topicfilter" in options else None,
        since_us=_time("since", options, now_us, TIME_MIN),
        until_us=_time("until", options, now_us, TIME_MAX),
        workers=_workers(options["workers"]) if "workers" in options else None,
        fail_on_loss=_boolean("failOnDataLoss", options.get("failondataloss", "true")),
        messages_max=_positive(
            "maxMessagesPerTrigger", options.get("maxmessagespertrigger", str(MESSAGES_PER_TRIGGER))
        ),
        latest=starting == "latest",
        behind=json.loads(options.get("behind", "{}")),
        upto=json.loads(options["upto"]) if "upto" in options else None,
        table=table,
        url=url,
        username=options.get("username"),
        password=options.get("password"),
        client_identifier=options.get("clientidentifier", ""),
    )


def plain(given: Mapping[str, str]) -> dict[str, str]:
    """Return options by their names in small letters, without what a catalog puts to them."""
    names = {name: name.lower().removeprefix("option.") for name in given}
    return {name: given[each] for each, name in names.items() if name not in _OF_CATALOGS}


def _topic_filter(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    wrong = check_topic_filter(encoded)
    if encoded.startswith(SHARE_PREFIX):
        wrong = "a shared subscription has no place here: leave out $share and the name behind it"
    if wrong is not None:
        raise ValueError(f"topicFilter {text!r}: {wrong}")
    return encoded


def _time(name: str, options: Mapping[str, str], now_us: int, otherwise: int) -> int:
    if name not in options:
        return otherwise
    try:
        return parse_time(options[name], now_us)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _workers(text: str) -> frozenset[int]:
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"workers are numbers with commas between them, and not {text!r}") from None


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError(f"{name} is true or false, and not {text!r}")
    return _BOOLEANS[text.lower()]


def _positive(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"{name} is a number above 0, and not {text!r}")
    return int(text)
