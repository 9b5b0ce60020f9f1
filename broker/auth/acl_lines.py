"""The lines of an ACL file, mosquitto's: `user`, `topic` and `pattern`."""

from __future__ import annotations

from typing import Final

from broker.auth.rule import CLIENT_IDENTIFIER, EVERY_ACTION, PUBLISH, READ, REPLAY, SHARE, USER_NAME, Holders, Rule
from router.matching.topic_names import check_topic_filter

BLANK: Final = b" \t\r\n\v\f"
LEVELS_MAX: Final = 201  # mosquitto's
# What reads may be asked for by $share and $replay as well: mosquitto has no word for that.
ACCESS: Final = {b"read": READ | SHARE | REPLAY, b"write": PUBLISH, b"readwrite": EVERY_ACTION, b"deny": EVERY_ACTION}
MARKS: Final = {b"%c": CLIENT_IDENTIFIER, b"%u": USER_NAME}
# What may be meant otherwise than mosquitto, and so we, take it.
LITERAL: Final = "%c and %u are replaced where they are a whole level; they stand for themselves"
ONLY_IN_PATTERNS: Final = "%c and %u are replaced in patterns; they stand for themselves"
OF_OTHERS: Final = "%c and %u are what is replaced; ${...} stands for itself"
OF_WHAT_IS_IN_THEM: Final = (
    "$share/... and $replay/... are asked about as the topics in them; nothing is ever asked that fits"
)


class AclLineError(ValueError):
    """What is wrong with a line.

    Attributes:
        line: its number, from 1.
    """

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: found {what}")
        self.line = line


class AclLines:
    """An ACL file, taken apart.

    Args:
        data: the file.
        name: its, for what describes a rule.

    Attributes:
        rules: in the order in which they count, which is mosquitto's: those of users and of clients without a user
            name, then patterns; of each those that deny first.
        notes: what stands there and does not do what it may have been written for, in words, and numbers of lines.

    Raises AclLineError.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self.name = name
        self.notes: dict[str, list[int]] = {}
        holder: str | Holders = Holders.NO_NAME
        topics: list[Rule] = []
        patterns: list[Rule] = []
        # Not splitlines(): a carriage return alone ends no line of mosquitto's.
        for number, line in enumerate(data.split(b"\n"), 1):
            if line.startswith(b"#") or not (line := line.rstrip(BLANK)):
                continue
            # Not split(): only a space parts words, as mosquitto has it, and a user name or topic may have some.
            word, _, rest = line.lstrip(b" ").partition(b" ")
            try:
                if word == b"user":
                    holder = _user_name(rest.strip(BLANK))
                elif word == b"topic":
                    topics.append(rule := _rule(rest, holder, number, is_pattern=False))
                    self._note(rule, is_pattern=False)
                elif word == b"pattern":
                    patterns.append(rule := _rule(rest, Holders.EVERYBODY, number, is_pattern=True))
                    self._note(rule, is_pattern=True)
                else:
                    raise ValueError(f"{_shown(word)}, expected user, topic or pattern")
            except ValueError as error:
                raise AclLineError(number, str(error)) from None
        self.rules = [*_denials_first(topics), *_with_dangerous(_denials_first(patterns))]

    def _note(self, rule: Rule, *, is_pattern: bool) -> None:
        text = rule.topic_filter or b""
        notes = []
        if any(mark in text for mark in MARKS):
            if is_pattern:
                notes.append(LITERAL)
            elif any(mark in text.split(b"/") for mark in MARKS):
                notes.append(ONLY_IN_PATTERNS)
        if b"${" in text:
            notes.append(OF_OTHERS)
        if text.startswith((b"$share/", b"$replay/")):
            notes.append(OF_WHAT_IS_IN_THEM)
        for note in notes:
            self.notes.setdefault(note, []).append(rule.line)

    def __str__(self) -> str:
        return self.name

    def described(self, rule: Rule) -> str:
        """Return a rule as it stands in the file, with the file and the line."""
        return f"{self.name}:{rule.line} {self.words(rule)}"

    def words(self, rule: Rule) -> str:
        """Return a rule as it stands in the file."""
        if rule.dangerous:
            return "a user name or client identifier with + or # in it, which patterns do not allow"
        assert rule.topic_filter is not None, rule
        text = rule.topic_filter
        for written, mark in MARKS.items():
            text = text.replace(mark, written)
        access = next(
            word for word, actions in ACCESS.items() if actions == rule.actions and rule.allow == (word != b"deny")
        )
        word = "pattern" if rule.holder is Holders.EVERYBODY else "topic"
        return f"{word} {access.decode()} {text.decode()}"


def _denials_first(rules: list[Rule]) -> list[Rule]:
    # A stable sort. Among those that deny, the order is of no account but to who is told which it was.
    return sorted(rules, key=lambda rule: rule.allow)


def _with_dangerous(patterns: list[Rule]) -> list[Rule]:
    """Return patterns with what they imply in front: names with wildcards in them would be topic filters."""
    if not patterns:
        return []
    first = min(rule.line for rule in patterns)
    return [Rule(False, EVERY_ACTION, None, line=first, dangerous=True), *patterns]


def _rule(rest: bytes, holder: str | Holders, number: int, *, is_pattern: bool) -> Rule:
    word, _, behind = rest.lstrip(b" ").partition(b" ")
    topic_filter = behind.strip(BLANK)
    if not topic_filter:
        word, topic_filter = b"readwrite", word.strip(BLANK)
    if not topic_filter:
        raise ValueError("no topic filter")
    if word not in ACCESS:
        raise ValueError(
            f"{_shown(word)}, expected read, write, readwrite or deny before a topic filter that has a blank in it"
        )
    wrong = check_topic_filter(topic_filter)
    if wrong is None and topic_filter.count(b"/") >= LEVELS_MAX:
        wrong = f"more than {LEVELS_MAX} levels"
    if wrong is not None:
        raise ValueError(f"the topic filter {_shown(topic_filter)}: {wrong}")
    if is_pattern:
        topic_filter = b"/".join(MARKS.get(level, level) for level in topic_filter.split(b"/"))
    return Rule(word != b"deny", ACCESS[word], topic_filter, holder, number)


def _user_name(name: bytes) -> str:
    if not name:
        raise ValueError("no user name")
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the user name {_shown(name)}, which is not UTF-8") from None


def _shown(text: bytes) -> str:
    shown = repr(text[:100].decode(errors="backslashreplace"))
    return shown if len(text) <= 100 else f"{shown}..."
