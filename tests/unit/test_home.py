"""Where client identifiers live, and the file that this follows from."""

import stat
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.node_identity import NodeError, node_of
from mesh.placement import Homes

KEY = b"k" * 32


@given(st.binary(max_size=64), st.integers(1, 20), st.integers(1, 20))
def test_a_client_moves_only_to_a_worker_that_is_new_or_from_one_that_is_gone(identifier, one, other) -> None:
    fewer, more = sorted((one, other))
    before, after = Homes(KEY, fewer).home_of(identifier), Homes(KEY, more).home_of(identifier)
    assert 0 <= before < fewer
    assert after == before or fewer <= after < more


@pytest.mark.parametrize("count", [2, 3, 8, 9, 17])
def test_clients_spread_over_all_workers(count) -> None:
    homes = Homes(KEY, count)
    found = Counter(homes.home_of(b"client-%d" % number) for number in range(500 * count))
    assert set(found) == set(range(count))
    assert max(found.values()) < 600
    assert min(found.values()) > 400


def test_homes_are_the_same_in_every_release_and_follow_from_the_key() -> None:
    names = [b"client-%d" % number for number in range(12)]
    assert [Homes(KEY, 9).home_of(name) for name in names] == [1, 1, 3, 7, 1, 8, 0, 6, 3, 5, 5, 6]
    assert [Homes(b"another", 9).home_of(name) for name in names] != [Homes(KEY, 9).home_of(name) for name in names]


def test_a_node_keeps_its_name_and_its_secret_and_shows_them_to_nobody(tmp_path) -> None:
    (tmp_path / "node.new").write_text("left behind by a crash")
    node = node_of(tmp_path)
    assert node_of(tmp_path) == node
    assert (len(node.key), len(node.identifier)) == (32, 16)
    assert stat.S_IMODE((tmp_path / "node").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["node"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not a node's"),
        ('{"version": 1}', "is not a node's"),
        ('{"version": 2, "identifier": "00", "secret": "00"}', "has version 2, this program knows 1"),
        ('{"version": 1, "identifier": "0123456789abcdef", "secret": "00"}', "is damaged"),
        ('{"version": 1, "identifier": "0123456789abcdef", "secret": "zz"}', "is not a node's"),
    ],
)
def test_a_file_that_is_no_nodes_is_never_replaced(tmp_path, text, problem) -> None:
    (tmp_path / "node").write_text(text)
    with pytest.raises(NodeError, match=problem):
        node_of(tmp_path)
    assert (tmp_path / "node").read_text() == text
