"""What can be set for the HTTP endpoint, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from broker.config.listener import http_address

if TYPE_CHECKING:
    from broker.config.setting import Problem


class Http(Struct, frozen=True, kw_only=True):
    """Health and metrics over HTTP, for Prometheus, load balancers and Kubernetes; and an API for operators."""

    listen: Annotated[
        str | None,
        Meta(
            description="HOST:PORT, or a port, which is on this machine only; unset: none. Anyone who reaches it may "
            "read /metrics, /livez and /readyz.",
            examples=["127.0.0.1:9641"],
        ),
    ] = None
    certfile: Annotated[
        tuple[str, ...],
        Meta(
            description="Certificates with those that signed them, PEM, one file for each type of key; none given: "
            "HTTP without TLS. They are read again when they change."
        ),
    ] = ()
    keyfile: Annotated[
        tuple[str, ...], Meta(description="Private keys of these certificates, PEM, in the same order.")
    ] = ()
    administrators: Annotated[
        tuple[str, ...],
        Meta(
            description="User names that may do everything at /api/v1, as the authenticators know them. Without these, "
            "observers and groups of either there is no API."
        ),
    ] = ()
    administrator_groups: Annotated[
        tuple[str, ...], Meta(description="Groups, as authenticators say them, whose users may do everything there.")
    ] = ()
    observers: Annotated[
        tuple[str, ...],
        Meta(description="User names that may read everything there, payloads too, and change nothing."),
    ] = ()
    observer_groups: Annotated[
        tuple[str, ...], Meta(description="Groups whose users may read everything there, and change nothing.")
    ] = ()

    @property
    def is_asked_by_users(self) -> bool:
        """Whether there is an API."""
        return bool(self.administrators or self.administrator_groups or self.observers or self.observer_groups)


def http_problems(
    http: Http, has_authenticator: bool, problem: Callable[[str, Any, str], Problem]
) -> Iterator[Problem]:
    """Yield what is wrong though each value alone is in its range.

    Args:
        has_authenticator: there is one that can know users.
        problem: makes one of a key, what was found and what was expected.
    """
    if http.listen:
        try:
            http_address(http.listen)
        except ValueError as error:
            yield problem("http.listen", http.listen, str(error))
    elif http.certfile or http.is_asked_by_users:
        yield problem("http.listen", None, "an address: other settings of [http] are given")
    if len(http.certfile) != len(http.keyfile):
        yield problem("http.keyfile", list(http.keyfile), f"as many keys as certificates: {len(http.certfile)}")
    if http.is_asked_by_users and not has_authenticator:
        found = [*http.administrators, *http.administrator_groups, *http.observers, *http.observer_groups]
        yield problem("http.administrators", found, "an [[authenticator]] that knows these users")
