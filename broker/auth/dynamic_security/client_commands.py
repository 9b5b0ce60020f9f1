"""Commands about clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec.structs import replace

from broker.auth.dynamic_security.common_commands import chosen_of, given, listing, role_in, texts_of, with_texts
from broker.auth.dynamic_security.entities import Client, Group, Reference, Role, has
from broker.auth.dynamic_security.fields import (
    Fields,
    WrongFieldError,
    array,
    boolean,
    is_valid_text,
    name_of,
    text,
    text_or_none,
)
from broker.auth.dynamic_security.references import added, listed, priority_of, reference_to, removed, roles_given
from broker.auth.dynamic_security.state import Draft

Connections = Callable[[str], list[str]]
"""Returns the addresses that a user is connected from."""

INTERNAL: Final = "Internal error"


class ClientCommands:
    """What they make of a draft.

    Args:
        connections: asked for users that are described.
    """

    def __init__(self, draft: Draft, connections: Connections) -> None:
        self._draft = draft
        self._connections = connections
        self.handlers: dict[str, Callable[[Fields], dict[str, Any] | None]] = {
            "createClient": self._create, "deleteClient": self._delete, "getClient": self._get,
            "listClients": self._list, "modifyClient": self._modify, "setClientPassword": self._set_password,
            "setClientId": self._set_identifier, "enableClient": self._enable, "disableClient": self._disable,
            "addClientRole": self._add_role, "removeClientRole": self._remove_role,
        }  # fmt: skip

    def _named(self, command: Fields) -> Client:
        return self._found(name_of(command, "username", "Username"))

    def _found(self, name: str) -> Client:
        client = self._draft.clients.get(name)
        if client is None:
            raise WrongFieldError("Client not found")
        return client

    def _put(self, client: Client, *, kick: bool = True) -> None:
        self._draft.put("client", client.name, client)
        if kick:
            self._draft.kick(client.name)

    def _create(self, command: Fields) -> None:
        name = name_of(command, "username", "Username", new=True)
        hashed = text_or_none(command, "password", "Invalid/missing password")
        identifier = text_or_none(command, "clientid", "Invalid/missing client id")
        if identifier is not None and not is_valid_text(identifier):
            raise WrongFieldError("Client ID not valid UTF-8")
        texts = texts_of(command)
        if name in self._draft.clients:
            raise WrongFieldError("Client already exists")
        roles = roles_given(self._draft, command) or ()
        groups: dict[str, Reference] = {}
        for one in array(command, "groups") or ():
            if isinstance(one, dict) and isinstance(one.get("groupname"), str):
                group = self._draft.groups.get(one["groupname"])
                if group is None:
                    raise WrongFieldError("Group not found")
                if group.name in groups:
                    raise WrongFieldError(INTERNAL)  # so mosquitto says of a group that is named twice
                groups[group.name] = reference_to(group, priority_of(one))
        client = Client(name=name, client_identifier=identifier or None, **texts, hashed=hashed, roles=roles)
        self._put(with_groups(client, groups.values()), kick=False)

    def _delete(self, command: Fields) -> None:
        name = text(command, "username", "Invalid/missing username")
        self._found(name)
        self._draft.put("client", name, None)
        self._draft.kick(name)

    def _disable(self, command: Fields) -> None:
        self._put(replace(self._named(command), disabled=True))

    def _enable(self, command: Fields) -> None:
        self._put(replace(self._named(command), disabled=False), kick=False)

    def _set_identifier(self, command: Fields) -> None:
        name = name_of(command, "username", "Username")
        identifier = text_or_none(command, "clientid", "Invalid/missing client ID")
        if identifier is not None and not is_valid_text(identifier):
            raise WrongFieldError("Client ID not valid UTF-8")
        self._put(replace(self._found(name), client_identifier=identifier or None))

    def _set_password(self, command: Fields) -> None:
        name = name_of(command, "username", "Username")
        hashed = text(command, "password", "Invalid/missing password")
        if not hashed:
            raise WrongFieldError("Empty password is not allowed")
        self._put(replace(self._found(name), hashed=hashed))

    def _modify(self, command: Fields) -> None:
        client = self._named(command)
        if isinstance(command.get("clientid"), str):
            client = replace(client, client_identifier=command["clientid"] or None)
        if isinstance(command.get("password"), str) and command["password"]:
            client = replace(client, hashed=command["password"])
        client = with_texts(client, command)
        roles = roles_given(self._draft, command)
        if roles is not None:
            client = replace(client, roles=roles)
        given = array(command, "groups")
        if given is not None:
            groups: dict[str, Reference] = {}
            for one in given:
                if not isinstance(one, dict):
                    continue
                name = text(one, "groupname", "'groups' contains an object with an invalid 'groupname'")
                group = self._draft.groups.get(name)
                if group is None:
                    raise WrongFieldError("'groups' contains an object with a 'groupname' that does not exist")
                groups.setdefault(name, reference_to(group, priority_of(one)))
            client = with_groups(client, groups.values())
        self._put(client)

    def _add_role(self, command: Fields) -> None:
        name = name_of(command, "username", "Username")
        role_name = name_of(command, "rolename", "Role name")
        client, role = self._found(name), role_in(self._draft, role_name)
        if has(client.roles, role):
            raise WrongFieldError(INTERNAL)
        self._put(replace(client, roles=added(self._draft, client.roles, role, priority_of(command))))

    def _remove_role(self, command: Fields) -> None:
        name = name_of(command, "username", "Username")
        role_name = name_of(command, "rolename", "Role name")
        client, role = self._found(name), role_in(self._draft, role_name)
        self._put(replace(client, roles=removed(self._draft, client.roles, role)))

    def _get(self, command: Fields) -> dict[str, Any]:
        return {"client": self._described(self._named(command))}

    def _list(self, command: Fields) -> dict[str, Any]:
        return listing(
            "clients",
            self._draft.clients,
            command,
            lambda chosen: [self._described(self._draft.clients[name]) for name in chosen],
        )

    def _described(self, client: Client) -> dict[str, Any]:
        described: dict[str, Any] = {"username": client.name}
        described |= given(
            clientid=client.client_identifier,
            textname=client.text_name,
            textdescription=client.text_description,
            disabled=client.disabled or None,
        )
        described["roles"] = listed(self._draft, client.roles, Role)
        described["groups"] = listed(self._draft, client.groups, Group)
        described["connections"] = [{"address": address} for address in self._connections(client.name)]
        return described


def with_groups(client: Client, groups: Iterable[Reference]) -> Client:
    """Return a client that is in these groups alone."""
    return replace(client, groups=tuple(sorted(groups, key=lambda one: (-one.priority, one.name))))


def asks_for_connections(command: Fields) -> bool:
    """Return whether a command's answer says where users are connected from."""
    name = str(command.get("command", "")).lower()
    return name == "getclient" or (name == "listclients" and boolean(command, "verbose", default=False))


def names_asked(command: Fields, users: Iterable[str]) -> list[str]:
    """Return the users whose connections a command's answer tells."""
    if str(command.get("command", "")).lower() == "getclient":
        name = command.get("username")
        return [name] if isinstance(name, str) else []
    return chosen_of(sorted(users), command)
