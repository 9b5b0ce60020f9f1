"""Keys of tokens that an issuer publishes at a URL, a JWK Set, and changes when it likes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

import trio

from broker.auth.http_client import HttpClient, HttpError
from broker.auth.token_keys import Key, UnusableKeyError, keys_of_set
from broker.logs import get

log = get("tokens")

ASK_AGAIN_S: Final = 10.0  # between two looks for a key that is not known: clients can make up names of keys
RETRY_S: Final = (1.0, 60.0)  # after a look in vain, the first time and at most


class KeySource:
    """Looks for keys from time to time, and when a token names one that is not known.

    What was found stays in use until something else is found: an issuer that is away for an hour keeps nobody out who
    has a token.

    Args:
        number: of the [[authenticator]] table, from 1.
        client: of the URL.
        allowed: algorithms.
        refresh_s: between two looks.
        found: is called with the keys when they are others than before.

    Attributes:
        keys: those found last.
        error: why the last look was in vain, in one sentence; None: it was not.
        has_found: whether keys were found ever.
    """

    def __init__(
        self, number: int, client: HttpClient, allowed: Sequence[str], refresh_s: float, found: Callable[[], None]
    ) -> None:
        self.keys: list[Key] = []
        self.error: str | None = None
        self.has_found = False
        self._number = number
        self._client = client
        self._allowed = allowed
        self._refresh_s = refresh_s
        self._found = found
        self._seen = b""
        self._looked_s = -float("inf")  # when the last look began, trio's clock
        self._looking = trio.Lock()
        self._asked = trio.Event()

    async def run(self) -> None:
        """Look from time to time. Runs until cancelled."""
        retry_s = RETRY_S[0]
        while True:
            self._asked = trio.Event()
            async with self._looking:
                await self._look()
            if self.error is None:
                # Not all workers, and all brokers, at the same moment.
                wait_s, retry_s = self._refresh_s * random.uniform(0.9, 1.0), RETRY_S[0]
            else:
                wait_s, retry_s = retry_s, min(2 * retry_s, RETRY_S[1])
            with trio.move_on_after(wait_s):
                await self._asked.wait()

    async def aclose(self) -> None:
        """Close the connection to the issuer."""
        await self._client.aclose()

    def look_soon(self) -> None:
        """Look now: an operator wants it."""
        self._asked.set()

    def may_have_news(self) -> bool:
        """Return whether a look now could find what is not known."""
        return self._looking.locked() or trio.current_time() - self._looked_s >= ASK_AGAIN_S

    async def look(self) -> None:
        """Look for a key that is not known, or wait for a look that is under way."""
        came_s = trio.current_time()
        async with self._looking:
            if came_s - self._looked_s >= ASK_AGAIN_S:
                await self._look()

    async def _look(self) -> None:
        self._looked_s = trio.current_time()
        try:
            answer = await self._client.ask(headers=[("Accept", "application/jwk-set+json, application/json")])
            if answer.status != 200:
                raise HttpError(f"answered {answer.status}, expected 200")
            if answer.body != self._seen:
                self.keys = keys_of_set(answer.body, self._allowed)
                self._seen = answer.body
                self._found()
                log.info("token_keys_found", authenticator=self._number, keys=len(self.keys))
        except (HttpError, UnusableKeyError) as error:
            self.error = f"found {error}" if isinstance(error, UnusableKeyError) else str(error)
            log.warning("token_keys_not_found", authenticator=self._number, what=self.error, in_use=len(self.keys))
        else:
            self.error = None
            self.has_found = True
