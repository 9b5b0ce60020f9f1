"""The authorizers of the settings, which together are an ACL: files of rules, asked one after the other."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from broker.auth.acl import AllowAll
from broker.auth.acl_lines import AclLineError, AclLines
from broker.auth.rule import Holders
from broker.auth.rule_chain import RuleChain
from broker.auth.rule_set import RuleSet
from broker.auth.rules_lines import RulesLineError, RulesLines
from broker.auth.shadow import Shadow
from broker.config.authenticator import DynamicSecurityTable, HttpTable, JwtTable
from broker.config.authorizer import HttpRightsTable
from broker.config.start_error import StartError
from broker.logs import get

if TYPE_CHECKING:
    from broker.auth.acl import Acl
    from broker.auth.http_authorizer import HttpAuthorizer
    from broker.config.authorizer import Authorizer
    from broker.config.loader import Config

log = get("acl_file")

SHOWN_MAX: Final = 20  # lines of a difference that are told
WORDS: Final = {"acl_file": "ACL file", "rules_file": "rules file"}


class RulesOf:
    """Rules of a file: an ACL file of mosquitto's, or a rules file of ours.

    Args:
        number: of its [[authorizer]] table, from 1.
        kind: its type.
        file: its path.
        listeners: addresses of the listeners, which rules may name.

    Attributes:
        files: what it rests on.
    """

    def __init__(self, number: int, kind: str, file: str, listeners: Sequence[str] = ()) -> None:
        self.number = number
        self.kind = kind
        self.files = [file]
        self._listeners = tuple(listeners)

    def read(self) -> RuleSet:
        """Read the file, and return what it says. From any thread. Raises StartError."""
        (file,) = self.files
        try:
            data = Path(file).read_bytes()
            found = _taken_apart(self.kind, data, file, self._listeners)
        except OSError as error:
            raise StartError(
                f"authorizer {self.number}: The {WORDS[self.kind]} {file} cannot be read: {error.strerror}."
            ) from error
        except (AclLineError, RulesLineError) as error:
            raise StartError(
                f"authorizer {self.number}: The {WORDS[self.kind]} {file} cannot be used: {error}."
            ) from None
        for note in notes_on(found):
            log.warning("acl_note", file=file, what=note)
        rules, found.rules = found.rules, []  # they are in the rule set, and it keeps the rest
        return RuleSet(rules, found)


def _taken_apart(kind: str, data: bytes, file: str, listeners: Sequence[str]) -> AclLines | RulesLines:
    if kind == "rules_file":
        return RulesLines(data, Path(file).name, listeners)
    return AclLines(data, Path(file).name)


def notes_on(lines: AclLines | RulesLines) -> list[str]:
    """Return what a person may not expect of a file."""
    if isinstance(lines, RulesLines):
        return []
    return [
        f"{note} in line {', '.join(map(str, numbers[:SHOWN_MAX]))}{', ...' if len(numbers) > SHOWN_MAX else ''}"
        for note, numbers in lines.notes.items()
    ]


class ReadRules(NamedTuple):
    """What the files of authorizers say.

    Attributes:
        members: what each authorizer says, rules or what else its read() has returned.
        on_trial: what each would say if its file on trial counted; empty: there is none on trial.
    """

    members: list[Any]
    on_trial: list[Any]

    @property
    def rule_sets(self) -> list[RuleSet]:
        """The rules that count."""
        return [one for one in self.members if isinstance(one, RuleSet)]

    @property
    def all_rule_sets(self) -> list[RuleSet]:
        """These, and those that would count."""
        return [one for one in (*self.members, *self.on_trial) if isinstance(one, RuleSet)]


class Authorizers:
    """What the [[authorizer]] tables say, as one ACL, and how it is read again.

    Args:
        members: in the order of the settings.
        shadows: what is on trial in the place of each; None, or none at all: nothing is.
        rules_of_clients: clients may bring rules of their own.
        is_strict: a topic filter is granted as a whole or not at all.
        is_open: at a listener that names none, clients may do everything.
        listeners: which members are asked about clients of a listener: as of RuleChain.

    Raises StartError: a file cannot be used.

    Attributes:
        chain: the ACL.
        shadow: what is on trial beside it; None: nothing is.
    """

    def __init__(
        self,
        members: Sequence[RulesOf | HttpAuthorizer],
        shadows: Sequence[RulesOf | None] = (),
        *,
        rules_of_clients: bool = False,
        is_strict: bool = False,
        is_open: bool = True,
        listeners: Sequence[tuple[tuple[int, ...], bool] | None] = (),
    ) -> None:
        self._members = tuple(members)
        self._shadows = tuple(shadows) if any(shadow is not None for shadow in shadows) else ()
        found = self.read()
        tell_time(found.all_rule_sets, time.time())
        chain_of = partial(
            RuleChain,
            is_strict=is_strict,
            is_open=is_open,
            listeners=listeners,
            # Their answers for publishing may depend on QoS and RETAIN, after a reload if not now.
            decides_by_qos=any(member.kind != "acl_file" for member in members) or rules_of_clients,
        )
        self.chain = chain_of(self._deciding(found.members))
        self.shadow = Shadow(chain_of(self._deciding(found.on_trial))) if found.on_trial else None
        self.chain.shadow = self.shadow

    @property
    def files(self) -> list[str]:
        """What they rest on, now."""
        return [file for one in (*self._members, *self._shadows) if one is not None for file in one.files]

    def read(self) -> ReadRules:
        """Read all files, and return what they say. From any thread. Raises StartError."""
        found = [member.read() for member in self._members]
        shadows = zip(self._shadows, found, strict=False)
        return ReadRules(found, [counts if shadow is None else shadow.read() for shadow, counts in shadows])

    def use(self, found: ReadRules) -> None:
        """From now on, decide by what read() has returned; all of it at once."""
        tell_time(found.all_rule_sets, time.time())
        for member, one in zip(self._members, found.members, strict=True):
            if not isinstance(member, RulesOf):
                member.use(one)
        if self.shadow is not None:
            if _changes(self.difference(found)):
                self.shadow.begin_anew()
            self.shadow.chain.use(self._deciding(found.on_trial))
        self.chain.use(self._deciding(found.members))

    def _deciding(self, found: list[Any]) -> list[RuleSet | HttpAuthorizer]:
        """Return what decides: of what read() has returned, the rules; in the place of others their members."""
        members = zip(self._members, found, strict=True)
        return [one if isinstance(member, RulesOf) else member for member, one in members]

    async def run(self) -> None:
        """Do what members do beside their answers, until cancelled."""
        async with trio.open_nursery() as nursery:
            for member in self._members:
                if not isinstance(member, RulesOf):
                    nursery.start_soon(member.run)

    def tell(self, holds: Callable[[bytes, bytes], bool]) -> None:
        """Say how to find out whether a client has a topic filter, granted as a whole, that matches a topic name."""
        for member in self._members:
            if not isinstance(member, RulesOf):
                member.holds = holds

    def difference(self, found: ReadRules) -> dict[str, Any]:
        """Return in words which rules have come and gone in what read() has returned, those on trial too."""
        before = list(self.chain.rule_sets)
        after = found.rule_sets
        if self.shadow is not None:
            for shadow, old, new in zip(self._shadows, self.shadow.chain.members, found.on_trial, strict=True):
                if shadow is not None:
                    before.append(old)
                    after.append(new)
        return difference(before, after)

    def look_at_clock(self, now_s: float) -> None:
        """Be told the time, in Unix seconds, from time to time: rules may hold for some hours only."""
        if self.shadow is not None:
            tell_time([one for one in self.shadow.chain.rule_sets if one not in self.chain.rule_sets], now_s)
        if tell_time(self.chain.rule_sets, now_s) and self.chain.changed is not None:
            log.info("rules_by_time", what="hours that rules ask for have begun or ended")
            self.chain.changed()

    def describe(self) -> list[dict[str, Any]]:
        """Return what an operator sees of each."""
        return [
            {
                "authorizer": member.number,
                "type": member.kind,
                "file": member.files[0],
                "rules": deciding.rule_count,
                "users": deciding.users_known,
                "shadow": next((one.files[0] for one in self._shadows if one and one.number == member.number), None),
            }
            if isinstance(member, RulesOf)
            else member.describe()
            for member, deciding in zip(self._members, self.chain.members, strict=True)
        ]


def _changes(change: dict[str, Any]) -> bool:
    return bool(change["come"] + change["gone"])


def difference(before: Sequence[RuleSet], after: Sequence[RuleSet]) -> dict[str, Any]:
    """Return in words which rules have come and which have gone; SHOWN_MAX of them, and how many there are of each.

    Cost: some 3 us for each rule.
    """
    old, new = Counter(_words(before)), Counter(_words(after))
    come, gone = new - old, old - new
    shown = [*(f"- {words}" for words in gone), *(f"+ {words}" for words in come)]
    return {"come": come.total(), "gone": gone.total(), "shown": shown[:SHOWN_MAX]}


def _words(rule_sets: Sequence[RuleSet]) -> Iterator[str]:
    for rule_set in rule_sets:
        for number in range(rule_set.rule_count):
            rule = rule_set.rule(number)
            if not rule.dangerous:
                holder = f"user {rule.holder}: " if not isinstance(rule.holder, Holders) else ""
                yield f"{rule_set.source}: {holder}{rule_set.source.words(rule)}"


def tell_time(rule_sets: Sequence[RuleSet], now_s: float) -> bool:
    """Tell all rules the time; return whether that changes anything."""
    changed = [times.look_at(now_s) for rule_set in rule_sets for times in getattr(rule_set.source, "times", ())]
    return any(changed)


def read_rules(file: Path, now_s: float = 0.0, listeners: Sequence[str] = ()) -> tuple[RuleSet, list[str]]:
    """Return the rules of a file by itself, and what a person may not expect of it. Raises StartError.

    What ends with .toml is a rules file, anything else an ACL file.

    Args:
        now_s: Unix seconds, for rules that ask for hours.
        listeners: addresses of the listeners, which rules may name.
    """
    kind = "rules_file" if file.suffix == ".toml" else "acl_file"
    try:
        found = _taken_apart(kind, file.read_bytes(), str(file), listeners)
    except OSError as error:
        raise StartError(f"{file}: {error.strerror}.") from error
    except (AclLineError, RulesLineError) as error:
        raise StartError(f"{file}: {error}") from None
    rule_set = RuleSet(found.rules, found)
    tell_time([rule_set], now_s)
    return rule_set, notes_on(found)


def authorizers_of(config: Config) -> Authorizers:
    """Return the authorizers of the settings. Raises StartError: a file cannot be used."""
    listeners = [listener.address for listener in config.listeners]

    def rules_of(number: int, table: Authorizer, file: str) -> RulesOf:
        return RulesOf(number, str(table.__struct_config__.tag), file, listeners)

    def member_of(number: int, table: Authorizer) -> RulesOf | HttpAuthorizer:
        if not isinstance(table, HttpRightsTable):
            return rules_of(number, table, table.file)
        # Here, so that a broker without one loads no HTTP.
        from broker.auth.http_authorizer import HttpAuthorizer

        return HttpAuthorizer(number, table)

    def shadow_of(number: int, table: Authorizer) -> RulesOf | None:
        file = None if isinstance(table, HttpRightsTable) else table.shadow
        return None if file is None else rules_of(number, table, file)

    tables = list(enumerate(config.authorizer, 1))
    return Authorizers(
        [member_of(number, table) for number, table in tables],
        [shadow_of(number, table) for number, table in tables],
        # Where none brings rules, publishers need not be asked about QoS by QoS.
        rules_of_clients=brings_rules(config),
        is_strict=any(table.subscribe == "strict" for table in config.authorizer),
        # Where roles come first, these are asked about what is left open, and that is not everything.
        is_open=not any(isinstance(table, DynamicSecurityTable) for table in config.authenticator),
        listeners=[_asked_at(config, listener.authorizers) for listener in config.listeners],
    )


def _asked_at(config: Config, names: tuple[str, ...] | None) -> tuple[tuple[int, ...], bool] | None:
    """Return the numbers of the tables that a listener names, and whether one of them is strict; None: all."""
    if names is None:
        return None
    numbers = {table.name: number for number, table in enumerate(config.authorizer)}
    asked = tuple(numbers[name] for name in names)
    return asked, any(config.authorizer[number].subscribe == "strict" for number in asked)


def brings_rules(config: Config) -> bool:
    """Return whether clients may bring rules of their own, by what says who they are."""
    return any(isinstance(table, (JwtTable, HttpTable)) for table in config.authenticator)


def acl_of(config: Config, given: Acl | None) -> tuple[Acl, Authorizers | None]:
    """Return the ACL of the settings, and the authorizers if there are any. Raises StartError.

    Where there are none, clients are held to the rules that they bring, and to no others.

    Args:
        given: an ACL of the program around us, beside which there may be no authorizers.
    """
    if not config.authorizer:
        return (RuleChain((), is_open=True, decides_by_qos=True) if brings_rules(config) else AllowAll()), None
    if given is not None:
        raise StartError("There is an ACL, and [[authorizer]] tables: expected one or the other.")
    authorizers = authorizers_of(config)
    return authorizers.chain, authorizers


def check_authorizers(config: Config) -> None:
    """Read what the authorizers need, and let go of it: a file that cannot be used ends the start. StartError."""
    if config.workers > 1:
        authorizers_of(config)
