"""The kinds of records in the commit log and their fields: the one table of encoder, decoder and docs/formats.md.

A kind's number and its fields never change meaning; what changes them raises FORMAT_VERSION.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

# 1 did not say in a segment whose data folder it is of; 2 had no `fenced`, 3 no `mounted`, 4 no `principal`, `readers`,
# and no subscription of which its client may read a part.
FORMAT_VERSION: Final = 5


class RecordError(ValueError):
    """A record whose check sum is right and whose content is not what its kind says."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of record.

    `fields` are (name, type) in their order. A fixed kind's types are u8, u16, u32, u64, i64 and bytes (how many, an
    earlier field or the record's length says); the other kinds' bodies are one msgpack array of int, bin, str, bool
    and array.
    """

    number: int
    name: str
    fixed: bool
    fields: tuple[tuple[str, str], ...]


def _kind(number: int, name: str, fixed: bool, fields: str) -> Kind:
    pairs = [field.split(":") for field in fields.split()]
    return Kind(number, name, fixed, tuple((field, of_type) for field, of_type in pairs))


_MESSAGE = (
    "n:u64 properties_length:u32 topic_length:u16 publisher_length:u16 packet_identifier:u16 flags:u8 "
    "expires_us:i64 expiry_offset:u32 peer_count:u8 peers:u32 topic_name:bytes publisher:bytes properties:bytes "
    "payload:bytes"
)

KINDS: Final = (
    _kind(1, "accepted", True, _MESSAGE),
    _kind(2, "copy", True, f"origin:u32 incarnation:u32 accepted_us:i64 {_MESSAGE}"),
    _kind(3, "acknowledged", True, "packet_type:u8 reason:u8 packet_identifier:u16 client_identifier:bytes"),
    _kind(4, "released", True, "packet_identifier:u16 client_identifier:bytes"),
    _kind(5, "stored", True, f"record:u64 origin:u32 incarnation:u32 accepted_us:i64 {_MESSAGE}"),
    _kind(6, "forwarded", True, f"origin:u32 incarnation:u32 accepted_us:i64 {_MESSAGE}"),
    _kind(16, "session", False, "client_identifier:bin expiry_interval_s:int"),
    _kind(17, "detached", False, "client_identifier:bin expiry_interval_s:int next_number:int"),
    _kind(18, "ended", False, "client_identifier:bin"),
    _kind(19, "subscribe", False, "client_identifier:bin topic_filter:bin options:int identifier:int"),
    _kind(20, "unsubscribe", False, "client_identifier:bin topic_filter:bin"),
    _kind(
        21, "will", False,
        "client_identifier:bin topic_name:bin payload:bin properties:bin qos:int retain:bool delay_interval_s:int "
        "expiry_offset:int expiry_interval_s:int identity:bin anonymous:bool",
    ),
    _kind(22, "will_removed", False, "client_identifier:bin"),
    _kind(24, "dropped", False, "client_identifier:bin number:int reason:str"),
    _kind(25, "shared_pick", False, "group:bin client_identifier:bin"),
    _kind(26, "peer", False, "peer:int router_identifier:bin heard:int"),
    _kind(
        27, "delivery", False,
        "client_identifier:bin record:int size:int qos:int retain:bool identifiers:bin group:bin from_client:bin "
        "from_number:int",
    ),
    _kind(28, "skipped", False, "client_identifier:bin reason:str"),
    _kind(
        29, "replay", False,
        "client_identifier:bin topic_filter:bin options:int identifier:int number:int since_us:int",
    ),
    _kind(30, "shifted", False, "client_identifier:bin first_number:int amount:int"),
    _kind(31, "renumbered", False, "client_identifier:bin first_number:int amount:int"),
    _kind(32, "peer_acknowledged", False, "peer:int record:int"),
    _kind(
        33, "replay_in_logs", False,
        "client_identifier:bin topic_filter:bin options:int identifier:int since_us:int positions:array",
    ),
    _kind(34, "peer_heard", False, "peer:int incarnation:int heard:int"),
    _kind(35, "fenced", False, "client_identifier:bin topic_filter:bin reached:array"),
    _kind(36, "mounted", False, "client_identifier:bin mount_point:bin"),
    _kind(37, "principal", False, "client_identifier:bin principal:bin"),
    _kind(38, "readers", False, "client_identifiers:array"),
    _kind(40, "snapshot", False, "first_number:int stamp_us:int"),
    _kind(41, "deliveries", False, "client_identifier:bin next_number:int end_number:int deliveries:array"),
    _kind(42, "incoming", False, "client_identifier:bin packet_identifiers:array"),
    _kind(43, "snapshot_end", False, "records:int places:bin"),
    _kind(44, "incoming_messages", False, "client_identifier:bin messages:array"),
    _kind(63, "sealed", False, "first_us:int last_us:int index:array"),
)  # fmt: skip

BY_NAME: Final = {kind.name: kind for kind in KINDS}
BY_NUMBER: Final = {kind.number: kind for kind in KINDS}
assert len(BY_NAME) == len(BY_NUMBER) == len(KINDS)

_PYTHON_TYPES: Final[dict[str, type]] = {"int": int, "bin": bytes, "str": str, "bool": bool, "array": list}


class Record(NamedTuple):
    """One record as Python sees it."""

    number: int
    time_us: int
    kind: str
    fields: dict[str, Any]


def fits(kind: Kind, values: list[Any] | tuple[Any, ...]) -> str | None:
    """Return what is wrong with the values of a kind that is not fixed, or None."""
    if len(values) != len(kind.fields):
        return f"{len(values)} fields instead of {len(kind.fields)}"
    for (name, of_type), value in zip(kind.fields, values, strict=True):
        # A bool is an int to Python, and is none here.
        if type(value) is not _PYTHON_TYPES[of_type]:
            return f"{name} is {type(value).__name__} and not {of_type}"
    return None
