"""Commands about groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from broker.auth.dynamic_security.client_commands import INTERNAL, with_groups
from broker.auth.dynamic_security.common_commands import given, listing, role_in, texts_of, with_texts
from broker.auth.dynamic_security.entities import Client, Group, Role, has
from broker.auth.dynamic_security.fields import Fields, WrongFieldError, array, name_of, text
from broker.auth.dynamic_security.references import (
    added,
    listed,
    living,
    priority_of,
    reference_to,
    removed,
    roles_given,
)
from broker.auth.dynamic_security.state import Draft


class GroupCommands:
    """What they make of a draft."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self.handlers: dict[str, Callable[[Fields], dict[str, Any] | None]] = {
            "createGroup": self._create, "deleteGroup": self._delete, "getGroup": self._get, "listGroups": self._list,
            "modifyGroup": self._modify, "addGroupClient": self._add_client, "removeGroupClient": self._remove_client,
            "addGroupRole": self._add_role, "removeGroupRole": self._remove_role,
            "setAnonymousGroup": self._set_anonymous, "getAnonymousGroup": self._get_anonymous,
        }  # fmt: skip

    def _named(self, command: Fields) -> Group:
        return self._found(name_of(command, "groupname", "Group name"))

    def _found(self, name: str) -> Group:
        group = self._draft.groups.get(name)
        if group is None:
            raise WrongFieldError("Group not found")
        return group

    def _create(self, command: Fields) -> None:
        name = name_of(command, "groupname", "Group name", new=True)
        texts = texts_of(command)
        if name in self._draft.groups:
            raise WrongFieldError("Group already exists")
        roles = roles_given(self._draft, command, INTERNAL) or ()
        self._draft.put("group", name, Group(name=name, mark=self._draft.new_mark(), **texts, roles=roles))

    def _delete(self, command: Fields) -> None:
        group = self._named(command)
        anonymous = self._draft.anonymous_group
        if anonymous is not None and anonymous.name == group.name:
            raise WrongFieldError("Deleting the anonymous group is forbidden")
        self._draft.kick_members(group)
        self._draft.put("group", group.name, None)

    def _modify(self, command: Fields) -> None:
        before = self._named(command)
        group = with_texts(before, command)
        roles = roles_given(self._draft, command)
        if roles is not None:
            group = replace(group, roles=roles)
        members = array(command, "clients")
        if members is not None:
            self._set_members(group, members)
        if group != before:
            self._draft.put("group", group.name, group)
        self._draft.kick_members(group)

    def _set_members(self, group: Group, members: list[Any]) -> None:
        priorities: dict[str, int] = {}
        for one in members:
            if isinstance(one, dict):
                name = text(one, "username", "'clients' contains an object with an invalid 'username'")
                if name not in self._draft.clients:
                    raise WrongFieldError("'clients' contains an object with a 'username' that does not exist")
                priorities.setdefault(name, priority_of(one))
        self._draft.kick_members(group)
        for client in self._draft.members(group):
            if client.name not in priorities:
                self._put(replace(client, groups=removed(self._draft, client.groups, group)))
        for name, priority in priorities.items():
            client = self._draft.clients[name]
            others = [one for one in living(self._draft, client.groups, Group) if one.name != group.name]
            changed = with_groups(client, [*others, reference_to(group, priority)])
            if changed != client:
                self._put(changed)

    def _put(self, client: Client) -> None:
        self._draft.put("client", client.name, client)

    def _add_client(self, command: Fields) -> None:
        client, group = self._pair(command)
        if has(client.groups, group):
            self._draft.kick(client.name)
            raise WrongFieldError("Client is already in this group")
        self._put(replace(client, groups=added(self._draft, client.groups, group, priority_of(command))))
        self._draft.kick(client.name)

    def _remove_client(self, command: Fields) -> None:
        client, group = self._pair(command)
        self._put(replace(client, groups=removed(self._draft, client.groups, group)))
        self._draft.kick(client.name)

    def _pair(self, command: Fields) -> tuple[Client, Group]:
        name = name_of(command, "username", "Username")
        group_name = name_of(command, "groupname", "Group name")
        client = self._draft.clients.get(name)
        if client is None:
            raise WrongFieldError("Client not found")
        return client, self._found(group_name)

    def _add_role(self, command: Fields) -> None:
        name = name_of(command, "groupname", "Group name")
        role_name = name_of(command, "rolename", "Role name")
        group, role = self._found(name), role_in(self._draft, role_name)
        if has(group.roles, role):
            raise WrongFieldError("Group is already in this role")
        group = replace(group, roles=added(self._draft, group.roles, role, priority_of(command)))
        self._draft.put("group", group.name, group)
        self._draft.kick_members(group)

    def _remove_role(self, command: Fields) -> None:
        name = name_of(command, "groupname", "Group name")
        role_name = name_of(command, "rolename", "Role name")
        group, role = self._found(name), role_in(self._draft, role_name)
        group = replace(group, roles=removed(self._draft, group.roles, role))
        self._draft.put("group", group.name, group)
        self._draft.kick_members(group)

    def _set_anonymous(self, command: Fields) -> None:
        group = self._named(command)
        self._draft.put("settings", "", replace(self._draft.settings, anonymous_group=reference_to(group, -1)))
        self._draft.kick(None)

    def _get_anonymous(self, _command: Fields) -> dict[str, Any]:
        group = self._draft.anonymous_group
        return {"group": {"groupname": "" if group is None else group.name}}

    def _get(self, command: Fields) -> dict[str, Any]:
        return {"group": self._described(self._named(command))}

    def _list(self, command: Fields) -> dict[str, Any]:
        return listing("groups", self._draft.groups, command, self._all_described)

    def _all_described(self, chosen: list[str]) -> list[dict[str, Any]]:
        """Return what a listing says of groups, after one look at all clients."""
        members: dict[str, list[Client]] = {}
        for client in sorted(self._draft.clients.values(), key=lambda client: client.name):
            for reference in client.groups:
                if self._draft.group(reference) is not None:
                    members.setdefault(reference.name, []).append(client)
        return [self._described(self._draft.groups[name], members.get(name, [])) for name in chosen]

    def _described(self, group: Group, members: list[Client] | None = None) -> dict[str, Any]:
        described: dict[str, Any] = {"groupname": group.name}
        described |= given(textname=group.text_name, textdescription=group.text_description)
        described["clients"] = [
            {"username": client.name} for client in (self._draft.members(group) if members is None else members)
        ]
        described["roles"] = listed(self._draft, group.roles, Role)
        return described
