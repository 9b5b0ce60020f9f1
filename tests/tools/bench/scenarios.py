"""What is measured, against what, and the ratio that is aimed at."""

from __future__ import annotations

from dataclasses import dataclass

CPU = "broker_cpu_us_per_msg"
SAME_CORE = "one core"  # broker and load generator share a core: capacity with single small writes
OWN_CORES = "two cores"  # a core each
LONGER = 5  # times as long is a round of what would be chance in a short one


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table.

    Attributes:
        text: as a reader sees it.
        scenario: name of the yardstick's scenario.
        cores: SAME_CORE or OWN_CORES.
        figure: key of its result.
        reference: broker (or "shoal", with `of`) that the figure is divided by; "" for an absolute figure.
        target: at most this ratio, or this figure in `unit`.
        of: scenario of the reference, if it is another one.
        long: its rounds are LONGER times as long as the others'.
    """

    text: str
    scenario: str
    cores: str
    figure: str
    reference: str
    target: float
    of: str = ""
    unit: str = "µs"
    long: bool = False


def _pairs() -> list[Row]:
    rows = []
    for qos, target in ((0, 1.3), (1, 1.5), (2, 1.25)):
        rows.append(
            Row(
                f"pairs 50:50, 64 B, own writes, QoS {qos}",
                f"pair50 q{qos} 64B batch=no",
                SAME_CORE,
                CPU,
                "floor",
                target,
            )
        )
    for size, targets in ((64, (2, 1.2, 1.2)), (1024, (1.5, 1.2, 1.2))):
        for qos, target in enumerate(targets):
            rows.append(
                Row(
                    f"pairs 50:50, {size} B, coalesced, QoS {qos}",
                    f"pair50 q{qos} {size}B batch=yes",
                    OWN_CORES,
                    CPU,
                    "floor",
                    target,
                )
            )
    return rows


def _fan_out() -> list[Row]:
    rows = []
    for count in (100, 1000):
        for reference, target in (("floor", 1.2), ("mosquitto", 0.06)):
            rows.append(
                Row(f"fan-out 1 to {count}, 64 B, QoS 0", f"fanout 1>{count} q0 64B", OWN_CORES, CPU, reference, target)
            )
    rows.append(Row("fan-out 1 to 100, 64 B, QoS 1", "fanout 1>100 q1 64B", OWN_CORES, CPU, "mosquitto", 0.5))
    return rows


ROWS = [
    *_pairs(),
    *_fan_out(),
    Row("fan-in 100 to 1 (wildcard), 64 B", "fanin 100>1 q0 64B", SAME_CORE, CPU, "floor", 1.25),
    Row("10,000 wildcard filters, random topics", "wild 10k filters q0 64B", OWN_CORES, CPU, "mosquitto", 0.08),
    Row("100,000 wildcard filters, random topics", "wild 100k filters q0 64B", OWN_CORES, CPU, "mosquitto", 0.12),
    Row("publish only, 25 clients x 1,000, 1 KiB", "pubonly 25x1000 1024B", OWN_CORES, CPU, "floor", 1.3),
    Row("publish only, 25 clients x 1,000, 4 KiB", "pubonly 25x1000 4096B", OWN_CORES, CPU, "floor", 1.4),
    # A percentile of few messages is chance, and so little CPU time is counted in hundredths of a second.
    *(
        Row(f"5,000 msg/s QoS 1, one at a time: {name}", "rate 5k/s q1 64B", OWN_CORES, key, "floor", target, long=True)
        for name, key, target in (
            ("CPU", CPU, 1.3),
            ("p50", "p50_us", 1.3),
            ("p99", "p99_us", 1.5),
            ("p99.9", "p999_us", 2),
        )
    ),
    Row("connect, CONNACK, close: CPU", "connect 5000", OWN_CORES, CPU, "floor", 3),
    Row(
        "memory per idle connection (10,000 held)",
        "idle 10000",
        OWN_CORES,
        "rss_bytes_per_conn",
        "",
        1536,
        unit="bytes",
    ),
    Row(
        "memory per idle connection with one subscription",
        "idle+sub 10000",
        OWN_CORES,
        "rss_bytes_per_conn",
        "",
        2048,
        unit="bytes",
    ),
    *(
        Row(
            f"MQTT 5.0 against 3.1.1, pairs, own writes, QoS {qos}",
            f"v5 pair50 q{qos} 64B",
            SAME_CORE,
            CPU,
            "shoal",
            1.2,
            of=f"pair50 q{qos} 64B batch=no",
        )
        for qos in (0, 1, 2)
    ),
]
