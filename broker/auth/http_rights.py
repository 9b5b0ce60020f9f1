"""What a server is asked about the rights of clients, and how its answers are read: pure.

Each contract is that of another broker, or of a plugin, so that a server which stands already can stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import msgspec

from broker.auth.http_client import HttpAnswer, HttpError
from broker.auth.http_contracts import ALLOW, DENY, IGNORE, Question, decoded, expect, json_question, one_of

if TYPE_CHECKING:
    from broker.auth.principal import Principal

REFUSED_QOS: Final = 0x80  # and above: a reason code in place of a QoS, which VerneMQ has for topic filters refused


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client wants to do.

    Attributes:
        action: "publish" or "subscribe".
        name: a topic name; of subscribe, a topic filter without $share and $replay.
        qos: of the PUBLISH or SUBSCRIBE.
        retain: of the PUBLISH.
    """

    principal: Principal
    action: str
    name: str
    qos: int
    retain: bool


class _Result(msgspec.Struct):
    result: str


class _Emqx(msgspec.Struct):
    result: str = IGNORE


class _VerneMq(msgspec.Struct):
    result: Any
    modifiers: Any = None
    topics: Any = None


def _ask_ours(wish: Wish) -> Question:
    principal = wish.principal
    certificate = principal.certificate
    return json_question(
        action=wish.action,
        topic=wish.name,
        qos=wish.qos,
        retain=wish.retain,
        client_identifier=principal.client_identifier.decode(),
        user_name=principal.user_name,
        groups=principal.groups,
        address=principal.address,
        listener=principal.listener,
        certificate=None if certificate is None else {"cn": certificate.cn, "dn": certificate.dn},
    )


def _ask_emqx(wish: Wish) -> Question:
    principal = wish.principal
    return json_question(
        clientid=principal.client_identifier.decode(),
        username=principal.user_name,
        peerhost=principal.address,
        action=wish.action,
        topic=wish.name,
        qos=wish.qos,
        retain=wish.retain,
    )


def _ask_vernemq(wish: Wish) -> Question:
    client = {
        "username": wish.principal.user_name,
        "client_id": wish.principal.client_identifier.decode(),
        "mountpoint": "",
    }
    if wish.action == "subscribe":
        asked = json_question(**client, topics=[{"topic": wish.name, "qos": wish.qos}])
    else:
        # The answer is about the topic, whatever is published there: so the payload stays here.
        asked = json_question(**client, qos=wish.qos, topic=wish.name, payload="", retain=wish.retain)
    return Question((*asked.headers, ("vernemq-hook", f"auth_on_{wish.action}")), asked.body)


def _ask_go_auth(wish: Wish) -> Question:
    return json_question(
        username=wish.principal.user_name or "",
        clientid=wish.principal.client_identifier.decode(),
        topic=wish.name,
        acc=4 if wish.action == "subscribe" else 2,
    )


def _ask_rabbitmq(wish: Wish) -> Question:
    principal = wish.principal
    return Question(
        (("Content-Type", "application/x-www-form-urlencoded"),),
        urlencode(
            {
                "username": principal.user_name or "",
                "vhost": "/",
                "resource": "topic",
                "name": "amq.topic",
                "permission": "read" if wish.action == "subscribe" else "write",
                "tags": " ".join(principal.groups),
                # As its MQTT plugin makes one of a topic.
                "routing_key": wish.name.replace("/", ".").replace("+", "*"),
                "variable_map.client_id": principal.client_identifier.decode(),
                "variable_map.username": principal.user_name or "",
                "variable_map.vhost": "/",
            }
        ).encode(),
    )


def _read_ours(answer: HttpAnswer, _wish: Wish) -> str:
    return one_of(decoded(expect(answer, 200), _Result).result)


def _read_emqx(answer: HttpAnswer, _wish: Wish) -> str:
    if answer.status == 204:
        return ALLOW
    if answer.status != 200:
        return IGNORE  # as EMQX has it; what is down has not come here
    return one_of(decoded(answer, _Emqx).result)


def _read_vernemq(answer: HttpAnswer, wish: Wish) -> str:
    said = decoded(expect(answer, 200), _VerneMq)
    if isinstance(said.result, dict) and "error" in said.result:
        return DENY
    if said.result not in ("ok", "next"):
        raise HttpError("a result that is none of the contract's")
    if said.result == "next":
        return IGNORE
    modifiers = said.modifiers or {}
    if not isinstance(modifiers, dict):
        raise HttpError("modifiers that are no table")
    topics = modifiers.pop("topics", said.topics)
    if modifiers:
        # It allows another message than the one that came.
        raise HttpError("modifiers, which are not known here")
    return ALLOW if topics is None else _granted(topics, wish)


def _granted(topics: Any, wish: Wish) -> str:
    """Return what a list of topic filters with their QoS says about the one that was asked about."""
    if (
        wish.action != "subscribe"
        or not isinstance(topics, list)
        or len(topics) != 1
        or not isinstance(topics[0], dict)
        or topics[0].get("topic") != wish.name
        or type(topics[0].get("qos")) is not int
    ):
        raise HttpError("other topics than were asked about, which are not known here")
    qos = topics[0]["qos"]
    if qos >= REFUSED_QOS:
        return DENY
    if qos != wish.qos:
        raise HttpError("another QoS than was asked about, which is not known here")
    return ALLOW


def _read_go_auth(answer: HttpAnswer, _wish: Wish) -> str:
    return ALLOW if answer.status == 200 else DENY


def _read_rabbitmq(answer: HttpAnswer, _wish: Wish) -> str:
    words = expect(answer, 200, 201).body.decode("utf-8", "replace").lower().split()
    if not words or words[0] not in (ALLOW, DENY):
        raise HttpError("an answer that is neither allow nor deny")
    return words[0]


WISHES: Final[Mapping[str, tuple[Callable[[Wish], Question], Callable[[HttpAnswer, Wish], str]]]] = {
    "shoal": (_ask_ours, _read_ours),
    "emqx": (_ask_emqx, _read_emqx),
    "vernemq": (_ask_vernemq, _read_vernemq),
    "mosquitto-go-auth": (_ask_go_auth, _read_go_auth),
    "rabbitmq": (_ask_rabbitmq, _read_rabbitmq),
}


def answer_to(contract: str, answer: HttpAnswer, wish: Wish) -> str:
    """Return what a server has decided: ALLOW, DENY or IGNORE. Raises HttpError: its answer is none."""
    if answer.status >= 500 or answer.status == 429:
        raise HttpError(f"answered {answer.status}")
    return WISHES[contract][1](answer, wish)
