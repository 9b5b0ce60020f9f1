"""Requests on $CONTROL/dynamic-security/v1: an array of commands, each answered in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from broker.auth.dynamic_security.client_commands import ClientCommands, Connections
from broker.auth.dynamic_security.fields import Fields, WrongFieldError, array, parsed, text, text_or_none
from broker.auth.dynamic_security.group_commands import GroupCommands
from broker.auth.dynamic_security.role_commands import RoleCommands
from broker.auth.dynamic_security.state import Draft

REQUEST_TOPIC: Final = "$CONTROL/dynamic-security/v1"
RESPONSE_TOPIC: Final = f"{REQUEST_TOPIC}/response"
DEFAULTS: Final = {
    "publishClientSend": "publish_send",
    "publishClientReceive": "publish_receive",
    "subscribe": "subscribe",
    "unsubscribe": "unsubscribe",
}
PASSWORD_SETTING: Final = ("createclient", "setclientpassword", "modifyclient")

Handler = Callable[[Fields], dict[str, Any] | None]


class RequestError(Exception):
    """A request without commands, in mosquitto's words."""


def commands_of(payload: bytes) -> list[Any]:
    """Return the commands of a request. Raises RequestError."""
    try:
        request = parsed(payload)
    except ValueError:
        raise RequestError("Payload not valid JSON") from None
    commands = array(request, "commands") if isinstance(request, dict) else None
    if commands is None:
        raise RequestError("Invalid/missing commands")
    return commands


def plain_passwords(commands: list[Any]) -> Iterator[Fields]:
    """Go through those commands that set a password, which is plain still: what executes them wants it hashed."""
    for command in commands:
        if (
            isinstance(command, dict)
            and isinstance(command.get("command"), str)
            and isinstance(command.get("password"), str)
        ):
            kind = command["command"].lower()
            if kind == "createclient" or (kind in PASSWORD_SETTING and command["password"]):
                yield command


def refusal(error: str) -> bytes:
    """Return the response to a request without commands."""
    return response_of([{"command": "Unknown command", "error": error}])


def response_of(answers: list[dict[str, Any]]) -> bytes:
    """Return answers as they are published."""
    return msgspec.json.encode({"responses": answers})


class Commands:
    """Executes commands on a draft.

    Args:
        connections: as of ClientCommands.
    """

    def __init__(self, draft: Draft, connections: Connections) -> None:
        self._draft = draft
        handlers: dict[str, Handler] = {
            **ClientCommands(draft, connections).handlers, **GroupCommands(draft).handlers,
            **RoleCommands(draft).handlers, "setDefaultACLAccess": self._set_defaults,
            "getDefaultACLAccess": self._get_defaults, "getDetails": self._get_details,
        }  # fmt: skip
        self._handlers = {name.lower(): (name, handler) for name, handler in handlers.items()}

    def execute(self, commands: list[Any]) -> list[dict[str, Any]]:
        """Execute commands in their order; returns an answer for each.

        Args:
            commands: as of commands_of(), their passwords hashed.
        """
        answers = []
        for command in commands:
            if not isinstance(command, dict):
                answers.append({"command": "Unknown command", "error": "Command not an object"})
                continue
            if not isinstance(command.get("command"), str):
                answers.append({"command": "Unknown command", "error": "Missing command"})
                continue
            try:
                correlation = text_or_none(command, "correlationData", "Invalid correlationData data type.")
            except WrongFieldError as error:
                # mosquitto, too, does nothing of what is behind it.
                answers.append({"command": command["command"], "error": str(error)})
                break
            answers.append(self._answered(command, correlation))
        if self._draft.changes:
            settings = self._draft.settings
            self._draft.put("settings", "", replace(settings, changes=settings.changes + 1))
        return answers

    def _answered(self, command: Fields, correlation: str | None) -> dict[str, Any]:
        name = text(command, "command", "")
        tail = {} if correlation is None else {"correlationData": correlation}
        known = self._handlers.get(name.lower())
        if known is None:
            return {"command": name, "error": "Unknown command", **tail}
        shown, handler = known
        try:
            data = handler(command)
        except WrongFieldError as error:
            return {"command": shown, "error": str(error), **tail}
        return {"command": shown, **({} if data is None else {"data": data}), **tail}

    def _set_defaults(self, command: Fields) -> None:
        acls = array(command, "acls")
        if acls is None:
            raise WrongFieldError("Missing/invalid actions array")
        names = {kind.lower(): name for kind, name in DEFAULTS.items()}
        for one in acls:
            if isinstance(one, dict) and isinstance(one.get("allow"), bool) and isinstance(one.get("acltype"), str):
                name = names.get(one["acltype"].lower())
                if name is not None:
                    self._draft.put("settings", "", replace(self._draft.settings, **{name: one["allow"]}))

    def _get_defaults(self, _command: Fields) -> dict[str, Any]:
        settings = self._draft.settings
        return {"acls": [{"acltype": kind, "allow": getattr(settings, name)} for kind, name in DEFAULTS.items()]}

    def _get_details(self, _command: Fields) -> dict[str, Any]:
        draft = self._draft
        return {
            "clientCount": len(draft.clients),
            "groupCount": len(draft.groups),
            "roleCount": len(draft.roles),
            "changeIndex": draft.settings.changes,
        }
