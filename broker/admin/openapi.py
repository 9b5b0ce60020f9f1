"""The OpenAPI 3.1 document of /api/v1: made from the table of routes, with what each is for and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from broker.admin import answers
from broker.admin.requests import Route
from broker.version import VERSION

PREFIX: Final = "/api/v1"
PROBLEM_JSON: Final = "application/problem+json"
NDJSON: Final = "application/x-ndjson"
EVENTS: Final = "text/event-stream"


class Described(NamedTuple):
    """What is said of a route.

    Attributes:
        summary: what it does, in one sentence.
        answer: the type of what it answers; of a stream, of its lines.
        status: of an answer.
        content_type: of an answer.
        streams_if: with this argument the answer is a stream of lines; "": never.
    """

    summary: str
    answer: type[Struct]
    status: int = 200
    content_type: str = "application/json"
    streams_if: str = ""


DESCRIBED: Final[dict[tuple[str, str], Described]] = {
    ("GET", "/status"): Described("The broker as a whole: version, listeners, totals.", answers.Status),
    ("GET", "/workers"): Described("All counters of each worker.", answers.Rows),
    ("GET", "/peers"): Described("The links between workers, and what waits for each.", answers.Rows),
    ("POST", "/peers/*/forget"): Described("Drop what a peer that is away is owed.", answers.Forgotten),
    ("GET", "/slowest"): Described("The clients that are furthest behind.", answers.Slowest),
    ("GET", "/clients"): Described("Clients that are connected.", answers.Clients),
    ("GET", "/clients/*"): Described("One client: its session, its connection, what it is owed.", answers.ClientInFull),
    ("POST", "/clients/*/kick"): Described("Disconnect a client; with `session`, end its session.", answers.Kicked),
    ("GET", "/clients/*/trace"): Described("What a client sends and is sent.", answers.Event, content_type=NDJSON),
    ("GET", "/clients/*/why"): Described(
        "Why messages on a topic did or did not reach a client.", answers.Why, streams_if="watch"
    ),
    ("GET", "/sessions"): Described("Sessions, of clients that are connected and that are not.", answers.Sessions),
    ("GET", "/subscriptions"): Described("Subscriptions, of all clients or of one.", answers.Subscriptions),
    ("GET", "/routes"): Described("Where a message on a topic would go.", answers.Routes),
    ("GET", "/acl"): Described("What a client may do with a topic, and which rule says so.", answers.Verdict),
    ("GET", "/shadow"): Described("How rules on trial differ from those that count.", answers.Trial),
    ("GET", "/retained"): Described("Retained messages.", answers.Retained),
    ("POST", "/publish"): Described("Publish a message; it is kept when this answers.", answers.Published),
    ("POST", "/restart"): Described("Replace the workers' processes, one by one.", answers.Restart, status=202),
    ("GET", "/restart"): Described("How far a restart of the workers is.", answers.Restart),
    ("GET", "/config"): Described("The settings that are in force, and where each came from.", answers.Settings),
    ("POST", "/drain"): Described("End the broker in order.", answers.Draining, status=202),
    ("GET", "/log-level"): Described("The least severe log lines that are written.", answers.LogLevel),
    ("PUT", "/log-level"): Described("Change which log lines are written.", answers.LogLevel),
    ("GET", "/listeners"): Described("Where clients come in, and the certificates there.", answers.Listeners),
    ("POST", "/reload"): Described("Read files of listeners, users and rules again.", answers.Reloaded),
    ("GET", "/bans"): Described("Bans that are in force.", answers.Bans),
    ("POST", "/bans"): Described("Ban a client, a user or an address; who is there is disconnected.", answers.Ban),
    ("DELETE", "/bans"): Described("End a ban.", answers.Ban),
    ("GET", "/stream"): Described(
        "The overview, and each second what has changed.", answers.Overview, content_type=EVENTS
    ),
    ("GET", "/history"): Described("The overview's last quarter of an hour, or day.", answers.History),
}  # fmt: skip
"""Of each route that the API has; a route of the admin socket that is not here is not in the API."""

ARGUMENTS: Final = {
    "to": "Another server that MQTT 5.0 clients are told to use.",
    "rate": "Clients told to go in a second.",
    "limit": "Rows of a page, or messages, at most.",
    "cursor": "Where the page before this one ended, as it said.",
    "prefix": "Only client identifiers that begin so.",
    "connected": "Only sessions whose client is, or is not, connected.",
    "client": "A client identifier.",
    "filter": "A topic filter.",
    "topic": "A topic name; where something is subscribed to, a topic filter.",
    "last": "So many messages, the newest.",
    "watch": "Go on and tell what happens, one JSON object a line.",
    "session": "Whether its session ends, too.",
    "qos": "0, 1 or 2.",
    "retain": "Whether the message is retained.",
    "publisher": "The client identifier of who would publish it.",
    "action": "publish, subscribe or read.",
    "user": "A user name.",
    "address": "An IP address.",
    "listener": "The number of a listener, from 1.",
    "groups": "Groups, with commas between.",
    "payload": "As text.",
    "payload_base64": "As base64.",
    "series": "Names, with commas between; without it, all.",
    "step_s": "1: the last quarter of an hour, by seconds; 15: a day.",
    "last_s": "So many seconds back, at most.",
    "level": "debug, info, warning or error.",
    "kind": "client, user or address.",
    "name": "Whom: a client identifier, a user name, an address or a network.",
    "for_s": "For how many seconds; without it, until it is ended.",
    "reason": "Why, for those who come after you.",
}
_TYPES: Final = {int: "integer", str: "string", bool: "boolean"}
_PARTS: Final = {"clients": "client", "peers": "peer"}
PROBLEMS: Final = {
    "400": "The request is wrong, and what is wrong with it.",
    "401": "Who asks has to say who that is: HTTP Basic, or a bearer token.",
    "403": "Who asks may not do this.",
    "404": "There is no such thing.",
    "409": "It cannot be done as things are.",
    "413": "The body is too long.",
    "422": "A file cannot be used; nothing has changed.",
    "429": "After failed logins the next one has to wait.",
    "503": "A worker gives no answer.",
    "504": "It has taken too long.",
}


def path_of(route: Route) -> str:
    """Return a route's path as OpenAPI writes it, with names for what stands for something."""
    parts = list(route.path)
    for number, part in enumerate(parts):
        if part == "*":
            parts[number] = f"{{{_PARTS[parts[number - 1]]}}}"
    return "/" + "/".join(parts)


def described(route: Route) -> Described | None:
    """Return what is said of a route; None: it is not in the API."""
    return DESCRIBED.get((route.method, "/" + "/".join(route.path)))


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the document."""
    types = list(dict.fromkeys([found.answer for found in DESCRIBED.values()] + [answers.Problem]))
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    of_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        found = described(route)
        if found is not None:
            paths.setdefault(path_of(route), {})[route.method.lower()] = _operation(route, found, of_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Shoal",
            "version": VERSION,
            "description": "What an operator asks of a broker that runs. Observers may use GET, administrators all.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": PREFIX}],
        "security": [{"basic": []}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
            "responses": {
                status: {"description": text, "content": {PROBLEM_JSON: {"schema": of_type[answers.Problem]}}}
                for status, text in PROBLEMS.items()
            },
        },
    }


def _operation(route: Route, found: Described, of_type: dict[type[Struct], Any]) -> dict[str, Any]:
    schema = of_type[found.answer]
    content = {found.content_type: {"schema": schema}}
    if found.streams_if:
        content[NDJSON] = {"schema": of_type[answers.Event]}
    words = [part for part in route.path if part != "*"]
    name = "_".join([route.method.lower(), *words, *(["one"] if route.path[-1] == "*" else [])]).replace("-", "_")
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": found.summary,
        "parameters": [
            {"name": _PARTS[before], "in": "path", "required": True, "schema": {"type": "string"}}
            for before, part in zip(route.path, route.path[1:], strict=False)
            if part == "*"
        ],
        "responses": {
            str(found.status): {"description": (found.answer.__doc__ or "").strip(), "content": content},
            **{status: {"$ref": f"#/components/responses/{status}"} for status in PROBLEMS},
        },
    }  # fmt: skip
    arguments: dict[str, dict[str, Any]] = {
        name: {"description": ARGUMENTS[name], "schema": {"type": _TYPES[kind]}}
        for name, kind in route.arguments.items()
    }
    if route.method in ("GET", "DELETE"):
        operation["parameters"] += [
            {"name": name, "in": "query", "required": name in route.required, **argument}
            for name, argument in arguments.items()
        ]
    elif arguments:
        properties = {
            name: {**argument["schema"], "description": argument["description"]} for name, argument in arguments.items()
        }
        schema = {"type": "object", "properties": properties, "required": list(route.required)}
        operation["requestBody"] = {
            "required": bool(route.required),
            "content": {"application/json": {"schema": {**schema, "additionalProperties": False}}},
        }
    return operation
