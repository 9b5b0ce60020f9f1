"""`python -m tests.tools.soak.kill --seconds 600 --rate 5000`: kill -9 every few seconds under load, and a verdict.

Durable publishers and subscribers of 5.0 and 3.1.1 at QoS 1 and 2, a group, retained messages and wills go on over the
deaths of the broker. With several workers, one is stopped for some seconds now and then (SIGSTOP), and the broker may
come back with another number of them. Readers on all workers look whether retained messages go back. At the end nothing
that was acknowledged may be missing, nothing may have come twice at QoS 2 or out of order, and no session may have been
lost.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import trio

from tests.support.certificates import certificates
from tests.support.process import BrokerProcess
from tests.tools.soak.kill_loads import Cast, Scene, read_retained
from tests.tools.soak.retained_readers import readers

PUBLISHERS = 16
CATCH_UP_S = 120.0
STOPPED_S = 5.0  # a worker, at most: longer than its peers wait for it
SETTINGS = {
    "SHOAL_MQTT__QUEUE_MESSAGES_MAX": "10000000",
    "SHOAL_MQTT__QUEUE_BYTES_MAX": str(1 << 38),
    "SHOAL_PROCESSES__RESTARTS_MAX": "1000",
}


class Killer:
    """Starts the broker, and ends it in every way but a loss of power.

    Args:
        every_s: between two ends, on the average; 0: it is let live, to see that the clients are right.
        workers: that it has; with several, mostly one of them is killed, and the others go on.
    """

    def __init__(self, scene: Scene, broker: BrokerProcess, every_s: float, workers: int = 1) -> None:
        self.scene = scene
        self.broker = broker
        self.every_s = every_s
        self.workers = workers
        self.draw = scene.draw("killer")
        self.restarts_s: list[float] = []

    async def start(self) -> None:
        """Start it; it must be ready in time."""
        begun = time.monotonic()
        await trio.to_thread.run_sync(self.broker.start)
        self.restarts_s.append(time.monotonic() - begun)
        self.scene.starts += 1
        self.scene.port = self.broker.ports["tls"] if self.scene.context is not None else self.broker.port

    async def start_and_kill(self, after_s: float) -> None:
        """Kill it while it recovers, or shortly after."""
        before = self.broker.process
        begun = trio.Event()

        async def begin() -> None:
            try:
                await trio.to_thread.run_sync(self.broker.start)
            except AssertionError:
                pass  # killed before it was ready
            begun.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin)
            while self.broker.process is before:  # noqa: ASYNC110  (a thread sets it)
                await trio.sleep(0.001)
            await self.scene.rest(after_s, begun)
            assert self.broker.process is not None
            self.broker.process.kill()
            await begun.wait()
        assert self.broker.process is not None
        assert self.broker.process.stdout is not None
        self.broker.process.wait()
        self.broker.process.stdout.close()
        self.scene.counts["kills while it recovered"] += 1

    def end(self, how: Callable[[], object]) -> None:
        """Let it end."""
        self.scene.port = 0
        how()
        assert self.broker.process is not None
        assert self.broker.process.stdout is not None
        self.broker.process.stdout.close()

    def any_worker(self) -> int | None:
        """Return a worker's process; None if the one that was killed last is not there again yet, or there is one."""
        assert self.broker.process is not None
        if self.broker.options[-1] == "1":
            return None
        pid = self.broker.process.pid
        workers = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        return int(self.draw.choice(workers)) if workers else None

    def kill_worker(self) -> None:
        """Kill one worker; the supervisor starts it again."""
        pid = self.any_worker()
        if pid is not None:
            self.scene.starts += 1
            os.kill(pid, signal.SIGKILL)
            self.scene.counts["kills of a worker"] += 1

    async def stop_worker(self) -> None:
        """Stop one worker, and let it go on after a while; it may be killed meanwhile."""
        pid = self.any_worker()
        if pid is None:
            return
        os.kill(pid, signal.SIGSTOP)
        self.scene.counts["stops of a worker"] += 1
        try:
            await self.scene.rest(self.draw.uniform(0.5, STOPPED_S), self.scene.over)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def draw_workers(self) -> None:
        """Begin with another number of workers the next time, perhaps."""
        if self.workers > 1 and self.draw.random() < 0.3:
            number = self.draw.randint(1, self.workers)
            self.scene.counts["starts with a number of workers drawn anew"] += 1
            self.broker.options = (*self.broker.options[:-1], str(number))

    async def run(self, cast: Cast, seconds: float) -> None:
        """Kill and start until the time is up; it runs at the end."""
        scene, draw = self.scene, self.draw
        if not self.every_s:
            await scene.rest(seconds, scene.over)
            return
        end_s = trio.current_time() + seconds
        async with trio.open_nursery() as nursery:
            while trio.current_time() < end_s and not scene.over.is_set():
                await scene.rest(
                    min(draw.uniform(0.3, 2 * self.every_s - 0.3), end_s - trio.current_time()), scene.over
                )
                assert self.broker.process is not None
                if (code := self.broker.process.poll()) is not None:
                    scene.fault(f"the broker ended by itself with exit code {code}")
                    return
                if self.workers > 1 and draw.random() < 0.4:
                    nursery.start_soon(self.stop_worker)
                    continue
                if self.workers > 1 and draw.random() < 0.75:
                    self.kill_worker()
                    continue
                if draw.random() < 0.1:
                    scene.port = 0
                    await trio.to_thread.run_sync(self.broker.stop)
                    self.end(lambda: None)
                    scene.counts["orderly stops"] += 1
                else:
                    self.end(self.broker.kill)
                    scene.counts["kills"] += 1
                self.draw_workers()
                while draw.random() < 0.15:
                    await self.start_and_kill(draw.uniform(0.0, 1.2 * self.restarts_s[-1]))
                await self.start()
                nursery.start_soon(read_retained, scene, cast.retainers)


async def kill_again_and_again(
    broker: BrokerProcess,
    seconds: float,
    rate: float,
    every_s: float,
    seed: int,
    publishers: int,
    workers: int,
    context: ssl.SSLContext | None,
) -> list[str]:
    """Run it all; returns what was wrong, in words."""
    scene = Scene(seed, rate, context=context)
    killer = Killer(scene, broker, every_s, workers)
    cast = Cast(scene, publishers)
    await killer.start()
    begun_s = time.monotonic()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cast.play)
        for reader in readers(scene, cast.retainers):
            nursery.start_soon(reader.run)
        await scene.ready.wait()
        await killer.run(cast, seconds)
        loaded_s = time.monotonic() - begun_s
        scene.over.set()
        await cast.catch_up(CATCH_UP_S)
        if not scene.done.is_set():
            await read_retained(scene, cast.retainers)
        caught_up_s = time.monotonic() - begun_s - loaded_s
        scene.done.set()
    print(
        f"{loaded_s:.0f} s of load, {scene.counts['messages acknowledged'] / loaded_s:.0f} messages/s acknowledged, "
        f"caught up with in {caught_up_s:.1f} s"
    )
    for name, count in sorted(scene.counts.items()):
        print(f"{count:10} {name}")
    restarts_s = killer.restarts_s[1:] or killer.restarts_s
    print(
        f"start until ready: {killer.restarts_s[0]:.2f} s the first time, then {statistics.median(restarts_s):.2f} s "
        f"(median), {max(restarts_s):.2f} s (longest)"
    )
    return scene.faults


def run(
    folder: Path,
    *,
    seconds: float,
    rate: float,
    every_s: float,
    seed: int,
    publishers: int = PUBLISHERS,
    settings: dict[str, str] | None = None,
    workers: int = 1,
    tls: bool = False,
) -> list[str]:
    """Start a broker in a folder, kill it again and again; returns what was wrong, in words. Prints what was done."""
    options = ["--config", str(_with_tls(folder))] if tls else []
    broker = BrokerProcess(
        folder,
        "--log-level",
        "warning",
        *options,
        "--workers",
        str(workers),
        environment={**SETTINGS, **(settings or {})},
    )
    context = certificates().client_context() if tls else None
    try:
        faults = trio.run(kill_again_and_again, broker, seconds, rate, every_s, seed, publishers, workers, context)
        assert broker.process is not None
        if broker.process.poll() is None:
            broker.stop()
    finally:
        if broker.process is not None:
            if broker.process.poll() is None:
                broker.kill()
            if broker.process.stdout is not None:
                broker.process.stdout.close()
    size = sum(file.stat().st_size for file in (folder / "data").rglob("*") if file.is_file())
    print(f"{size / 1e6:.1f} MB in the data folder")
    errors = [
        line
        for line in broker.errors.read_text(errors="replace").splitlines()
        if ('"level":"error"' in line and "SIGKILL" not in line) or "Traceback" in line
    ]
    for line in errors[:5]:
        faults.append(f"the broker logged: {line[:500]}")
        print(f"FAULT: {faults[-1]}")
    return faults


def _with_tls(folder: Path) -> Path:
    """Return a file with the settings of a broker that has a listener with TLS, too."""
    certificate, key = certificates().server
    settings = folder / "tls.toml"
    settings.write_text(f'[[listener]]\naddress = "tls://127.0.0.1:0"\ncertfile = "{certificate}"\nkeyfile = "{key}"\n')
    return settings


def main() -> None:
    """Run, and say what came of it; the exit code is 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.soak.kill", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=5000.0, help="messages published in a second")
    parser.add_argument("--every", type=float, default=4.0, help="seconds between two kills, on the average")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tls", action="store_true", help="all clients connect with TLS")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--set", action="append", default=[], metavar="SHOAL_...=VALUE", help="a setting of the broker")
    arguments = parser.parse_args()
    seed = random.randrange(1 << 31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        faults = run(
            Path(folder),
            seconds=arguments.seconds,
            rate=arguments.rate,
            every_s=arguments.every,
            seed=seed,
            settings=dict(setting.split("=", 1) for setting in arguments.set),
            workers=arguments.workers,
            tls=arguments.tls,
        )
    print(f"make soak-kill: {arguments.seconds:g} s, seed {seed}: {'FAILED' if faults else 'held'}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
