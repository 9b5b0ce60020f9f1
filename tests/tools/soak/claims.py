"""`python -m tests.tools.soak.claims --count 1000`: two clients claim one identifier at the same instant, often.

Each time both are let in, one after the other; one owns the session at the end, and the other is told that it was taken
over. They come to whichever worker the system puts them, and the identifier lives on any.
"""

from __future__ import annotations

import argparse
import select
import sys
import tempfile
from collections import Counter
from pathlib import Path

from broker.wire.packets import Connack, Disconnect, Pingreq, Pingresp
from broker.wire.reasons import Reason
from tests.support.raw_client import TIMEOUT_S, RawClient
from tests.support.workers import Workers


def claim(port: int, name: str, *, keep: bool) -> str:
    """Have two clients claim a name; returns what was wrong, "" if nothing was."""
    with RawClient(port) as one, RawClient(port) as two:
        both = one, two
        words = [client.connect_bytes(name, keep=keep) for client in both]
        for client, data in zip(both, words, strict=True):
            client.socket.sendall(data)
        for client in both:
            answer = client.read()
            if not isinstance(answer, Connack) or answer.reason:
                return f"{name}: {answer} instead of a CONNACK"
            client.send(Pingreq())
        said = [list[object](), list[object]()]
        # The one is told, in front of or behind its PINGRESP, and its connection ends.
        while not any(None in packets for packets in said):
            waiting = [client for client in both if client.has_packet] or [
                client
                for client in both
                if client.socket in select.select([client.socket for client in both], [], [], TIMEOUT_S)[0]
            ]
            if not waiting:
                return f"{name}: both are left: {said}"
            for client in waiting:
                said[both.index(client)].append(client.read())
        owner, loser = both if None in said[1] else (two, one)
        lost, kept = said[both.index(loser)], said[both.index(owner)]
        if lost[-2:] != [Disconnect(Reason.SESSION_TAKEN_OVER), None]:
            return f"{name}: who lost was told {lost}"
        owner.send(Pingreq())
        while len(kept) < 2:
            kept.append(owner.read())
        return "" if kept == [Pingresp()] * 2 else f"{name}: the owner was told {kept}"


def claims(port: int, count: int) -> list[str]:
    """Have so many names claimed; returns what was wrong."""
    faults = [claim(port, f"claimed-{number}", keep=number % 2 == 0) for number in range(count)]
    return [fault for fault in faults if fault]


def main() -> None:
    """Run, and say what came of it; the exit code is 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.soak.claims", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Workers(Path(folder), arguments.workers) as broker:
        faults = claims(broker.port, arguments.count)
    for what, times in Counter(faults).items():
        print(f"FAULT: {what} ({times})")
    print(f"{arguments.count} names claimed twice: {'FAILED' if faults else 'held'}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
