"""What a worker counts: every counter under one name, with its unit and meaning, and one way to read them all.

Counting happens where things happen, in compiled code, and costs an addition; reading costs about a tenth of a
millisecond, however many clients there are.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from msgspec import Struct

from broker import logs
from broker.reactor.introspection import queue_of
from router.log.log_writer import Log

if TYPE_CHECKING:
    from broker.auth.shadow import Shadow
    from broker.control.controller import Controller
    from broker.reactor.acceptor import Acceptor
    from broker.reactor.turn import Hub
    from broker.transport.listener import Entrance
    from router.router import Router

unraisable = {"count": 0}
"""Exceptions where none can be raised, of this process; counted by the hook that a worker installs."""


class Rereading(Protocol):
    """What has files read again: broker.worker.reload.Reload."""

    done: int
    failed: int

    @property
    def shadow(self) -> Shadow | None:
        """What is on trial beside the rules that count, if anything is."""


class Durations(Struct, frozen=True):
    """Durations of one kind since the start.

    Attributes:
        count: how many there were.
        total_us: their sum, microseconds.
        max_us: the longest, microseconds.
        buckets: entry i counts those of 2**i to 2**(i+1) microseconds, entry 0 all shorter ones, the last all longer.
    """

    count: int = 0
    total_us: int = 0
    max_us: int = 0
    buckets: tuple[int, ...] = ()

    def percentile_us(self, share: float) -> int:
        """Return a duration that this share of all, 0 to 1, did not exceed: the upper end of its bucket, microseconds.

        That is at most twice the exact value, and never more than the longest. 0 if there were none.
        """
        wanted = share * self.count
        reached = 0
        for index, count in enumerate(self.buckets):
            reached += count
            if count and reached >= wanted:
                return min(2 << index, self.max_us)
        return self.max_us


class Metrics(Struct, frozen=True, kw_only=True):
    """The counters of one worker at one moment. What is not called a number now, or a maximum, only grows.

    A name that ends in _us is in microseconds, in _ms in milliseconds, and one with bytes in it in bytes; any other is
    a plain number. Messages are PUBLISH packets; a packet is any control packet.

    Attributes:
        uptime_ms: time since the worker started.
        bytes_in: received from sockets.
        bytes_out: handed to sockets.
        packets_in: packets received, by the name of their type.
        packets_out: packets sent, by the name of their type.
        messages_in: received from clients.
        messages_out: sent to clients.
        messages_in_by_qos: received, by QoS 0, 1, 2.
        messages_out_by_qos: sent, by QoS 0, 1, 2.
        payload_bytes_in: payloads received.
        payload_bytes_out: payloads sent.
        dropped: messages that did not reach a receiver or were refused, by router.sessions.ledger.DROP_REASONS.
        connections: accepted since the start.
        clients_handed_over: that came here and were sent to the worker that they live on; counted nowhere else here.
        clients_taken_in: that came from other workers, which connections counts, too.
        connections_open: sockets open now, before CONNECT and after DISCONNECT included.
        ends: connections that ended, by reasons.CloseReason.
        refused: of these, those that we ended and whose CONNECT was never accepted, by reasons.CloseReason.
        tls_handshakes: that succeeded, "full" and "resumed"; those that failed are in `refused`.
        certificate_days: whole days that the certificates of a listener are valid, by the listener's number, from 1,
            the first to expire of each; less than 0: it has expired.
        reloads: how often the files of the listeners were read again.
        reloads_failed: how often they could not be used, and what was read before was kept.
        accept_pauses: how often accepting was paused, by the limit or the error's name.
        throttled: how often a client was not read from for a while, because it was over its rate.
        pushed_back: how often a client was not read from for a while, because a queue had no room for its messages.
        unsettled: how often a client was not read from for a while, because Receive Maximum of its messages waited.
        output_full: how often a client was not read from for a while, because it did not take what it was sent.
        refused_subscriptions: topic filters not granted, by the reason code's name.
        shadow_refused: answers about rights that rules on trial would have given as a no, or narrower.
        shadow_allowed: ... as a yes, or wider.
        subscriptions_revoked: subscriptions that ended because the rights of their clients changed.
        sessions: number now, connected or not.
        sessions_connected: of these, number now with a connection.
        sessions_connected_max: the maximum of sessions_connected.
        sessions_expired: ended because their session expiry interval passed.
        subscriptions: number now, shared ones included.
        shared_subscriptions: of these, number now that are shared.
        retained_messages: number now.
        retained_bytes: of topic names, properties and payloads of retained messages now.
        queued_messages: QoS 1 and 2 messages waiting in sessions' queues now.
        queued_bytes: of topic names, properties and payloads of queued messages now.
        inflight_messages: QoS 1 and 2 messages sent and not completely acknowledged now.
        output_buffer_bytes: of buffers that hold unsent output now; of the whole process.
        resident_bytes: of the process's memory in RAM now, 0 once the worker has been closed.
        resident_bytes_max: the maximum of resident_bytes.
        memory_full: how often the limit of memory was reached.
        receive_us: time in turns spent reading sockets; what this and route_us share is divided by a sample of turns.
        route_us: time in turns spent parsing, routing and delivering.
        control_us: time in turns spent on control packets, deadlines and ends, in Python.
        pump_us: time in turns spent on the log and the mesh and on what they let leave.
        flush_us: time in turns spent sending.
        guest_us: time in turns spent in trio.
        turns: durations of turns, without the wait for something to do.
        turn_lags: how long before its turn a ready socket can have waited at most; one entry per turn that had input.
        guest_lags: how long a tick of trio was due before it ran.
        guest_ticks: ticks of trio that turns ran.
        replays: subscriptions to stored messages of clients that are connected, now.
        replayed_messages: stored messages given to clients.
        replay_gaps: times that a replay found messages removed before it came to them; each is logged.
        storage_records: records written to the commit log since the start.
        storage_bytes: of these.
        storage_syncs: how often it was synced to the disk.
        storage_errors: how often the disk refused to write or sync.
        storage_backlog_bytes: of records that wait to be written now.
        storage_waiting_records: number now that are not durable yet, as far as the settings go.
        storage_segments: files of the log now.
        storage_replay_age_ms: of the oldest of them that a restart reads now, behind the newest snapshot.
        storage_trouble: 1 while the disk refuses, else 0.
        storage_full: 1 while it does so because there is no room, else 0.
        retained_pending: changes of retained messages now that the index on disk has not got from the log yet.
        archive_missed: QoS 0 messages of the archive that were not stored, while the log took nothing.
        slow_turns: turns of 10 ms or more.
        log_suppressed: log lines held back by the rate limit.
        log_dropped: log lines lost because the writer could not keep up.
        presence_events_dropped: of who comes and goes, not taken in time by an embedding program.
        unraisable: exceptions where none can be raised, each of them our fault; of the whole process.
    """

    uptime_ms: int
    bytes_in: int
    bytes_out: int
    packets_in: Mapping[str, int]
    packets_out: Mapping[str, int]
    messages_in: int
    messages_out: int
    messages_in_by_qos: tuple[int, int, int]
    messages_out_by_qos: tuple[int, int, int]
    payload_bytes_in: int
    payload_bytes_out: int
    dropped: Mapping[str, int]
    connections: int
    clients_handed_over: int
    clients_taken_in: int
    connections_open: int
    ends: Mapping[str, int]
    refused: Mapping[str, int]
    tls_handshakes: Mapping[str, int]
    certificate_days: Mapping[str, int]
    reloads: int
    reloads_failed: int
    accept_pauses: Mapping[str, int]
    throttled: int
    pushed_back: int
    unsettled: int
    output_full: int
    refused_subscriptions: Mapping[str, int]
    shadow_refused: int
    shadow_allowed: int
    subscriptions_revoked: int
    sessions: int
    sessions_connected: int
    sessions_connected_max: int
    sessions_expired: int
    subscriptions: int
    shared_subscriptions: int
    retained_messages: int
    retained_bytes: int
    queued_messages: int
    queued_bytes: int
    inflight_messages: int
    output_buffer_bytes: int
    resident_bytes: int
    resident_bytes_max: int
    memory_full: int
    receive_us: int
    route_us: int
    control_us: int
    pump_us: int
    flush_us: int
    guest_us: int
    turns: Durations
    turn_lags: Durations
    guest_lags: Durations
    guest_ticks: int
    replays: int
    replayed_messages: int
    replay_gaps: int
    storage_records: int
    storage_bytes: int
    storage_syncs: int
    storage_errors: int
    storage_backlog_bytes: int
    storage_waiting_records: int
    storage_segments: int
    storage_replay_age_ms: int
    storage_trouble: int
    storage_full: int
    retained_pending: int
    archive_missed: int
    slow_turns: int
    log_suppressed: int
    log_dropped: int
    presence_events_dropped: int
    unraisable: int


def collect(hub: Hub, controller: Controller, acceptor: Acceptor | None = None,
            entrances: Sequence[Entrance] = (), reload: Rereading | None = None, own: int = 0) -> Metrics:  # fmt: skip
    """Read every counter of a worker.

    Cost: about a tenth of a millisecond; nothing is counted through, whatever the number of sessions.

    Args:
        hub: a Reactor, or in memory a Hub, whose clock stands still within a turn.
        acceptor: None while nothing is accepted.
        entrances: of its listeners.
        reload: has their files read again.
        own: subscriptions of the broker's own clients, which are not counted.
    """
    router, replays = hub.router, hub.replays
    handover = controller.handshake.handover
    ledger, tree = router.ledger, router.tree
    packets_in, packets_out = hub.packets()
    times_us = hub.phase_times_us()
    durations = {name: Durations(*fields) for name, fields in hub.durations().items()}
    log_counters = logs.counters()
    resident_bytes = hub.memory.resident_bytes() if hub.memory is not None else 0
    return Metrics(
        **hub.counters(),
        clients_handed_over=handover.handed_over if handover is not None else 0,
        clients_taken_in=handover.taken_in if handover is not None else 0,
        packets_in=packets_in,
        packets_out=packets_out,
        dropped=ledger.dropped(),
        ends={str(reason): count for reason, count in controller.ends.items()},
        refused={str(reason): count for reason, count in controller.refused.items()},
        tls_handshakes=_handshakes(entrances),
        certificate_days={str(entrance.number + 1): min(one.days_left() for one in entrance.certificates)
                          for entrance in entrances if entrance.certificates},
        **_reloads(reload),
        accept_pauses=dict(acceptor.pauses) if acceptor is not None else {},
        refused_subscriptions={str(reason): count for reason, count in controller.refused_subscriptions.items()},
        subscriptions_revoked=controller.review.revoked,
        sessions=len(router.sessions),
        sessions_connected=ledger.sessions_online,
        sessions_connected_max=ledger.sessions_online_max,
        sessions_expired=ledger.sessions_expired,
        subscriptions=tree.subscription_count - own,
        shared_subscriptions=tree.shared_subscription_count,
        retained_messages=router.retaining.count,
        retained_bytes=router.retaining.size_bytes,
        **_queues(router),
        resident_bytes=resident_bytes,
        resident_bytes_max=max(resident_bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024),
        memory_full=hub.memory.times_full if hub.memory is not None else 0,
        receive_us=times_us["receive"],
        route_us=times_us["route"],
        control_us=times_us["control"],
        pump_us=times_us["pump"],
        flush_us=times_us["flush"],
        guest_us=times_us["guest"],
        turns=durations["turns"],
        turn_lags=durations["turn_lags"],
        guest_lags=durations["guest_lags"],
        replays=replays.count if replays is not None else 0,
        replayed_messages=replays.messages if replays is not None else 0,
        replay_gaps=replays.gaps if replays is not None else 0,
        **_storage(hub.pump.log, ledger.now_us),
        retained_pending=router.retaining.index.pending if router.retaining.index is not None else 0,
        archive_missed=ledger.archive_missed,
        slow_turns=controller.slow_turns.count,
        log_suppressed=log_counters["log_suppressed"],
        log_dropped=log_counters["log_dropped"],
        presence_events_dropped=controller.presence.dropped,
        unraisable=unraisable["count"],
    )  # fmt: skip


def _reloads(reload: Rereading | None) -> dict[str, Any]:
    """What is read again, and what comes of a part of it that is on trial."""
    shadow = None if reload is None else reload.shadow
    return {
        "reloads": 0 if reload is None else reload.done,
        "reloads_failed": 0 if reload is None else reload.failed,
        "shadow_refused": 0 if shadow is None else shadow.refused,
        "shadow_allowed": 0 if shadow is None else shadow.allowed,
    }


def _queues(router: Router) -> dict[str, Any]:
    """What clients are owed. What waits for another router is counted where it waits for a client."""
    ledger = router.ledger
    passing = [queue_of(peer.session) for peer in router.peers.values()]
    return {
        "queued_messages": ledger.queued_messages - sum(owed["queued"] for owed in passing),
        "queued_bytes": ledger.queued_bytes - sum(owed["queued_bytes"] for owed in passing),
        "inflight_messages": ledger.inflight_messages - sum(owed["in_flight"] for owed in passing),
    }


AS_ONE: Final = frozenset(
    {
        "uptime_ms",
        "reloads",
        "reloads_failed",
        "storage_replay_age_ms",
        "storage_trouble",
        "storage_full",
        "retained_messages",
        "retained_bytes",
    }
)
"""Of several workers the highest: each says the same, or what concerns all of them."""


def merged(parts: Sequence[Metrics]) -> Metrics:
    """Return the counters of several workers as those of one broker: their sums, but for AS_ONE. One part or more."""
    return Metrics(
        **{
            name: _merged(name, found)
            for name in Metrics.__struct_fields__
            for found in [[getattr(part, name) for part in parts]]
        }
    )


def _merged(name: str, found: list[Any]) -> Any:
    if name in AS_ONE:
        return max(found)
    return _lowest(found) if name == "certificate_days" else _sum(found)


def _handshakes(entrances: Sequence[Entrance]) -> dict[str, int]:
    return {
        kind: count
        for kind in ("full", "resumed")
        if (count := sum(entrance.handshakes[kind] for entrance in entrances))
    }


def _lowest(found: list[Mapping[str, int]]) -> dict[str, int]:
    lowest: dict[str, int] = {}
    for numbers in found:
        for key, number in numbers.items():
            lowest[key] = min(number, lowest.get(key, number))
    return lowest


def _sum(found: list[Any]) -> Any:
    if isinstance(found[0], int):
        return sum(found)
    if isinstance(found[0], tuple):
        return tuple(map(sum, zip_longest(*found, fillvalue=0)))
    if isinstance(found[0], Durations):
        return Durations(
            sum(durations.count for durations in found),
            sum(durations.total_us for durations in found),
            max(durations.max_us for durations in found),
            _sum([durations.buckets for durations in found]),
        )
    totals: Counter[str] = Counter()
    for counts in found:
        totals.update(counts)
    return dict(totals)


def _storage(log: object, now_us: int) -> dict[str, Any]:
    if not isinstance(log, Log):
        return dict.fromkeys((field for field in Metrics.__struct_fields__ if field.startswith("storage_")), 0)
    begun_us = log.replayed_from_us()
    return {
        "storage_records": log.written - log.started_after,
        "storage_bytes": log.bytes_written,
        "storage_syncs": log.syncs,
        "storage_errors": log.errors,
        "storage_backlog_bytes": log.backlog_bytes,
        "storage_waiting_records": max(log.appended - log.durable, 0),
        "storage_segments": len(log.headers),
        "storage_replay_age_ms": max(now_us - begun_us, 0) // 1000 if begun_us else 0,
        "storage_trouble": int(log.trouble is not None),
        "storage_full": int(log.full),
    }


def flat(metrics: Metrics) -> dict[str, int]:
    """Return the counters under plain names for a log line: `dropped_expired`, `messages_in_qos1`, `turns_max_us`.

    What never happened is left out among the counts by reason and by type.
    """
    counters: dict[str, int] = {}
    for name, value in msgspec.structs.asdict(metrics).items():
        if isinstance(value, int):
            counters[name] = value
        elif isinstance(value, Durations):
            counters |= {
                f"{name}_count": value.count,
                f"{name}_total_us": value.total_us,
                f"{name}_p99_us": value.percentile_us(0.99),
                f"{name}_max_us": value.max_us,
            }
        elif isinstance(value, tuple):
            counters |= {f"{name.removesuffix('_by_qos')}_qos{qos}": count for qos, count in enumerate(value)}
        else:
            counters |= {f"{name}_{key}": count for key, count in value.items() if count}
    return counters
