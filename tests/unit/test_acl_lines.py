"""ACL files of mosquitto's: what a line says, what is wrong with one, and in which order they count."""

from __future__ import annotations

import pytest

from broker.auth.acl_lines import AclLineError, AclLines
from broker.auth.authorizers import difference, notes_on
from broker.auth.rule_set import RuleSet


def told(data: bytes) -> list[str]:
    lines = AclLines(data, "acl.conf")
    return [lines.described(rule) for rule in lines.rules]


def test_denials_come_first_then_what_users_may_then_patterns() -> None:
    assert told(b"""# a comment
pattern read p/%u/#
topic nobody/a
user ann
topic read  a b/#
topic deny a/c
  topic write d \r
pattern deny p/%c
user a b
topic deny e
""") == [
        "acl.conf:6 topic deny a/c",
        "acl.conf:10 topic deny e",
        "acl.conf:3 topic readwrite nobody/a",
        "acl.conf:5 topic read a b/#",
        "acl.conf:7 topic write d",
        "acl.conf:2 a user name or client identifier with + or # in it, which patterns do not allow",
        "acl.conf:8 pattern deny p/%c",
        "acl.conf:2 pattern read p/%u/#",
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"topics a", "line 1: found 'topics', expected user, topic or pattern"),
        (b"\n\nuser", "line 3: found no user name"),
        (b"user \t", "line 1: found no user name"),
        (b"topic", "line 1: found no topic filter"),
        (
            b"topic red a",
            "line 1: found 'red', expected read, write, readwrite or deny before a topic filter that has a blank in it",
        ),
        (b"topic read a/b#", "line 1: found the topic filter 'a/b#': # fills a whole level"),
        (b"pattern #/a", "line 1: found the topic filter '#/a': # is the last level"),
        (b"topic \xffa", "line 1: found the topic filter '\\\\xffa': a topic filter is UTF-8 without U+0000"),
        (b"user \xff", "line 1: found the user name '\\\\xff', which is not UTF-8"),
        (b"\xef\xbb\xbftopic a", "line 1: found '\\ufefftopic', expected user, topic or pattern"),
        (b"topic " + b"a/" * 201 + b"a", "more than 201 levels"),
        (b"topic read " + b"x" * 70_000, "a topic filter has 1 to 65535 bytes"),
    ],
)
def test_an_error_names_the_line_and_what_is_wrong(data: bytes, said: str) -> None:
    with pytest.raises(AclLineError) as caught:
        AclLines(data, "acl.conf")
    assert said in str(caught.value)
    assert len(str(caught.value)) < 300


def test_markers_that_are_no_whole_level_are_named() -> None:
    lines = AclLines(b"pattern a/%c\ntopic b-%c\npattern c-%c/%u\npattern %u/d\n", "acl.conf")
    assert list(lines.notes.values()) == [[3]]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"topic read a/%u", "in patterns"),
        (b"topic deny %c/#", "in patterns"),
        (b"pattern a/${clientid}", "${...} stands for itself"),
        (b"topic deny $share/#", "nothing is ever asked that fits"),
        (b"pattern read $replay/-1h/%c", "nothing is ever asked that fits"),
    ],
)
def test_what_may_be_meant_otherwise_is_named(line: bytes, said: str) -> None:
    (note,) = notes_on(AclLines(b"# a comment\n" + line + b"\n", "acl.conf"))
    assert said in note
    assert note.endswith(" in line 2")


def sets(*files: bytes) -> list[RuleSet]:
    found = []
    for data in files:
        lines = AclLines(data, "acl.conf")
        found.append(RuleSet(lines.rules, lines))
    return found


def test_a_difference_is_what_came_and_what_went() -> None:
    before = sets(b"topic a\nuser ann\ntopic a\npattern %c\n")
    assert difference(before, sets(b"# moved\n\npattern %c\ntopic a\n\nuser ann\ntopic a\n")) == {
        "come": 0,
        "gone": 0,
        "shown": [],
    }
    assert difference(before, sets(b"topic a\nuser bob\ntopic a\npattern %c\n")) == {
        "come": 1,
        "gone": 1,
        "shown": ["- acl.conf: user ann: topic readwrite a", "+ acl.conf: user bob: topic readwrite a"],
    }
    many = b"".join(b"topic t/%d\n" % number for number in range(1000))
    changed = difference(before, sets(many))
    assert (changed["come"], changed["gone"], len(changed["shown"])) == (1000, 3, 20)
