"""The same ACL files at mosquitto and here: the same answers about clients and topics, or a listed exception."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.acl_files import WITNESS, WITNESS_LINES, Client, Mosquitto, compare, compare_faulty, is_ours, ours

SEED = 21
FILES = 120
FAULTY = 60


def test_generated_files_have_the_same_answers_at_mosquitto(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    answers = allowed = 0
    for _ in range(FILES):
        counts = compare(tmp_path, draw)
        answers += counts[0]
        allowed += counts[1]
    # The one is not what the other is most of the time.
    assert answers / 20 < allowed < answers * 19 / 20


def test_generated_mistakes_are_mistakes_at_mosquitto(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    taken = [compare_faulty(tmp_path, draw) for _ in range(FAULTY)]
    assert {True, False} == set(taken)


def answers(folder: Path, lines: str, client: Client, *names: str) -> list[tuple[bool, bool]]:
    """Return of each topic whether a client may publish to it, at mosquitto and here."""
    data = f"{lines}user {WITNESS}\n{WITNESS_LINES}".encode()
    with Mosquitto(folder, data) as mosquitto:
        theirs = mosquitto.answers([client], names)
    own = ours(data, [client], names)
    return [((0, at) in theirs.publish, (0, at) in own.publish) for at in range(len(names))]


# The exceptions. mosquitto 2.1 answers as we do, where nothing else is said.


def test_a_marker_in_a_level_is_replaced_by_mosquitto_2_0_only(tmp_path: Path) -> None:
    client = Client("ann", "c1")
    assert answers(tmp_path, "pattern write dev-%c/up\n", client, "dev-c1/up", "dev-%c/up") == [
        (True, False),
        (False, True),
    ]


def test_a_name_with_a_separator_fills_several_levels_at_mosquitto_2_0_only(tmp_path: Path) -> None:
    assert answers(tmp_path, "pattern write dev/%u/up\n", Client("a/b", "c1"), "dev/a/b/up", "dev/a/up") == [
        (True, False),
        (False, False),
    ]


@pytest.mark.parametrize("levels", [199, 200, 201, 202, 203])
def test_a_topic_filter_has_as_many_levels_as_at_mosquitto(levels: int, tmp_path: Path) -> None:
    data = b"topic " + b"/".join([b"a"] * levels) + b"\n"
    with Mosquitto(tmp_path, data) as mosquitto:
        assert mosquitto.runs == is_ours(data)


@pytest.mark.parametrize("data", [b"user \xff\ntopic a\n", b"topic \xff\n", b"topic a\0b\n"])
def test_what_is_no_text_is_a_mistake_here_only(data: bytes, tmp_path: Path) -> None:
    with Mosquitto(tmp_path, data) as mosquitto:
        assert mosquitto.runs
    assert not is_ours(data)
