"""`python -m tests.tools.instructions [SCENARIO ...]`: instructions of a worker for a message or a visit.

Callgrind counts. A hub without sockets is driven by hand, so two runs of one version give the same figures, on a busy
machine too; system calls are not in them. To compare two versions, run this in both trees. What is counted of a message
is all that is done for it: parsing its packets and the acknowledgements to come, routing, encoding, its part of a turn.
Of a visit it is CONNECT, CONNACK, DISCONNECT and the end.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker import logs
from broker.config.loader import Log
from broker.wire.packets import Ack, Connect, Disconnect, Packet, Publish, Subscribe, encode, subscription
from broker.wire.properties import PacketType
from tests.support.doubles import FakeLog
from tests.support.process import ROOT
from tests.support.turned_hub import TurnedHub

FOLDER = ROOT / "build" / "instructions"
PACKETS = 50  # in one read
ROUNDS = 8  # that are counted, of PACKETS each
WARM = 4  # rounds before
MARKS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; }
void toggle(void) { CALLGRIND_TOGGLE_COLLECT; }
void dump(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
"""


class Load:
    """One publisher, some subscribers, and what they send for PACKETS messages, encoded before it is counted.

    Args:
        qos: of messages and subscriptions.
        receivers: subscribers of the topic.
        is_logged: subscribers have sessions that outlive their connections, and there is a log.
        version: of MQTT.
    """

    def __init__(self, qos: int, receivers: int = 1, is_logged: bool = False, version: int = 4) -> None:
        self.qos, self.version = qos, version
        self.log = FakeLog() if is_logged else None
        self.broker = TurnedHub(self.log)
        self.receivers = [
            self.broker.connect(b"r%d" % number, version, clean_start=not is_logged) for number in range(receivers)
        ]
        for receiver in self.receivers:
            receiver.send(Subscribe(1, (subscription(b"some/topic", qos),)))
        self.broker.turn(3)
        self.publisher = self.broker.connect(b"publisher", version)
        self.number = 0

    def encoded(self, packets: list[Packet]) -> bytes:
        """Return packets in one piece."""
        return b"".join(encode(packet, self.version) for packet in packets)

    def acknowledgements(self, packet_type: PacketType, first: int) -> bytes:
        """Return one for each of PACKETS identifiers."""
        return self.encoded([Ack(packet_type, first + number) for number in range(PACKETS)])

    def steps(self) -> list[tuple[list[Any], bytes]]:
        """Return who sends what, in order: a turn stands behind each."""
        first, self.number = 1 + self.number, self.number + PACKETS
        publisher = [self.publisher.connection]
        receivers = [receiver.connection for receiver in self.receivers]
        packets: list[Packet] = [
            Publish(b"some/topic", bytes(64), self.qos, packet_identifier=first + number)
            if self.qos
            else Publish(b"some/topic", bytes(64))
            for number in range(PACKETS)
        ]
        steps = [(publisher, self.encoded(packets))]
        if self.qos == 1:
            steps.append((receivers, self.acknowledgements(PacketType.PUBACK, first)))
        if self.qos == 2:
            steps.append((publisher, self.acknowledgements(PacketType.PUBREL, first)))
            steps.append((receivers, self.acknowledgements(PacketType.PUBREC, first)))
            steps.append((receivers, self.acknowledgements(PacketType.PUBCOMP, first)))
        return steps

    def round(self, toggle: Callable[[], None]) -> None:
        """Have PACKETS messages published and acknowledged, and that counted."""
        for senders, data in self.steps():
            toggle()
            for sender in senders:
                sender.feed_bytes(data)
            self.broker.hub.run_turn()
            toggle()
            if self.log is not None:
                self.log.sync()
                toggle()
                self.broker.hub.run_turn()
                toggle()
            for client in (self.publisher, *self.receivers):
                client.connection.take_output()


class Visits:
    """Clients that come and go, PACKETS of them at once."""

    def __init__(self, version: int) -> None:
        self.broker = TurnedHub(connects_per_second_max=0)
        self.connects = [
            encode(Connect(version, b"c%d" % number, keep_alive_s=60), version) for number in range(PACKETS)
        ]
        self.disconnect = encode(Disconnect(), version)

    def round(self, toggle: Callable[[], None]) -> None:
        """Have PACKETS clients come and go, and that counted."""
        connections = [self.broker.hub.connect() for _ in range(PACKETS)]
        for data in (self.connects, [self.disconnect] * PACKETS):
            toggle()
            for connection, packet in zip(connections, data, strict=True):
                connection.feed_bytes(packet)
            self.broker.turn()
            toggle()
            for connection in connections:
                connection.take_output()
        assert self.broker.hub.connection_count == 0


SCENARIOS: dict[str, Callable[[], Load | Visits]] = {
    "QoS 0": lambda: Load(0),
    "QoS 1": lambda: Load(1),
    "QoS 2": lambda: Load(2),
    "QoS 1, 5.0": lambda: Load(1, version=5),
    "QoS 0 to 20": lambda: Load(0, 20),
    "QoS 1 to 20": lambda: Load(1, 20),
    "QoS 1, logged": lambda: Load(1, is_logged=True),
    "QoS 2, logged": lambda: Load(2, is_logged=True),
    "visit": lambda: Visits(4),
    "visit, 5.0": lambda: Visits(5),
}


def inside(names: list[str]) -> None:
    """Go through the scenarios; this runs under callgrind."""
    logs.configure(Log(level="warning"))  # of a crowd, most have no line of their own
    marks = ctypes.CDLL(str(FOLDER / "marks.so"))
    marks.begin()
    for name in names:
        load = SCENARIOS[name]()
        for _ in range(WARM):
            load.round(lambda: None)
        for _ in range(ROUNDS):
            load.round(marks.toggle)
        marks.dump(name.encode())


def counted(names: list[str]) -> dict[str, float]:
    """Return instructions for one message, by scenario."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "marks.c").write_text(MARKS)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", FOLDER / "marks.so", FOLDER / "marks.c"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                "valgrind",
                "-q",
                "--tool=callgrind",
                "--instr-atstart=no",
                "--collect-atstart=no",
                f"--callgrind-out-file={folder}/out",
                sys.executable,
                "-m",
                "tests.tools.instructions",
                "--inside",
                *names,
            ],
            check=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdout=sys.stderr,
        )
        found = {}
        for path in Path(folder).iterdir():
            lines = path.read_text().splitlines()
            trigger = next((line for line in lines if line.startswith("desc: Trigger: Client Request: ")), None)
            if trigger is not None:
                total = next(line for line in reversed(lines) if line.startswith(("totals: ", "summary: ")))
                name = trigger.removeprefix("desc: Trigger: Client Request: ")
                found[name] = int(total.split()[1]) / (PACKETS * ROUNDS)
        return found


def main() -> None:
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2:])
        return
    if not shutil.which("valgrind"):
        sys.exit("valgrind is missing: apt-get install valgrind")
    names = sys.argv[1:] or list(SCENARIOS)
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        sys.exit(f"{unknown[0]!r} is none of the scenarios: {', '.join(SCENARIOS)}")
    found = counted(names)
    for name in names:
        print(f"{name:16}{found[name]:10.1f}")


if __name__ == "__main__":
    main()
