"""What is answered on `[http] listen`: health and metrics to all who reach it, /api/v1 to those who may."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from broker.admin.health import Health
from broker.admin.openapi import PREFIX
from broker.admin.rest import Api

if TYPE_CHECKING:
    from broker.admin.backend import Backend
    from broker.admin.pagination import QueryError
    from broker.admin.requests import Admitted, Head, Text
    from broker.config.loader import Config


class PublicSite:
    """Health and metrics, and the API."""

    def __init__(self, backend: Backend, config: Config) -> None:
        self._health = Health(backend, config.workers)
        self._api = Api(backend, config.http)
        self.health_paths = self._health.health_paths

    async def admit(self, head: Head) -> Admitted:
        """Decide on a request before its body is read. Raises QueryError."""
        return await self._part_of(head.path).admit(head)

    def refusal(self, target: str, error: QueryError) -> Text:
        """Return what is answered to a request that is refused."""
        return self._part_of(target.partition("?")[0]).refusal(target, error)

    def _part_of(self, path: str) -> Api | Health:
        return self._api if path == PREFIX or path.startswith(f"{PREFIX}/") else self._health

    async def keep_house(self) -> None:
        """Do what is to be done now and then, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._health.keep_house)
            nursery.start_soon(self._api.keep_house)
