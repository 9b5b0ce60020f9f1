"""What can be set for one authenticator: what it asks, and where it looks."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct


class PasswordFileTable(Struct, frozen=True, kw_only=True, tag_field="type", tag="password_file"):
    """One authenticator that knows users by their passwords."""

    file: Annotated[
        str,
        Meta(
            min_length=1,
            description="Users and hashes of their passwords, as `shoal passwd` and mosquitto_passwd write them.",
            examples=["users"],
        ),
    ]


Authenticator = PasswordFileTable
"""One [[authenticator]] table: with each further type a union, which `type` tells apart."""

AUTHENTICATOR_TYPES: Final = {"password_file": PasswordFileTable}
