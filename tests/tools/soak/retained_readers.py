"""Readers of retained messages on all workers, who subscribe again and again: nothing that they see goes back."""

from __future__ import annotations

import trio

from tests.support.client_session import ClientSession
from tests.tools.soak.kill_loads import TRY_AGAIN_S, Actor, Retainer, Scene

READERS = 9  # by name, which says where they live: with three workers, mostly three on each
STAYS_S = 3.0
ASKS_AGAIN_S = 0.5


class RetainedReader(Actor):
    """Comes with a session of its own, subscribes, subscribes again, and goes."""

    def __init__(self, scene: Scene, name: str, version: int, retainers: list[Retainer]) -> None:
        super().__init__(scene, ClientSession(name, version, on_message=self.on_message, session_expiry_s=0))
        self.retainers = retainers
        self.highest: dict[bytes, int] = {}
        self.at_least: dict[bytes, int] = {}  # what was acknowledged before the first SUBSCRIBE of the connection

    def on_message(self, topic: bytes, payload: bytes, qos: int, retain: bool, dup: bool) -> None:
        """A message: not behind one that was seen."""
        scene = self.scene
        scene.counts["retained messages seen"] += 1
        if not payload:
            return
        number = int(payload)
        if retain and number < self.at_least.get(topic, 0):
            scene.fault(
                f"{self.session.identifier}: {topic!r} has {number} retained, {self.at_least[topic]} was"
                " acknowledged before"
            )
        sent_again = any((topic, number) in retainer.sent_again for retainer in self.retainers)
        if number < self.highest.get(topic, 0) and not sent_again:
            scene.fault(
                f"{self.session.identifier}: {topic!r} went back from {self.highest[topic]} to {number}"
                f"{', which is retained' if retain else ''}"
            )
        self.highest[topic] = max(self.highest.get(topic, 0), number)

    def on_connected(self) -> None:
        """Subscribe."""
        super().on_connected()
        self.at_least = {
            topic: number for retainer in self.retainers for topic, number in retainer.acknowledged.items()
        }
        self.session.subscribed.clear()
        self.session.subscribe("retained/#", 1)

    async def ask_again(self) -> None:
        """Subscribe again while it is connected."""
        draw = self.scene.draw(f"{self.session.identifier} asks")
        while True:
            await trio.sleep(draw.expovariate(1 / ASKS_AGAIN_S))
            if self.session.connected and "retained/#" in self.session.subscribed:
                self.session.subscribed.clear()
                self.session.subscribe("retained/#", 1)
                self.scene.counts["subscriptions asked for again"] += 1
                self.push()

    async def run(self) -> None:
        """Come and go until it is over."""
        scene, draw = self.scene, self.scene.draw(self.session.identifier)
        await scene.ready.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.ask_again)
            while not scene.over.is_set():
                if await self.stay(draw.expovariate(1 / STAYS_S), leave=scene.over) == "refused":
                    await scene.rest(TRY_AGAIN_S, scene.over)
            nursery.cancel_scope.cancel()


def readers(scene: Scene, retainers: list[Retainer]) -> list[RetainedReader]:
    """Return the readers of a scene."""
    return [RetainedReader(scene, f"reader{number}", 4 + number % 2, retainers) for number in range(READERS)]
