"""What can be set for servers that are asked over HTTP, whatever they are asked."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

Urls = Annotated[
    tuple[str, ...],
    Meta(
        min_length=1,
        description="Of servers that know the same clients: the first is asked; if it does not answer, the next.",
        examples=[["https://auth.example.org/login"]],
    ),
]
Contract = Annotated[
    Literal["shoal", "emqx", "vernemq", "mosquitto-go-auth", "rabbitmq"],
    Meta(description="What is asked and answered: ours, or that of another broker or plugin."),
]
TimeoutS = Annotated[float, Meta(ge=0.1, le=60, description="Time that one server has for its answer.")]
ConnectionsMax = Annotated[int, Meta(ge=1, le=256, description="Connections to one server at once, in each worker.")]
CacheS = Annotated[
    float,
    Meta(
        ge=0,
        le=86_400,
        description="Time for which an answer counts that does not say it itself, by Cache-Control: max-age.",
    ),
]
StaleS = Annotated[
    float,
    Meta(
        ge=0,
        le=604_800,
        description="Time after that for which it counts if no server answers, unless it says it itself, by "
        "stale-if-error.",
    ),
]
AuthorizationFile = Annotated[
    Annotated[str, Meta(min_length=1)] | None,
    Meta(
        description="File with what is sent as Authorization, one line such as Bearer TOKEN.", examples=["auth.token"]
    ),
]
Cafile = Annotated[
    Annotated[str, Meta(min_length=1)] | None,
    Meta(
        description="Certificates that sign those of the servers, PEM; unset: those of the system.",
        examples=["auth-ca.crt"],
    ),
]


def shown_url(url: str) -> str:
    """Return a URL as it is told, without its query: that may hold a key."""
    return url.partition("?")[0]
