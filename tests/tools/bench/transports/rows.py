"""What is measured, of whom, beside what, and the ratio that is aimed at."""

from __future__ import annotations

from dataclasses import dataclass

TCP, TLS, WEBSOCKET, UNIX = WAYS = ("tcp", "tls", "ws", "unix")
CPU, MEMORY = "broker_cpu_us_per_msg", "rss_bytes_per_conn"
FLOOR, MOSQUITTO, SHOAL = "floor", "mosquitto", "shoal"
AT_HOME, ELSEWHERE = "at home", "elsewhere"  # of two workers: a client lives where it came to, or on the other
PAIRS = ("pair", "-n", "50", "--credit", "100")
CLIENTS = 100  # of PAIRS
FAN_OUT = ("fanout", "-n", "100", "-s", "64", "--credit", "100")
CONNECT = ("connect",)
HOLD = ("connect", "--hold", "1")
SAME_CORE, OWN_CORES, ANY_CORES = "one core", "two cores", "both workers"


@dataclass(frozen=True, slots=True)
class Load:
    """A run of the load generator.

    Attributes:
        arguments: its own, without how long or how many.
        way: of WAYS, how its clients come in.
        cores: SAME_CORE: broker and generator share one; OWN_CORES: one each; ANY_CORES: as the system likes.
        resumed: its clients resume a TLS session.
    """

    arguments: tuple[str, ...]
    way: str
    cores: str
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table.

    Attributes:
        text: as a reader sees it.
        load: that Shoal is under.
        reference: broker that is under the same load, or under `of`; "" for an absolute figure.
        target: at most this ratio, or this figure in `unit`; None: it is only shown.
        figure: key of the generator's result.
        broker: of Shoal's, the one that is measured.
    """

    text: str
    load: Load
    reference: str
    target: float | None
    of: Load | None = None
    figure: str = CPU
    unit: str = "µs"
    broker: str = SHOAL

    @property
    def sides(self) -> tuple[tuple[str, Load], ...]:
        """Who is measured under which load: ours first, then what it is compared with."""
        ours = (self.broker, self.load)
        return (ours, (self.reference, self.of or self.load)) if self.reference else (ours,)


def pairs(way: str, size: int, qos: int, coalesced: bool, cores: str) -> Load:
    """Return fifty publishers with a subscriber each, who share writes between packets or not."""
    return Load((*PAIRS, "-s", str(size), "-q", str(qos), "-b", "yes" if coalesced else "no"), way, cores)


def _tls_rows() -> list[Row]:
    rows = []
    for coalesced, name, cores, floor, mosquitto in (
        (True, "coalesced", OWN_CORES, 1.4, 0.25),
        (False, "own writes", SAME_CORE, 1.3, 0.9),
    ):
        for size in (64, 1024):
            for qos in (0, 1):
                load = pairs(TLS, size, qos, coalesced, cores)
                rows += [
                    Row(f"TLS, pairs 50:50, {size} B, {name}, QoS {qos}", load, reference, target)
                    for reference, target in ((FLOOR, floor), (MOSQUITTO, mosquitto))
                ]
    rows.append(Row("TLS, fan-out 1 to 100, 64 B, QoS 0", Load(FAN_OUT, TLS, OWN_CORES), FLOOR, 1.3))
    rows += [
        Row(f"TLS, {name} handshake, CONNECT, CONNACK, close", Load(CONNECT, TLS, OWN_CORES, resumed), FLOOR, 1.15)
        for name, resumed in (("full", False), ("resumed", True))
    ]
    return rows


def _memory_rows() -> list[Row]:
    text, load = "TLS, resident memory per idle connection", Load(HOLD, TLS, OWN_CORES)
    return [
        Row(text, load, reference, target, figure=MEMORY, unit="bytes")
        for reference, target in ((MOSQUITTO, 0.6), (FLOOR, None), ("", 8192))
    ]


def _other_rows() -> list[Row]:
    rows = []
    for way, name, targets in ((WEBSOCKET, "WebSocket", (1.5, 1.15)), (UNIX, "Unix socket", (1.0, 1.0))):
        for coalesced, target in zip((True, False), targets, strict=True):
            cores = OWN_CORES if coalesced else SAME_CORE
            text = f"{name}, pairs 50:50, 64 B, {'coalesced' if coalesced else 'own writes'}, QoS 0"
            load, plain = (pairs(which, 64, 0, coalesced, cores) for which in (way, TCP))
            rows.append(Row(text, load, SHOAL, target, of=plain))
            rows.append(Row(text, load, FLOOR, None))
    relayed = pairs(TLS, 64, 0, False, ANY_CORES)
    # Last: nothing else is measured beside these workers.
    rows.append(
        Row(
            "TLS, pairs, 64 B, own writes, QoS 0, the clients' home is the other worker",
            relayed,
            AT_HOME,
            1.5,
            broker=ELSEWHERE,
        )
    )
    return rows


ROWS = [*_tls_rows(), *_memory_rows(), *_other_rows()]
