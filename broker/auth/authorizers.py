"""The authorizers of the settings, which together are an ACL: files of rules, asked one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.auth.acl_lines import AclLineError, AclLines
from broker.auth.rule import Holders
from broker.auth.rule_chain import RuleChain
from broker.auth.rule_set import RuleSet
from broker.config.start_error import StartError
from broker.logs import get

if TYPE_CHECKING:
    from broker.config.loader import Config

log = get("acl_file")

SHOWN_MAX: Final = 20            # lines of a difference that are told


class AclFile:
    """Rules of an ACL file, mosquitto's.

    Args:
        number: of its [[authorizer]] table, from 1.
        file: its path.

    Attributes:
        files: what it rests on.
    """

    kind = "acl_file"

    def __init__(self, number: int, file: str) -> None:
        self.number = number
        self.files = [file]

    def read(self) -> RuleSet:
        """Read the file, and return what it says. From any thread. Raises StartError."""
        (file,) = self.files
        try:
            lines = AclLines(Path(file).read_bytes(), Path(file).name)
        except OSError as error:
            raise StartError(
                f"authorizer {self.number}: The ACL file {file} cannot be read: {error.strerror}.") from error
        except AclLineError as error:
            raise StartError(f"authorizer {self.number}: The ACL file {file} cannot be used: {error}.") from None
        if lines.literal:
            log.warning("acl_patterns_literal", file=file, lines=lines.literal[:SHOWN_MAX], count=len(lines.literal),
                        what="%c and %u are replaced where they are a whole level; here they stand for themselves")
        rules, lines.rules = lines.rules, []             # they are in the rule set, and it keeps the lines
        return RuleSet(rules, lines)


class Authorizers:
    """What the [[authorizer]] tables say, as one ACL, and how it is read again.

    Args:
        members: in the order of the settings.

    Raises StartError: a file cannot be used.

    Attributes:
        files: what they rest on.
        chain: the ACL.
    """

    def __init__(self, members: Sequence[AclFile]) -> None:
        self._members = tuple(members)
        self.files = [file for member in members for file in member.files]
        self.chain = RuleChain(self.read())

    def when_changed(self, changed: Callable[[], None]) -> None:
        """Have something called each time that answers may be others than before."""
        self.chain.changed = changed

    def read(self) -> list[RuleSet]:
        """Read all files, and return what they say. From any thread. Raises StartError."""
        return [member.read() for member in self._members]

    def use(self, rule_sets: list[RuleSet]) -> None:
        """From now on, decide by what read() has returned; all of it at once."""
        self.chain.use(rule_sets)

    def describe(self) -> list[dict[str, Any]]:
        """Return what an operator sees of each."""
        return [{"authorizer": member.number, "type": member.kind, "file": member.files[0],
                 "rules": rule_set.rule_count, "users": rule_set.users_known}
                for member, rule_set in zip(self._members, self.chain.rule_sets, strict=True)]


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


def authorizers_of(config: Config) -> Authorizers:
    """Return the authorizers of the settings. Raises StartError: a file cannot be used."""
    return Authorizers([AclFile(number, table.file) for number, table in enumerate(config.authorizer, 1)])


def check_authorizers(config: Config) -> None:
    """Read what the authorizers need, and let go of it: a file that cannot be used ends the start. StartError."""
    if config.workers > 1:
        authorizers_of(config)
