"""The servers of one table of the settings, which know the same clients: who is asked, and who is left alone."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import trio

from broker.auth.http_client import HttpAnswer, HttpClient, HttpError
from broker.config.http_table import shown_url
from broker.config.start_error import StartError

if TYPE_CHECKING:
    from broker.auth.http_contracts import Question

FAILURES_MAX: Final = 5  # one after the other, after which a server is left alone for a while
LEFT_ALONE_S: Final = (1.0, 30.0)  # the first time and at most

Said = TypeVar("Said")


class Settings(Protocol):
    """What a table says of its servers."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Of all of them."""

    @property
    def timeout_s(self) -> float:
        """For one answer."""

    @property
    def connections_max(self) -> int:
        """To one server at once."""

    @property
    def authorization_file(self) -> str | None:
        """With what is sent as Authorization."""

    @property
    def cafile(self) -> str | None:
        """Who signs their certificates."""


@dataclass(slots=True)
class Endpoint:
    """One server, and whether it answers.

    Attributes:
        failures: one after the other.
        left_alone_until_s: trio's clock.
    """

    url: str
    client: HttpClient
    failures: int = 0
    left_alone_until_s: float = 0.0

    def failed(self) -> None:
        """It has not answered, or not as it should; of several questions at the same time it counts once a pause."""
        if trio.current_time() < self.left_alone_until_s:
            return
        self.failures += 1
        if self.failures >= FAILURES_MAX:
            pause_s = min(LEFT_ALONE_S[0] * 2 ** (self.failures - FAILURES_MAX), LEFT_ALONE_S[1])
            self.left_alone_until_s = trio.current_time() + pause_s


class HttpServers:
    """Asks the first server that answers. One that fails again and again is left alone for a while.

    Args:
        where: the table, such as "authenticator 2".
        settings: what it says.
        failed: called with a URL, and why there was no answer, in words that hold nothing of what was asked.

    Raises StartError: a file cannot be used.

    Attributes:
        asked, failures: how often a server was asked, and has not answered.
    """

    def __init__(self, where: str, settings: Settings, failed: Callable[[str, HttpError], None]) -> None:
        self.asked = self.failures = 0
        self._where = where
        self._settings = settings
        self._failed = failed
        self._authorization: tuple[tuple[str, str], ...] = ()
        try:
            self._endpoints = [
                Endpoint(
                    url,
                    HttpClient(
                        url,
                        timeout_s=settings.timeout_s,
                        connections_max=settings.connections_max,
                        answer_bytes_max=65_536,
                        cafile=settings.cafile,
                    ),
                )
                for url in settings.urls
            ]
        except (OSError, ssl.SSLError) as error:
            raise StartError(f"{where}: The file {settings.cafile} cannot be used: {error.strerror}.") from error
        self.use(self.read())

    @property
    def files(self) -> list[str]:
        """What asking rests on."""
        return [] if self._settings.authorization_file is None else [self._settings.authorization_file]

    @property
    def trouble(self) -> str | None:
        """Which of them have not answered last time."""
        return ", ".join(shown_url(one.url) for one in self._endpoints if one.failures) or None

    def read(self) -> str | None:
        """Read what is sent as Authorization. From any thread. Raises StartError."""
        file = self._settings.authorization_file
        if file is None:
            return None
        try:
            text = Path(file).read_text(encoding="ascii").strip()
        except OSError as error:
            raise StartError(f"{self._where}: The file {file} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError:
            text = ""
        if not text or not text.isprintable():
            raise StartError(f"{self._where}: The file {file} cannot be used: expected one line such as Bearer TOKEN.")
        return text

    def use(self, found: str | None) -> None:
        """From now on, send this as Authorization."""
        self._authorization = () if found is None else (("Authorization", found),)

    async def run(self) -> None:
        """Wait for the end, and close the connections then."""
        try:
            await trio.sleep_forever()
        finally:
            for endpoint in self._endpoints:
                await endpoint.client.aclose()

    async def ask(
        self, question: Question, read: Callable[[HttpAnswer], Said]
    ) -> tuple[Said, Mapping[str, str]] | None:
        """Return what a server has answered, and its headers; None: none answers.

        Args:
            read: returns what an answer says; raises HttpError for what is none.
        """
        for endpoint in self._in_order():
            self.asked += 1
            try:
                answer = await endpoint.client.ask("POST", question.body, (*question.headers, *self._authorization))
                said = read(answer)
            except HttpError as error:
                self.failures += 1
                endpoint.failed()
                self._failed(shown_url(endpoint.url), error)
                continue
            endpoint.failures = 0
            return said, answer.headers
        return None

    def _in_order(self) -> list[Endpoint]:
        """Return those who are not left alone, the ones that answered last time first."""
        now_s = trio.current_time()
        able = [one for one in self._endpoints if one.failures < FAILURES_MAX or one.left_alone_until_s <= now_s]
        return sorted(able, key=lambda one: one.failures > 0)
