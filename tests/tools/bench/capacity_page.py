"""docs/capacity.md from the figures of one run."""

from __future__ import annotations

import datetime
import platform
import statistics

from broker.version import VERSION
from tests.tools.bench.machine import machine

GIB = 1 << 30
MIB = 1 << 20
ROUTES = 65_536  # default of limits.route_cache_max
RESERVED_FILES = 320  # that the broker does not use for clients, see broker.worker

ROWS = (
    ("connection_3_1_1", "connection, 3.1.1, idle, no subscription"),
    ("connection_5_0", "connection, 5.0, idle, no subscription"),
    ("connection_subscribed", "connection, 5.0, idle, one subscription of its own"),
    ("session_away", "session whose client is away, one subscription of its own"),
    ("subscription_exact", "subscription, a topic filter of its own without wildcards"),
    ("subscription_wildcard", "subscription, a topic filter of its own with `+` in the middle"),
    ("subscription_same", "subscription to a topic filter that others have too"),
    ("retained", "retained message, {payload} bytes of payload"),
    ("queued_one", "queued message, {payload} bytes of payload, for one session"),
    ("queued", "queued message, {payload} bytes of payload, for each of ten sessions that it waits for"),
)


def rounded(value: float) -> str:
    """Return bytes as a reader wants them: two figures that count."""
    return f"{round(value, -1):,.0f}" if value >= 100 else f"{value:.0f}"


def size(value: float) -> str:
    """Return a number of bytes in MiB or GiB."""
    return f"{value / GIB:.1f} GiB" if value >= GIB else f"{value / MIB:,.0f} MiB"


def page(figures: dict[str, float], connections: int, others: int, payload: int) -> str:
    """Return the page.

    Args:
        figures: bytes, as capacity.measure returns them.
        connections: how many were held at once; others: how many of everything else.
        payload: bytes of payload of retained and queued messages.
    """
    kernel = statistics.median(value for name, value in figures.items() if name.startswith("kernel_"))
    one = figures["connection_subscribed"]
    table = "\n".join(f"| {text.format(payload=payload)} | {rounded(figures[name])} |" for name, text in ROWS)
    scale = "\n".join(
        f"| {clients:,} | {size(figures['idle'] + clients * one)} | {size(clients * kernel)} | "
        f"{size(figures['idle'] + clients * (one + kernel))} | {clients + RESERVED_FILES:,} |"
        for clients in (10_000, 100_000, 1_000_000)
    )
    routes = rounded((figures["retained_and_routes"] - figures["retained"]) * others / min(others, ROUTES))
    retained_1024 = rounded(figures["retained"] + 1024 - payload)
    idle, filters = size(figures["idle"]), size(10_000 * figures["subscription_wildcard"])
    hundred_thousand = size(figures["idle"] + 100_000 * (one + kernel))
    return f"""# Capacity

What clients and messages cost in memory, measured, and what follows for a number of clients. How much processor time
they take is another question: docs/benchmarks.md.

## Measured

Growth of the resident memory of a `shoal serve` process, divided by how many there were: {others:,} retained messages,
messages in ten queues and subscriptions to filters of their own, {connections:,} of anything else; after the broker had
given back what it did not need. Each row has a process of its own.

| one more | bytes |
|---|---:|
{table}

- A worker that holds nothing takes {idle}.
- Topic names and topic filters of about 20 bytes and client identifiers of 13 are included; longer ones add their
  length. A payload adds its own: a retained message of 1 KiB costs about {retained_1024} bytes. A message that waits
  for several sessions is held once, and each session adds its place in the queue.
- A queue, and the tables that names are found by, double when they are full: between two sizes a figure can be a
  third lower or higher. A topic filter costs more by one node for each level that no other filter shares.
- The receivers of a topic name that is published to are remembered, for up to `limits.route_cache_max` (65,536) topic
  names, about {routes} bytes each. Retained messages were measured without that.
- A connection holds buffers while it has unsent output, at most `limits.output_buffer_bytes_max` (1 MiB) and one
  message more. One that has sent a part of a packet holds that part.
- The kernel's share of a connection, socket, file and epoll entry, is about {rounded(kernel)} bytes while it is
  idle: the growth of the slab caches, halved, because client and broker were on one machine. What is on its way in
  socket buffers comes on top: for a client that does not read, up to the limits in `net.ipv4.tcp_rmem` and
  `net.ipv4.tcp_wmem`.

Measured on {machine()}; Shoal {VERSION}, Python {platform.python_version()}, {datetime.date.today().isoformat()}, by
`make capacity`.

## What that means

For 5.0 clients that are connected, with one subscription each and nothing on its way; computed from the table:

| clients | broker | kernel | together | open files |
|---:|---:|---:|---:|---:|
{scale}

**10,000 clients** fit anywhere that Python runs. The usual limit on open files, 1,024, has to be raised: `ulimit -n
12000`, or `LimitNOFILE=` in a service's unit. At its start the broker raises the soft limit to the hard one by
itself, and logs how many connections that allows (`connections_limit`).

**100,000 clients** take {hundred_thousand} in all, and `ulimit -n 110000`. From here on it is the rate that counts,
not the number: with a keep alive of 60 seconds they send 1,700 PINGREQ a second, and when all come back at once
after a broken link, `limits.connects_per_second_max` (10,000) spreads them over ten seconds.

**1,000,000 clients** are the default of `limits.connections_max`. The broker's own memory is the smaller part; most
is the kernel's. A process may open at most `fs.nr_open` files, 1,048,576 if it was never changed, which is just
enough; `fs.file-max`, and `net.core.somaxconn` for bursts, may have to be raised, and on a firewall in between the
size of its table of connections. One address of clients has fewer than 65,536 ports towards one address of the
broker. A million has not been tried here: this row is the table multiplied, and the kernel's share is the less
certain part of it.

This is one worker, so one process and one core. `shoal serve` runs a worker for each core unless `workers` says
otherwise, and a supervisor beside them. Workers share code and the index of retained messages, and nothing else: each
has its own clients, sessions and queues, and takes the {idle} of an empty one besides. The limits on memory
are each worker's, those on queues and subscriptions each client's; `limits.connections_max` is of all workers together.

## What keeps it in bounds

Memory is what clients make of it. The settings that bound it, with their defaults: `limits.connections_max`;
`limits.subscriptions_per_client_max` (10,000: by the table {filters} for one client that uses it up);
`mqtt.queue_messages_max` (10,000) and `mqtt.queue_bytes_max` (16 MiB) per session; `limits.retained_messages_max`
(1,000,000) and `limits.retained_bytes_max` (256 MiB); `limits.output_buffer_bytes_max`; `limits.pending_bytes_max`; and
`limits.sessions_max` (1,000,000), and `mqtt.session_expiry_interval_max_s` for sessions whose clients never come back.
Above all stands `limits.memory_bytes_max`, by default three quarters of what the machine or the control group has: at
that limit nothing more is queued, retained or connected, and what is there goes on. It counts the process's own
memory, so with very many clients set it lower, and leave the kernel its share.

To see where a broker stands: `$SYS/broker/heap/current`, `$SYS/broker/shoal/#`; docs/sys-topics.md.
"""
