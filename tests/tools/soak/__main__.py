"""`python -m tests.tools.soak --minutes 30 [--seed 1]`: mixed load on one `shoal serve`, and a verdict.

Every ten seconds it prints what the broker's process holds. At the end memory must have been flat, no number may have
gone up all the time, nothing that was acknowledged may be missing, and when everybody has left nothing may be left.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

import trio

from tests.support.gauges import gauges
from tests.support.process import BrokerProcess
from tests.tools.bench import probes
from tests.tools.soak.loads import Soak, all_loads
from tests.tools.soak.verdict import what_grew

SAMPLE_S = 10.0
WARM_SHARE = 0.25  # of the time, before which nothing is judged
WARM_MIN_S = 60.0
LEFT_S = 90.0  # for sessions to expire when all clients have left
SETTINGS = {
    "SHOAL_MQTT__SESSION_EXPIRY_INTERVAL_MAX_S": "30",
    "SHOAL_MQTT__QUEUE_MESSAGES_MAX": "1000",
    "SHOAL_MQTT__QUEUE_BYTES_MAX": "1000000",
    "SHOAL_LIMITS__RETAINED_MESSAGES_MAX": "2000",
    "SHOAL_LIMITS__OUTPUT_BUFFER_BYTES_MAX": "262144",
    "SHOAL_LIMITS__CONNECT_TIMEOUT_S": "5",
}


class Samples:
    """What the process held, every few seconds."""

    def __init__(self, broker: BrokerProcess) -> None:
        assert broker.process is not None
        self.broker = broker
        self.pid = broker.process.pid
        self.started_s = time.monotonic()
        self.taken: list[dict[str, int]] = []

    async def take(self) -> dict[str, int]:
        """Take a sample, print it, and return it."""
        found = await trio.to_thread.run_sync(gauges, self.broker.port)
        found["resident KiB"] = probes.resident_kib(self.pid)
        found["descriptors"] = len(os.listdir(f"/proc/{self.pid}/fd"))
        found["second"] = int(time.monotonic() - self.started_s)
        self.taken.append(found)
        print(
            f"{found['second']:6} s {found['resident KiB'] / 1024:8.1f} MiB {found['descriptors']:5} files "
            f"{found['clients/total']:5} sessions {found['shoal/connections/open']:5} connections "
            f"{found['subscriptions/count']:5} subscriptions {found['shoal/queued/messages']:6} queued "
            f"{found['messages/inflight']:5} in flight {found['retained messages/count']:5} retained",
            flush=True,
        )
        return found


async def soak(broker: BrokerProcess, seconds: float, seed: int) -> list[str]:
    """Run the loads, look on, and return what was wrong."""
    samples = Samples(broker)
    state = Soak(broker.port, random.Random(seed))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(all_loads, state)
        while (left_s := seconds - (time.monotonic() - samples.started_s)) > 0:
            await trio.sleep(min(SAMPLE_S, left_s))
            await samples.take()
        state.over.set()
    print("the loads are over: " + ", ".join(f"{count} {name}" for name, count in sorted(state.counts.items())))
    faults = state.faults + what_grew(samples.taken, max(WARM_MIN_S, seconds * WARM_SHARE))
    deadline_s = time.monotonic() + LEFT_S
    while True:
        found = await samples.take()
        # The client that asks is still there.
        left = {
            name: found[name] - here
            for name, here in (
                ("clients/total", 1),
                ("shoal/connections/open", 1),
                ("subscriptions/count", 0),
                ("shared_subscriptions/count", 0),
                ("shoal/queued/messages", 0),
                ("messages/inflight", 0),
            )
            if (found[name] != here)
        }
        if not left:
            return faults
        if time.monotonic() > deadline_s:
            return [*faults, f"when everybody had left, there was left {left}"]
        await trio.sleep(SAMPLE_S)


def main() -> None:
    """Run, and say what came of it; the exit code is 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess(Path(folder), "--log-level", "warning", environment=SETTINGS)
        broker.start()
        try:
            faults = trio.run(soak, broker, arguments.minutes * 60, arguments.seed)
        except Exception:
            traceback.print_exc()
            faults = ["a load failed, see above"]
        assert broker.process is not None
        if broker.process.poll() is not None:
            faults.append(f"the broker ended with exit code {broker.process.returncode}")
        else:
            broker.stop()
        errors = [
            line
            for line in broker.errors.read_text(errors="replace").splitlines()
            if '"level":"error"' in line or "Traceback" in line
        ]
        faults += [f"the broker logged: {line[:500]}" for line in errors[:5]]
        if broker.process.stdout is not None:
            broker.process.stdout.close()
    for fault in faults:
        print(f"FAULT: {fault}")
    print(f"make soak: {arguments.minutes:g} minutes, seed {arguments.seed}: {'FAILED' if faults else 'held'}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
