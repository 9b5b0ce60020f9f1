"""Who this node is: a name that no other node has, and a secret that all its workers share."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

NAME: Final = "node"
VERSION: Final = 1
IDENTIFIER_BYTES: Final = 8
SECRET_BYTES: Final = 32
RESTORE: Final = "restore it, for where sessions are follows from it."


class NodeError(Exception):
    """Why the file of a node cannot be used, in one sentence.

    Attributes:
        is_newer: a newer version wrote it.
    """

    def __init__(self, text: str, *, is_newer: bool = False) -> None:
        super().__init__(text)
        self.is_newer = is_newer


class Node(Struct, frozen=True, kw_only=True):
    """What the file `node` in the data folder holds, as JSON; a reader of its secret can choose a client's home.

    Attributes:
        version: of this format.
        identifier: the node's name among others, 16 hexadecimal digits.
        secret: 64 hexadecimal digits; where the clients live follows from it, so it is never replaced.
    """

    version: int
    identifier: str
    secret: str

    @property
    def key(self) -> bytes:
        """The secret's bytes."""
        return bytes.fromhex(self.secret)


def node_of(folder: Path) -> Node:
    """Return the node that a data folder belongs to; a new one, durable when this returns, if there is no file yet.

    Raises NodeError, OSError.
    """
    path = folder / NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        node = Node(version=VERSION, identifier=secrets.token_hex(IDENTIFIER_BYTES),
                    secret=secrets.token_hex(SECRET_BYTES))
        _write(folder, msgspec.json.encode(node) + b"\n")
        return node
    try:
        node = msgspec.json.decode(data, type=Node)
        readable = len(node.key) == SECRET_BYTES and len(bytes.fromhex(node.identifier)) == IDENTIFIER_BYTES
    except (msgspec.MsgspecError, ValueError):
        raise NodeError(f"The file {path} is not a node's: {RESTORE}") from None
    if node.version != VERSION:
        raise NodeError(f"The file {path} has version {node.version}, this program knows {VERSION}.",
                        is_newer=node.version > VERSION)
    if not readable:
        raise NodeError(f"The file {path} is damaged: {RESTORE}")
    return node


def _write(folder: Path, data: bytes) -> None:
    beside = folder / f"{NAME}.new"
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    beside.rename(folder / NAME)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
