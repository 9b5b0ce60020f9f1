"""One rule about topics, as a file or a token gives it, before rule sets are made of them."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from broker.auth.principal import Principal

PUBLISH: Final = 1
READ: Final = 2  # subscribe, and be sent what matches
SHARE: Final = 4  # subscribe by $share, beside READ
REPLAY: Final = 8  # subscribe by $replay, beside READ
EVERY_ACTION: Final = PUBLISH | READ | SHARE | REPLAY

# In a rule's topic filter they stand for what the client has; no UTF-8 has these bytes.
CLIENT_IDENTIFIER: Final = b"\xff"
USER_NAME: Final = b"\xfe"
PERCENT: Final = frozenset(("%c", "%u"))  # what stands for these in mosquitto's files, and there only


class Holders(Enum):
    """Whom a rule is about, if it is not a user."""

    EVERYBODY = "everybody"
    NO_NAME = "clients without a user name"


class Condition(Protocol):
    """What a rule asks for beside the user name and the topic."""

    def holds(self, principal: Principal) -> bool:
        """Return whether it holds for a client now. The same answer until the ACL says that it has changed."""


class Rule(NamedTuple):
    """A rule: the first that fits a client, what it wants to do and the topic decides.

    Attributes:
        allow: what it decides.
        actions: what it is about: PUBLISH, READ and so on.
        topic_filter: checked, with CLIENT_IDENTIFIER and USER_NAME in it, or without; None: every topic, those that
            begin with $ too.
        holder: a user name, or whom it is about.
        line: where it stands; what an operator is told.
        qos: those of a PUBLISH or SUBSCRIBE that it fits.
        retain: likewise, of a PUBLISH; None: both.
        exact: it is about a SUBSCRIBE to exactly this topic filter, and a topic of exactly this name.
        dangerous: it is about clients whose user name or client identifier has a + or # in it, only.
        condition: what else is asked for; None: nothing.
    """

    allow: bool
    actions: int
    topic_filter: bytes | None
    holder: str | Holders = Holders.EVERYBODY
    line: int = 0
    qos: tuple[int, ...] = (0, 1, 2)
    retain: bool | None = None
    exact: bool = False
    dangerous: bool = False
    condition: Condition | None = None
