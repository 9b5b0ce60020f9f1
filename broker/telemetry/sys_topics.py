"""The topics under $SYS: what the broker says about itself, to every client that subscribes.

The names that mosquitto publishes stand here with its meanings, so that dashboards made for it work; ours are below
$SYS/broker/shoal. `python -m broker.telemetry.sys_topics` prints docs/sys-topics.md.

A new subscriber gets the current values at once, as if they were retained; then each interval brings what changed. The
values are in no log and in no retained store, and clients cannot publish under $SYS. While nobody subscribes, only the
load averages go on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import trio
from msgspec import Struct

from broker.telemetry.metrics import Durations, Metrics, merged
from broker.version import VERSION
from router.core.message import message as make_message
from router.retained.memory_store import RetainedStore

if TYPE_CHECKING:
    from router.core.message import Message
    from router.router import Router

ROOT = b"$SYS"
PREFIX = "$SYS/broker/"
SPANS_MIN = (1, 5, 15)  # of the load averages, minutes
DELIVERIES_PER_SLICE = 1000  # then a turn may come between: about a tenth of a millisecond at QoS 0
SLICE_TOPICS_MAX = 100

# What is averaged: a total of the metrics by the name of the topic.
LOADS: dict[str, tuple[str, Callable[[Metrics], int]]] = {
    "messages/received": ("packets of any type received", lambda m: sum(m.packets_in.values())),
    "messages/sent": ("packets of any type sent", lambda m: sum(m.packets_out.values())),
    "publish/received": ("messages received", lambda m: m.messages_in),
    "publish/sent": ("messages sent", lambda m: m.messages_out),
    "publish/dropped": ("messages dropped", lambda m: sum(m.dropped.values())),
    "bytes/received": ("bytes received", lambda m: m.bytes_in),
    "bytes/sent": ("bytes sent", lambda m: m.bytes_out),
    "sockets": ("connections accepted", lambda m: m.connections),
    "connections": ("CONNECT packets received", lambda m: m.packets_in["connect"]),
}


class Topic(NamedTuple):
    """One topic: its name behind $SYS/broker/, what its payload counts, what that means, and where it comes from."""

    name: str
    unit: str
    text: str
    value: Callable[[Metrics], object]


class Family(NamedTuple):
    """Topics of which each is published once it is not 0: a name that goes on with the reason, the type or a number."""

    name: str
    placeholder: str
    unit: str
    text: str
    values: Callable[[Metrics], Mapping[str, int]]
    zeros: bool = False  # 0 is told, too


TOPICS = (
    Topic("version", "text", "name and version of the broker", lambda m: f"shoal version {VERSION}"),
    Topic(
        "uptime", "seconds", "time since the broker started, as `N seconds`", lambda m: f"{m.uptime_ms // 1000} seconds"
    ),
    Topic("clients/total", "number", "sessions, connected or not", lambda m: m.sessions),
    Topic("clients/connected", "number", "clients that are connected", lambda m: m.sessions_connected),
    Topic("clients/active", "number", "the same under its older name", lambda m: m.sessions_connected),
    Topic(
        "clients/disconnected",
        "number",
        "sessions kept for clients that are not connected",
        lambda m: m.sessions - m.sessions_connected,
    ),
    Topic("clients/inactive", "number", "the same under its older name", lambda m: m.sessions - m.sessions_connected),
    Topic(
        "clients/maximum", "number", "the most clients that were connected at once", lambda m: m.sessions_connected_max
    ),
    Topic(
        "clients/expired",
        "total",
        "sessions that ended because their session expiry interval passed",
        lambda m: m.sessions_expired,
    ),
    Topic("messages/received", "total", "packets of any type received", LOADS["messages/received"][1]),
    Topic("messages/sent", "total", "packets of any type sent", LOADS["messages/sent"][1]),
    Topic(
        "messages/inflight",
        "number",
        "QoS 1 and 2 messages sent and not completely acknowledged",
        lambda m: m.inflight_messages,
    ),
    Topic(
        "messages/stored",
        "number",
        "messages kept: retained and queued; the older name of store/messages/count",
        lambda m: m.retained_messages + m.queued_messages,
    ),
    Topic(
        "store/messages/count",
        "number",
        "messages kept: retained and queued",
        lambda m: m.retained_messages + m.queued_messages,
    ),
    Topic(
        "store/messages/bytes",
        "bytes",
        "topic names, properties and payloads of these",
        lambda m: m.retained_bytes + m.queued_bytes,
    ),
    Topic("publish/messages/received", "total", "messages (PUBLISH packets) received", lambda m: m.messages_in),
    Topic("publish/messages/sent", "total", "messages (PUBLISH packets) sent", lambda m: m.messages_out),
    Topic(
        "publish/messages/dropped",
        "total",
        "messages that were refused or did not reach a receiver, all reasons",
        LOADS["publish/dropped"][1],
    ),
    Topic("publish/bytes/received", "bytes", "payloads received", lambda m: m.payload_bytes_in),
    Topic("publish/bytes/sent", "bytes", "payloads sent", lambda m: m.payload_bytes_out),
    Topic("bytes/received", "bytes", "received from sockets", lambda m: m.bytes_in),
    Topic("bytes/sent", "bytes", "handed to sockets", lambda m: m.bytes_out),
    Topic("subscriptions/count", "number", "subscriptions, shared ones included", lambda m: m.subscriptions),
    Topic("shared_subscriptions/count", "number", "shared subscriptions", lambda m: m.shared_subscriptions),
    Topic(
        "retained messages/count",
        "number",
        "retained messages, those under $SYS not included",
        lambda m: m.retained_messages,
    ),
    Topic("heap/current", "bytes", "the process's memory in RAM", lambda m: m.resident_bytes),
    Topic("heap/maximum", "bytes", "the most that it was", lambda m: m.resident_bytes_max),
    Topic(
        "shoal/retained/bytes",
        "bytes",
        "topic names, properties and payloads of retained messages",
        lambda m: m.retained_bytes,
    ),
    Topic(
        "shoal/queued/messages",
        "number",
        "QoS 1 and 2 messages waiting in sessions' queues",
        lambda m: m.queued_messages,
    ),
    Topic("shoal/queued/bytes", "bytes", "topic names, properties and payloads of these", lambda m: m.queued_bytes),
    Topic("shoal/output/bytes", "bytes", "buffers that hold unsent output", lambda m: m.output_buffer_bytes),
    Topic("shoal/connections/open", "number", "open sockets, before CONNECT included", lambda m: m.connections_open),
    Topic("shoal/connections/total", "total", "connections accepted", lambda m: m.connections),
    Topic(
        "shoal/connections/throttled",
        "total",
        "how often a client was not read from for a while, because it was over its rate",
        lambda m: m.throttled,
    ),
    Topic(
        "shoal/connections/pushed_back",
        "total",
        "how often a client was not read from for a while, because a queue had no room for its messages",
        lambda m: m.pushed_back,
    ),
    Topic(
        "shoal/connections/unsettled",
        "total",
        "how often a client was not read from for a while, because Receive Maximum of its messages waited",
        lambda m: m.unsettled,
    ),
    Topic(
        "shoal/connections/output_full",
        "total",
        "how often a client was not read from for a while, because it did not take what it was sent",
        lambda m: m.output_full,
    ),
    Topic(
        "shoal/access/shadow/refused",
        "total",
        "answers about rights that rules on trial would have given as a no, or narrower",
        lambda m: m.shadow_refused,
    ),
    Topic("shoal/access/shadow/allowed", "total", "... as a yes, or wider", lambda m: m.shadow_allowed),
    Topic("shoal/storage/records", "total", "records written to the commit log", lambda m: m.storage_records),
    Topic("shoal/storage/bytes", "bytes", "records written to the commit log", lambda m: m.storage_bytes),
    Topic("shoal/storage/syncs", "total", "how often it was synced to the disk", lambda m: m.storage_syncs),
    Topic("shoal/storage/errors", "total", "how often the disk refused to write or sync", lambda m: m.storage_errors),
    Topic("shoal/storage/backlog/bytes", "bytes", "records that wait to be written", lambda m: m.storage_backlog_bytes),
    Topic("shoal/storage/waiting", "number", "records that are not durable yet", lambda m: m.storage_waiting_records),
    Topic("shoal/storage/segments", "number", "files of the commit log", lambda m: m.storage_segments),
    Topic(
        "shoal/storage/replay_age",
        "seconds",
        "age of the oldest of them that a restart reads, behind the snapshot",
        lambda m: m.storage_replay_age_ms // 1000,
    ),
    Topic("shoal/storage/trouble", "number", "1 while the disk refuses, else 0", lambda m: m.storage_trouble),
    Topic(
        "shoal/storage/full", "number", "1 while it refuses because there is no room, else 0", lambda m: m.storage_full
    ),
    Topic(
        "shoal/retained/pending",
        "number",
        "changes of retained messages that the index on disk lacks",
        lambda m: m.retained_pending,
    ),
    Topic(
        "shoal/archive/missed",
        "total",
        "QoS 0 messages of the archive that were not stored",
        lambda m: m.archive_missed,
    ),
    Topic(
        "shoal/replays/active", "number", "subscriptions to stored messages of connected clients", lambda m: m.replays
    ),
    Topic("shoal/replays/messages", "total", "stored messages given to clients", lambda m: m.replayed_messages),
    Topic(
        "shoal/replays/gaps",
        "total",
        "times that a replay found messages removed before it came to them",
        lambda m: m.replay_gaps,
    ),
    Topic("shoal/memory/full", "total", "how often the worker reached its limit of memory", lambda m: m.memory_full),
    Topic("shoal/reloads", "total", "how often files of the listeners were read again", lambda m: m.reloads),
    Topic(
        "shoal/reloads/failed",
        "total",
        "how often they could not be used, and what was read before was kept",
        lambda m: m.reloads_failed,
    ),
    Topic("shoal/log/suppressed", "total", "log lines held back by the rate limit", lambda m: m.log_suppressed),
    Topic("shoal/log/dropped", "total", "log lines that the writer lost", lambda m: m.log_dropped),
    Topic(
        "shoal/errors/unraisable",
        "total",
        "exceptions where none can be raised; each is our fault",
        lambda m: m.unraisable,
    ),
    Topic("shoal/turns/slow", "total", "turns of 10 ms or more", lambda m: m.slow_turns),
)

FAMILIES = (
    Family("shoal/dropped", "reason", "total", "messages dropped, by reason", lambda m: m.dropped),
    Family("shoal/ends", "reason", "total", "connections that ended, by close reason", lambda m: m.ends),
    Family(
        "shoal/refused",
        "reason",
        "total",
        "connections that the broker ended before it accepted a CONNECT, by close reason",
        lambda m: m.refused,
    ),
    Family(
        "shoal/tls/handshakes",
        "kind",
        "total",
        "TLS handshakes that succeeded: full, resumed",
        lambda m: m.tls_handshakes,
    ),
    Family(
        "shoal/tls/certificate_days",
        "listener",
        "number",
        "whole days that a listener's certificates are valid yet, the first to expire; less than 0: expired. "
        "Listeners count from 1, as in `shoal admin listeners`",
        lambda m: m.certificate_days,
        zeros=True,
    ),
    Family(
        "shoal/accept_pauses",
        "reason",
        "total",
        "how often accepting was paused, by limit or error",
        lambda m: m.accept_pauses,
    ),
    Family("shoal/packets/received", "type", "total", "packets received, by type", lambda m: m.packets_in),
    Family("shoal/packets/sent", "type", "total", "packets sent, by type", lambda m: m.packets_out),
    Family(
        "shoal/messages/received",
        "qos",
        "total",
        "messages received, by QoS",
        lambda m: {f"qos{qos}": count for qos, count in enumerate(m.messages_in_by_qos)},
    ),
    Family(
        "shoal/messages/sent",
        "qos",
        "total",
        "messages sent, by QoS",
        lambda m: {f"qos{qos}": count for qos, count in enumerate(m.messages_out_by_qos)},
    ),
    Family(
        "shoal/time",
        "phase",
        "microseconds",
        "time in turns, by what it was spent on: receive, route, control, pump, flush, guest (trio)",
        lambda m: {
            "receive": m.receive_us,
            "route": m.route_us,
            "control": m.control_us,
            "pump": m.pump_us,
            "flush": m.flush_us,
            "guest": m.guest_us,
        },
    ),
    Family(
        "shoal/turns",
        "measure",
        "microseconds",
        "duration of turns: p50, p99, p999 and max; count is their number",
        lambda m: _percentiles(m.turns),
    ),
    Family(
        "shoal/turn_lag",
        "measure",
        "microseconds",
        "how long a ready socket can have waited for its turn: p50, p99, p999 and max; count is the number of turns",
        lambda m: _percentiles(m.turn_lags),
    ),
    Family(
        "shoal/guest_lag",
        "measure",
        "microseconds",
        "how long a tick of trio was due before it ran: p50, p99, p999 and max; count is the number of ticks",
        lambda m: _percentiles(m.guest_lags),
    ),
)


def _percentiles(durations: Durations) -> dict[str, int]:
    return {
        "count": durations.count,
        "p50": durations.percentile_us(0.5),
        "p99": durations.percentile_us(0.99),
        "p999": durations.percentile_us(0.999),
        "max": durations.max_us,
    }


class LoadAverages:
    """How much of each of LOADS there was per minute, averaged over 1, 5 and 15 minutes that fade exponentially."""

    def __init__(self) -> None:
        self.per_minute = {f"load/{name}/{span}min": 0.0 for name in LOADS for span in SPANS_MIN}
        self._totals = dict.fromkeys(LOADS, 0)
        self._at_ms = 0

    def take(self, metrics: Metrics) -> None:
        """Bring the averages up to a later moment; the same moment again changes nothing."""
        minutes = (metrics.uptime_ms - self._at_ms) / 60_000
        if minutes <= 0:
            return
        self._at_ms = metrics.uptime_ms
        fading = [math.exp(-minutes / span) for span in SPANS_MIN]
        for name, (_, total_of) in LOADS.items():
            total = total_of(metrics)
            now = (total - self._totals[name]) / minutes
            self._totals[name] = total
            for span, fades in zip(SPANS_MIN, fading, strict=True):
                topic = f"load/{name}/{span}min"
                self.per_minute[topic] = now + fades * (self.per_minute[topic] - now)


class Share(Struct, frozen=True):
    """What one of several workers tells the others each interval.

    Attributes:
        metrics: its counters.
        per_minute: its load averages.
    """

    metrics: Metrics
    per_minute: dict[str, float]


class SysTopics:
    """$SYS of one worker, for its own clients; of several workers, what all of them count together.

    Args:
        router: whose subscribers are told; it asks us for the values that a new one gets.
        measure: reads the counters.
        interval_s: how often values are renewed; more than 0.
        mesh: the links to the other workers; None: there are none.
    """

    def __init__(self, router: Router, measure: Callable[[], Metrics], interval_s: float, mesh: Any = None) -> None:
        self.router = router
        self.interval_s = interval_s
        self.loads = LoadAverages()
        self._mesh = mesh
        self._shares: dict[bytes, tuple[bytes, Share]] = {}  # by worker, and what it is made of
        self._connected_max = 0
        self._measure = measure
        self._values = RetainedStore()
        self._texts: dict[str, bytes] = {}  # by topic, as it was told last
        self._changes: deque[tuple[str, bytes]] = deque()
        self._measured_ms: int | None = None  # when the values were measured; None: never
        router.sys_topics = self

    # What the router asks --------------------------------------------------------------------------------------------

    def match(self, topic_filter: bytes) -> list[Message]:
        """Return the current values that a topic filter matches, for a new subscriber."""
        found: list[Message] = self._values.match(topic_filter)
        return found

    def message_of(self, topic_name: bytes) -> Message | None:
        """Return the current value of one topic."""
        return self._values.message_of(topic_name)

    def bring_up_to_date(self) -> None:
        """A client is about to subscribe: measure, unless that was done within the last interval."""
        now_ms = self.router.ledger.now_ms
        if self._measured_ms is not None and now_ms - self._measured_ms < self.interval_s * 1000:
            return
        if self._measured_ms is not None and self.router.tree.has_branch(ROOT):
            return  # run() is a little late: it will tell everybody
        self._renew(self._measure())
        while self.tell():
            pass  # there is nobody yet, so this only notes the values

    # Each interval ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Renew the values each interval and tell subscribers what changed, a slice at a time. Until cancelled."""
        if self._mesh is not None:
            self._tell_others(self._measure())  # so that nobody waits an interval for our first ones
        while True:
            await trio.sleep(self.interval_s)
            self.tick()
            while self.tell():
                await trio.lowlevel.checkpoint()

    def tick(self) -> None:
        """An interval is over: the load averages go on, and if a client subscribes, find out what changed."""
        metrics = self._measure()
        self.loads.take(metrics)
        if self._mesh is not None:
            self._tell_others(metrics)
        if self.router.tree.has_branch(ROOT):
            self._renew(metrics)

    def tell(self) -> bool:
        """Tell subscribers a slice of what changed; returns whether there is more."""
        delivered = told = 0
        while self._changes and delivered < DELIVERIES_PER_SLICE and told < SLICE_TOPICS_MAX:
            topic, text = self._changes.popleft()
            value = make_message((PREFIX + topic).encode(), text, 0, True)
            self._values.keep(value)
            delivered += self.router.announce(value)
            told += 1
        return bool(self._changes)

    def _tell_others(self, metrics: Metrics) -> None:
        self._mesh.tell_counters(ENCODER.encode(Share(metrics, self.loads.per_minute)))
        connected = metrics.sessions_connected + sum(share.metrics.sessions_connected for share in self._others())
        self._connected_max = max(self._connected_max, connected)

    def _others(self) -> list[Share]:
        """Return what the other workers told last, of those that told anything."""
        found = []
        for name, neighbour in self._mesh.neighbours.items():
            told = neighbour.counters
            if told is None:
                continue
            known = self._shares.get(name)
            if known is None or known[0] is not told:
                try:
                    known = self._shares[name] = told, DECODER.decode(told)
                except msgspec.MsgspecError:
                    continue  # of another version
            found.append(known[1])
        return found

    def _of_all(self, metrics: Metrics) -> tuple[Metrics, dict[str, float]]:
        """Return counters and load averages of all workers together, of which one is ours."""
        others = self._others()
        total = merged([metrics, *(share.metrics for share in others)])
        self._connected_max = max(self._connected_max, metrics.sessions_connected_max, total.sessions_connected)
        per_minute = {
            name: average + sum(share.per_minute.get(name, 0.0) for share in others)
            for name, average in self.loads.per_minute.items()
        }
        return msgspec.structs.replace(total, sessions_connected_max=self._connected_max), per_minute

    def _renew(self, metrics: Metrics) -> None:
        self._measured_ms = self.router.ledger.now_ms
        per_minute = self.loads.per_minute
        if self._mesh is not None:
            metrics, per_minute = self._of_all(metrics)
        for topic, text in values_of(metrics, per_minute):
            encoded = text.encode()
            if self._texts.get(topic) != encoded:
                self._texts[topic] = encoded
                self._changes.append((topic, encoded))


ENCODER: Final = msgspec.msgpack.Encoder()
DECODER: Final = msgspec.msgpack.Decoder(Share)


def values_of(metrics: Metrics, per_minute: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yield (name behind $SYS/broker/, payload) of every topic that has a value."""
    for topic in TOPICS:
        yield topic.name, str(topic.value(metrics))
    for name, average in per_minute.items():
        yield name, f"{average:.2f}"
    for family in FAMILIES:
        for key, count in family.values(metrics).items():
            if count or family.zeros:
                yield f"{family.name}/{key}", str(count)


def page() -> str:
    """Return docs/sys-topics.md."""
    lines = [
        "# Topics under $SYS",
        "",
        "What the broker says about itself, to every client that subscribes `$SYS/#` or a part of it. The names are",
        "those that mosquitto publishes, so dashboards made for it work; ours are below `$SYS/broker/shoal/`.",
        "",
        "- A new subscriber gets the current values at once, with RETAIN 1. After that, every `mqtt.sys_interval_s`",
        "  brings those that changed, at QoS 0. With 0 there are none.",
        "- `#` and `+/...` do not match these topics [MQTT-4.7.2-1]: a client that wants everything subscribes `#` and",
        "  `$SYS/#`.",
        "- Clients cannot publish under `$SYS`: MQTT 5.0 is answered 0x87 (not authorized), 3.x is acknowledged; the",
        "  message goes nowhere and is counted as dropped, reason `not_authorized`.",
        "- The values are not retained messages: no limit, count or log includes them. Without a subscriber,",
        "  nothing is computed but the load averages.",
        "- With several workers these are the numbers of all of them together, whichever worker a client is on: of the",
        "  other workers as they were at their last interval. A worker that was restarted counts from 0 again.",
        "- Payloads are text. A *total* counts since the start, a *number* is how many there are now.",
        "- Every topic that mosquitto 2.0 publishes is here but `$SYS/broker/connection/...`: there are no bridges",
        "  whose state it could tell.",
        "",
        "| topic | unit | meaning |",
        "|---|---|---|",
        *(f"| `{PREFIX}{topic.name}` | {topic.unit} | {topic.text} |" for topic in TOPICS),
        "",
        "## Load averages",
        "",
        "How many per minute, averaged over the last 1, 5 and 15 minutes, older minutes counting less and less; a",
        "number with two decimals.",
        "",
        "| topic | what is counted |",
        "|---|---|",
        *(
            f"| `{PREFIX}load/{name}/{span}min` | {text} per minute |"
            for name, (text, _) in LOADS.items()
            for span in SPANS_MIN
        ),
        "",
        "## By reason, type, phase",
        "",
        "Each is published once it is not 0. Reasons are the same words as in the log.",
        "",
        "| topic | unit | meaning |",
        "|---|---|---|",
        *(f"| `{PREFIX}{family.name}/<{family.placeholder}>` | {family.unit} | {family.text} |" for family in FAMILIES),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
