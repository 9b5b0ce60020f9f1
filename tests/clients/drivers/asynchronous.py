"""An asyncio loop in a thread, for the libraries that want one."""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any

from tests.clients.drivers.base import ANSWER_TIMEOUT_S, Driver


class AsynchronousDriver(Driver):
    """A driver with a loop of its own: `run` runs a coroutine in it and waits for its result."""

    def __init__(self, port: int, version: int, over: str = "tcp") -> None:
        super().__init__(port, version, over)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(coroutine, ANSWER_TIMEOUT_S), self.loop).result(
            ANSWER_TIMEOUT_S + 5
        )

    def close(self) -> None:
        self.run(self.close_client())
        asyncio.run_coroutine_threadsafe(self._end_tasks(), self.loop).result(ANSWER_TIMEOUT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(ANSWER_TIMEOUT_S)
        self.loop.close()

    @abstractmethod
    async def close_client(self) -> None:
        """Let go of the client, in whatever state its connection is."""

    async def _end_tasks(self) -> None:
        """End what the library left running in the loop, so that nothing is destroyed while it is pending."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
