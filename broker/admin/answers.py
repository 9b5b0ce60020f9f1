"""What /api/v1 answers, as types: the OpenAPI document is made of them, and tests hold the answers against them.

A field that is UNSET is left out where it says nothing. Times end in _s (seconds), sizes have bytes in their names.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType


class Problem(Struct, kw_only=True):
    """What was wrong with a request (RFC 9457). `reason` is one word, which stays the same over versions."""

    type: str
    title: str
    status: int
    detail: str
    reason: str


class Unanswered(Struct, kw_only=True):
    """A worker that gave no answer, so what it knows is missing from the page."""

    worker: int
    text: str


class Page(Struct, kw_only=True):
    """One page of a listing. `cursor` asks for the next one; null: there is none."""

    cursor: str | None
    unanswered: list[Unanswered]


class Status(Struct, kw_only=True):
    """The broker as a whole."""

    version: str
    pid: int
    ready: bool
    draining: bool
    workers: int
    workers_wanted: int
    data_folder: str
    restarts: int | UnsetType = UNSET
    uptime_s: float
    listening: list[str]
    log_level: str | None
    durability: str | None
    troubles: list[str]
    clients: int
    sessions: int
    subscriptions: int
    queued: int
    messages_in: int
    messages_out: int
    dropped: int
    memory_bytes: int
    retained: int


class Rows(Struct, kw_only=True):
    """Rows of numbers, one for each worker or link; `error` in place of them where one gives no answer."""

    rows: list[dict[str, Any]]


class Client(Struct, kw_only=True):
    """A client that is connected."""

    client: str
    worker: int
    version: int | None
    address: str | None
    connected_s: float
    subscriptions: int
    queued: int
    in_flight: int
    output_bytes: int
    in_process: bool
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    messages_dropped: int
    behind_bytes: int | UnsetType = UNSET


class Clients(Page, kw_only=True):
    """Clients that are connected."""

    rows: list[Client]


class Slowest(Struct, kw_only=True):
    """The clients with the most bytes that are unsent or queued, the furthest behind first."""

    rows: list[Client]


class Session(Struct, kw_only=True):
    """A session, whose client is connected or not."""

    client: str
    worker: int
    connected: bool
    session_expiry_interval_s: int
    mount_point: str | None
    expires_in_s: float | None
    subscriptions: int
    queued: int
    queued_bytes: int
    in_flight: int


class Sessions(Page, kw_only=True):
    """Sessions."""

    rows: list[Session]


class ClientInFull(Session, kw_only=True):
    """A session with what it is owed and subscribes to; and of a client that is connected, its connection."""

    version: int | UnsetType = UNSET
    address: str | UnsetType | None = UNSET
    connected_s: float | UnsetType = UNSET
    output_bytes: int | UnsetType = UNSET
    in_process: bool | UnsetType = UNSET
    messages_in: int | UnsetType = UNSET
    messages_out: int | UnsetType = UNSET
    bytes_in: int | UnsetType = UNSET
    bytes_out: int | UnsetType = UNSET
    messages_dropped: int | UnsetType = UNSET
    keep_alive_s: float | UnsetType = UNSET
    identity: str | UnsetType | None = UNSET
    groups: list[str] | UnsetType = UNSET
    superuser: bool | UnsetType = UNSET
    send_quota: int | UnsetType = UNSET
    dropped: dict[str, int] | UnsetType = UNSET
    paused_by: list[str] | UnsetType = UNSET
    answer: dict[str, Any] | UnsetType | None = UNSET
    came_by: dict[str, Any] | UnsetType = UNSET
    will: dict[str, Any] | None
    incoming: list[int]
    replays: list[str]
    topic_filters: list[dict[str, Any]]
    deliveries: list[dict[str, Any]]


class Subscription(Struct, kw_only=True):
    """A subscription of a client, or what another worker has its clients' messages sent for (`peer`)."""

    client: str | UnsetType = UNSET
    peer: str | UnsetType = UNSET
    in_process: bool | UnsetType = UNSET
    worker: int
    topic_filter: str
    qos: int
    no_local: bool | UnsetType = UNSET
    retain_as_published: bool | UnsetType = UNSET
    retain_handling: int | UnsetType = UNSET
    narrowed: bool | UnsetType = UNSET
    subscription_identifier: int | UnsetType = UNSET


class Subscriptions(Page, kw_only=True):
    """Subscriptions."""

    rows: list[Subscription]


class Receiver(Struct, kw_only=True):
    """Who would receive a message, by which topic filters, and what would become of it."""

    client: str | UnsetType = UNSET
    peer: str | UnsetType = UNSET
    in_process: bool | UnsetType = UNSET
    worker: int
    connected: bool
    filters: list[dict[str, Any]]
    qos: int | None
    outcome: str
    decided_by: str | UnsetType = UNSET


class Routes(Page, kw_only=True):
    """Where a message would go. Pages after the first have rows only."""

    topic: str | UnsetType = UNSET
    qos: int | UnsetType = UNSET
    retain: bool | UnsetType = UNSET
    filters: list[dict[str, Any]] | UnsetType = UNSET
    groups: list[dict[str, Any]] | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    publisher: dict[str, Any] | UnsetType | None = UNSET
    rows: list[Receiver]


class Verdict(Struct, kw_only=True):
    """What a client may do with a topic, and which rule says so."""

    client: str
    user: str | None
    address: str | None
    known_from: str
    action: str
    topic: str
    allowed: str
    decided_by: str


class Trial(Struct, kw_only=True):
    """How rules on trial differ from those that count."""

    for_s: float
    refused: int
    allowed: int
    beyond: int
    rules: list[dict[str, Any]]
    rows: list[dict[str, Any]]


class RetainedMessage(Struct, kw_only=True):
    """A retained message: the beginning of its payload as text, or as base64 where it is none."""

    topic: str
    qos: int
    expires_in_s: float | None
    payload_bytes: int
    payload: str | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET


class Retained(Page, kw_only=True):
    """Retained messages."""

    rows: list[RetainedMessage]


class Published(Struct, kw_only=True):
    """What became of a message; `unknown`: workers that did not say whom they had for it."""

    topic: str
    recorded: bool
    receivers: int
    unknown: list[int]


class Kicked(Struct, kw_only=True):
    """A client that was disconnected."""

    client: str
    worker: int
    disconnected: bool
    session_ended: bool


class Forgotten(Struct, kw_only=True):
    """A peer that is owed nothing more."""

    peer: str
    messages_dropped: int


class Draining(Struct, kw_only=True):
    """The broker ends in order."""

    draining: bool


class LogLevel(Struct, kw_only=True):
    """The least severe log lines that are written."""

    level: str


class Certificate(Struct, kw_only=True):
    """A certificate that a listener shows."""

    subject: str | None
    names: list[str]
    issuer: str | None
    serial: str | None
    sha256: str | None
    not_before_s: int | None
    not_after_s: int | None
    days_left: int


class Listener(Struct, kw_only=True):
    """An address that clients come in by."""

    listener: int
    address: str
    listening: list[str]
    clients: int
    clients_max: int | None
    mount_point: str | None
    handshakes: dict[str, int] | None
    certificates: list[Certificate]
    reloads: int
    reloads_failed: int
    trouble: str | None


class Listeners(Struct, kw_only=True):
    """All addresses that clients come in by."""

    rows: list[Listener]


class Reloaded(Struct, kw_only=True):
    """What was read again: files of listeners, authenticators and authorizers."""

    workers: int
    listeners: list[Listener]
    authenticators: list[dict[str, Any]]
    authorizers: list[dict[str, Any]]
    rules: dict[str, Any] | None
    users: dict[str, Any] | None
    in_force: bool
    settings: list[dict[str, Any]]


class Restart(Struct, kw_only=True):
    """How far the last restart of the workers is: those that have new processes, and why it went no further."""

    running: bool
    workers: list[int]
    error_text: str | None


class Settings(Struct, kw_only=True):
    """Each setting that is in force: its value, where that came from, and when another one would count."""

    rows: list[dict[str, Any]]


class Ban(Struct, kw_only=True):
    """Who is kept out, since when and until when (Unix seconds), and why."""

    kind: str
    name: str
    reason: str
    since_s: float
    until_s: float | None
    ends_in_s: float | None


class Bans(Page, kw_only=True):
    """Bans that are in force."""

    rows: list[Ban]


class Why(Struct, kw_only=True):
    """Why messages on a topic did or did not reach a client: see docs/admin.md."""

    client: str
    topic: str
    worker: int
    connected: bool
    session_expiry_interval_s: int
    filters: list[dict[str, Any]]
    would_be: str
    decided_by: str | None
    queued: int
    queued_bytes: int
    in_flight: int
    send_quota: int
    dropped: dict[str, int]
    log: bool
    messages: list[dict[str, Any]]
    unlogged: list[dict[str, Any]]
    passed_on_by: list[dict[str, Any]] | UnsetType = UNSET
    unknown: list[int] | UnsetType = UNSET


class History(Struct, kw_only=True):
    """What is remembered of some series, oldest first: `ends_s` is when the last value of each began (Unix seconds)."""

    step_s: int
    ends_s: int
    series: dict[str, list[float | None]]


class Overview(Struct, kw_only=True):
    """The data of an event: `overview` has every series, by name, and `change` those that are another number now."""

    at_ms: int
    ready: bool | UnsetType = UNSET
    draining: bool | UnsetType = UNSET


class Event(Struct, kw_only=True):
    """One line of a stream: what happened, and more about it."""

    event: str
