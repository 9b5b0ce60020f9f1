"""What can be set for one authorizer: what it asks, and where it looks."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct


class AclFileTable(Struct, frozen=True, kw_only=True, tag_field="type", tag="acl_file"):
    """One authorizer that asks an ACL file of mosquitto's."""

    file: Annotated[
        str,
        Meta(
            min_length=1,
            description="Lines `user`, `topic` and `pattern`, as mosquitto has them.",
            examples=["acl.conf"],
        ),
    ]


Authorizer = AclFileTable
"""One [[authorizer]] table: with each further type a union, which `type` tells apart."""

AUTHORIZER_TYPES: Final = {"acl_file": AclFileTable}
