"""Who this node is: a name that no other node has, and a secret that all its workers share."""

from __future__ import annotations

import os
from _blake2 import blake2b  # hashlib would load OpenSSL
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from router.log.disk import replace_file

NAME: Final = "node"
VERSION: Final = 1
IDENTIFIER_BYTES: Final = 8
SECRET_BYTES: Final = 32
OWNER_BYTES: Final = 8
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
        formerly: 16 hexadecimal digits: whose the files in the data folder are since before this one was lost; empty:
            it never was.
    """

    version: int
    identifier: str
    secret: str
    formerly: str = ""

    @property
    def key(self) -> bytes:
        """The secret's bytes."""
        return bytes.fromhex(self.secret)

    @property
    def owner(self) -> int:
        """What the files in its data folder say whose they are: 64 bits, never 0, which tell nothing of the secret."""
        if self.formerly:
            return int(self.formerly, 16)
        return int.from_bytes(blake2b(self.key, digest_size=OWNER_BYTES, person=b"shoal owner").digest(), "little") or 1


def node_of(folder: Path) -> Node:
    """Return the node that a data folder belongs to; a new one, durable when this returns, if there is no file yet.

    Raises NodeError, OSError.
    """
    return read_node(folder) or make_node(folder)


def make_node(folder: Path, owner: int = 0) -> Node:
    """Write down a new node, durably, in place of one that is lost.

    Args:
        owner: whose the files in the folder say that they are; 0: there are none that say so.

    Raises OSError.
    """
    node = Node(
        version=VERSION,
        identifier=os.urandom(IDENTIFIER_BYTES).hex(),
        secret=os.urandom(SECRET_BYTES).hex(),
        formerly=f"{owner:0{2 * OWNER_BYTES}x}" if owner else "",
    )
    _write(folder, msgspec.json.encode(node) + b"\n")
    return node


def owner_in(folder: Path) -> int:
    """Return whose the files in a data folder are to be; 0 if that is not known, as where the file is damaged.

    Raises OSError.
    """
    try:
        node = read_node(folder)
    except NodeError:
        return 0  # said at every start; whoever goes on meanwhile takes the files as they are
    return node.owner if node is not None else 0


def read_node(folder: Path) -> Node | None:
    """Return the node that a data folder belongs to, None if there is no file. Raises NodeError, OSError."""
    path = folder / NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        node = msgspec.json.decode(data, type=Node)
        readable = (
            len(node.key) == SECRET_BYTES
            and len(bytes.fromhex(node.identifier)) == IDENTIFIER_BYTES
            and len(bytes.fromhex(node.formerly)) in (0, OWNER_BYTES)
        )
    except (msgspec.MsgspecError, ValueError):
        raise NodeError(f"The file {path} is not a node's: {RESTORE}") from None
    if node.version != VERSION:
        raise NodeError(
            f"The file {path} has version {node.version}, this program knows {VERSION}.",
            is_newer=node.version > VERSION,
        )
    if not readable:
        raise NodeError(f"The file {path} is damaged: {RESTORE}")
    return node


def _write(folder: Path, data: bytes) -> None:
    replace_file(folder, NAME, data, 0o600)
