"""All entities, as one worker has them, and a draft of what a request makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.auth.dynamic_security.entities import Client, Entity, Group, Kind, Reference, Role, Settings, has

if TYPE_CHECKING:
    from collections.abc import Iterator


class State:
    """What is in force.

    Attributes:
        clients, groups, roles: by name.
        settings: what there is once.
        begun: there has been anything at all: a file is not read for a start any more.
    """

    def __init__(self) -> None:
        self.clients: dict[str, Client] = {}
        self.groups: dict[str, Group] = {}
        self.roles: dict[str, Role] = {}
        self.settings = Settings()
        self.begun = False

    def put(self, kind: Kind, name: str, entity: Entity | None) -> None:
        """Have an entity in force from now on, or (None) no longer; in any order, those that refer to others too."""
        if kind == "settings":
            self.begun = entity is not None
            self.settings = entity if isinstance(entity, Settings) else Settings()
            return
        entities: dict[str, Entity] = getattr(self, f"{kind}s")
        if entity is None:
            entities.pop(name, None)
        else:
            entities[name] = entity

    def get(self, kind: Kind, name: str) -> Entity | None:
        """Return an entity, None if it is not there."""
        if kind == "settings":
            return self.settings if self.begun else None
        entities: dict[str, Entity] = getattr(self, f"{kind}s")
        return entities.get(name)

    def role(self, reference: Reference) -> Role | None:
        """Return the role that is referred to, None if it was deleted."""
        role = self.roles.get(reference.name)
        return role if role is not None and role.mark == reference.mark else None

    def group(self, reference: Reference) -> Group | None:
        """Return the group that is referred to, None if it was deleted."""
        group = self.groups.get(reference.name)
        return group if group is not None and group.mark == reference.mark else None

    @property
    def anonymous_group(self) -> Group | None:
        """The group of clients without a user name."""
        reference = self.settings.anonymous_group
        return None if reference is None else self.group(reference)


class Draft(State):
    """What a request makes of a state, which is as it was until that is stored.

    Args:
        state: as it is.
        new_mark: returns a mark that no group or role has had.

    Attributes:
        kicked: users to be sent away; None among them: those without a name.
    """

    def __init__(self, state: State, new_mark: Callable[[], str]) -> None:
        super().__init__()
        self.clients = dict(state.clients)
        self.groups = dict(state.groups)
        self.roles = dict(state.roles)
        self.settings = state.settings
        self.begun = state.begun
        self.new_mark = new_mark
        self.kicked: dict[str | None, None] = {}
        self._changed: dict[tuple[Kind, str], Entity | None] = {}

    def put(self, kind: Kind, name: str, entity: Entity | None) -> None:
        """As it says, in this draft."""
        super().put(kind, name, entity)
        self._changed[kind, name] = entity

    @property
    def changes(self) -> list[tuple[Kind, str, Entity | None]]:
        """What is to be stored: each entity once, None for what is no more."""
        return [(kind, name, entity) for (kind, name), entity in self._changed.items()]

    def kick(self, user: str | None) -> None:
        """Have a user sent away; None: all without a name."""
        self.kicked[user] = None

    def kick_members(self, group: Group) -> None:
        """Have all who have a group's roles sent away."""
        anonymous = self.anonymous_group
        if anonymous is not None and anonymous.mark == group.mark and anonymous.name == group.name:
            self.kick(None)
        for client in self.members(group):
            self.kick(client.name)

    def kick_holders(self, role: Role) -> None:
        """Have all who have a role, by themselves or by a group, sent away."""
        for group in self.groups.values():
            if has(group.roles, role):
                self.kick_members(group)
        for client in self.clients.values():
            if has(client.roles, role):
                self.kick(client.name)

    def members(self, group: Group) -> Iterator[Client]:
        """Go through the clients of a group by name. Cost: all clients are looked at."""
        return iter(
            sorted(
                (client for client in self.clients.values() if has(client.groups, group)),
                key=lambda client: client.name,
            )
        )
