"""What can be set for some clients, or for those of one listener: how much they may have."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class ClientLimit(Struct, frozen=True, kw_only=True):
    """What each client may have; 0: no limit of its own here."""

    messages_per_second_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000_000,
            description="Messages that each client may publish in a second; beyond it, it is not read from for a "
            "while. 0: as limits.messages_per_second_max.",
        ),
    ] = 0
    bytes_per_second_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="Bytes that each client may send in a second, likewise. 0: as limits.bytes_per_second_max.",
        ),
    ] = 0
    subscriptions_per_client_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000_000,
            description="Subscriptions that the session of each client may have. "
            "0: as limits.subscriptions_per_client_max.",
        ),
    ] = 0
    queue_messages_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000_000,
            description="Messages that wait for each session at most. 0: as mqtt.queue_messages_max.",
        ),
    ] = 0
    queue_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="Bytes of messages that wait for each session at most. 0: as mqtt.queue_bytes_max.",
        ),
    ] = 0


class Limit(ClientLimit, frozen=True, kw_only=True):
    """Limits of some clients: the first of these tables that fits a client holds, before those of its listener."""

    users: Annotated[
        tuple[str, ...], Meta(description="User names of the clients.", examples=[["ann", "gateway"]])
    ] = ()
    groups: Annotated[
        tuple[str, ...], Meta(description="Groups, as authenticators say them, of which the clients are in one.")
    ] = ()
    anonymous: Annotated[
        bool,
        Meta(
            description="Whether it is about clients without a user name. Without users, groups and this, it is about "
            "all clients."
        ),
    ] = False
    connections_per_user_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000_000,
            description="Connections open at once of each user name, of all workers together; 0 for any number. "
            "Clients without a user name are not counted.",
        ),
    ] = 0
