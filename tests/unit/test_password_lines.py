"""Password files: what is in them, what is wrong with them, and how they are changed."""

from __future__ import annotations

import base64
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.auth import password_hash
from broker.auth.password_hash import KINDS, HashError, PasswordHash, new_hash
from broker.auth.password_lines import PasswordLineError, PasswordLines, checked_name
from broker.auth.verified_logins import BUCKET_DIGESTS, DIGEST_BYTES, KEY_BYTES, VerifiedLogins, shared_memory

# As mosquitto_passwd 2.0 has written them: secret, secret2.
SHA512_PBKDF2 = (
    b"$7$101$JmzqspLDhp3UcDyo$eLyWr53Ea1x/tk9ANnXVJOsIElqs5QXI+KS+k3e2t+Cgzm8smYEcxGHUPm1OJ0aeFdb4Y60NM3zJXuLXiGlcMA=="
)
SHA512 = b"$6$RFCdJ/TE+5jHw7yT$/LCJR6uyNwRmdtXObCyU8h/rH9OkMyyNGM7w9j+YJ87xIBOWYBLGW9NXNyIotFD6rSzjhZzryLFnoLeZaxBlRQ=="


def encoded(count: int) -> bytes:
    return base64.b64encode(b"\1" * count)


def bare(count: int) -> bytes:
    return encoded(count).rstrip(b"=")


@pytest.mark.parametrize(("stored", "password"), [(SHA512_PBKDF2, b"secret"), (SHA512, b"secret2")])
def test_hashes_of_mosquitto_fit_their_passwords_only(stored: bytes, password: bytes) -> None:
    assert PasswordHash(stored).fits(password)
    for other in (password + b"x", password[:-1], b"", password.upper()):
        assert not PasswordHash(stored).fits(other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_hash_fits_its_password_and_is_never_the_same(kind: str) -> None:
    # A password of SCRAM is text (RFC 4013).
    password, iterations = (b"geheim", 4096) if kind.startswith("scram") else (b"geheim\0\xff", 3)
    first, second = (new_hash(password, kind, iterations) for _ in range(2))
    assert first != second
    assert PasswordHash(first).kind == kind
    assert PasswordHash(first).fits(password)
    for other in (b"gehei", b"", b"\xff", b"geheim\n"):
        assert not PasswordHash(first).fits(other)
    if kind.startswith("scram"):
        return
    salt = first.split(b"$")[-2]
    # The lengths that mosquitto takes: 2.1 and 2.0.
    assert len(base64.b64decode(salt + b"=" * (-len(salt) % 4))) == {"argon2id": 64, "sha512-pbkdf2": 12}[kind]


def test_salts_of_64_bytes_are_those_of_mosquitto_2_1() -> None:
    for stored in (b"$6$%b$%b" % (encoded(64), encoded(64)), b"$7$1000$%b$%b" % (encoded(64), encoded(64))):
        assert not PasswordHash(stored).fits(b"")


def test_a_password_file_of_the_programs_is_argon2id_as_mosquitto_2_1_has_it() -> None:
    assert new_hash(b"x").startswith(b"$argon2id$v=19$m=47104,t=1,p=1$")


@pytest.mark.parametrize("stored", [
    b"", b"secret", b"$5$abc$def", b"$2b$12$abc", b"$6$", b"$6$a$b", b"$6$%b$%b" % (encoded(16), encoded(64)),
    b"$6$%b$%b" % (encoded(12), encoded(63)), b"$7$%b$%b" % (encoded(12), encoded(64)),
    b"$7$0$%b$%b" % (encoded(12), encoded(64)), b"$7$-1$%b$%b" % (encoded(12), encoded(64)),
    b"$7$999999999$%b$%b" % (encoded(12), encoded(64)), b"$7$101$%b$%b" % (encoded(12), encoded(65)),
    b"$7$101$%b$%b$" % (encoded(12), encoded(64)), b"$6$!!!!$%b" % encoded(64),
    b"$argon2id$v=16$m=8,t=1,p=1$%b$%b" % (bare(64), bare(64)),
    b"$argon2i$v=19$m=8,t=1,p=1$%b$%b" % (bare(64), bare(64)),
    b"$argon2id$v=19$m=7,t=1,p=1$%b$%b" % (bare(64), bare(64)),
    b"$argon2id$v=19$m=8,t=1,p=2$%b$%b" % (bare(64), bare(64)),
    b"$argon2id$v=19$m=4294967295,t=1,p=1$%b$%b" % (bare(64), bare(64)),
    b"$argon2id$v=19$m=8,t=9999,p=1$%b$%b" % (bare(64), bare(64)),
    b"$argon2id$v=19$m=8,t=1,p=1$%b$%b" % (bare(7), bare(64)),
])  # fmt: skip
def test_what_is_no_hash_is_an_error_that_names_the_line_and_quotes_nothing(stored: bytes) -> None:
    with pytest.raises(HashError):
        PasswordHash(stored)
    with pytest.raises(PasswordLineError) as caught:
        PasswordLines(b"# users\nann:" + SHA512 + b"\nbob:" + stored)
    assert caught.value.line == 3
    assert str(caught.value).startswith("line 3: found ")
    assert "secret" not in str(caught.value)


def test_a_file_is_read_as_mosquitto_reads_it() -> None:
    lines = PasswordLines(
        b"# ann:not a user\n\n  ann \t:  %b \r\nno colon here\n #bob:%b\nzo\xc3\xab:%b" % (SHA512, SHA512, SHA512)
    )
    assert lines.hashes == {"ann": SHA512, "#bob": SHA512, "zoë": SHA512}  # a comment begins in column 0


def test_a_line_without_a_colon_is_skipped_and_told() -> None:
    lines = PasswordLines(b"no colon here\n\n \t\n#x\nann:" + SHA512 + b"\nnone")
    assert list(lines.hashes) == ["ann"]
    assert lines.skipped == [1, 6]


@pytest.mark.parametrize(("data", "line", "what"), [
    (b":" + SHA512, 1, "empty user name"),
    (b" :" + SHA512, 1, "empty user name"),
    (b"ann:%b\n\nann:%b" % (SHA512, SHA512_PBKDF2), 3, "line 1 again"),
    (b"a" * 65_536 + b":" + SHA512, 1, "65536 bytes"),
    (b"\n\xff:" + SHA512, 2, "not UTF-8"),
    (b"a\0b:" + SHA512, 1, "NUL"),
    (b"ann:%b:more" % SHA512, 1, "broken"),
])  # fmt: skip
def test_a_bad_line_is_named(data: bytes, line: int, what: str) -> None:
    with pytest.raises(PasswordLineError, match=what) as caught:
        PasswordLines(data)
    assert caught.value.line == line


CHARACTERS = st.characters(blacklist_characters=":\n\0", blacklist_categories=["Cs"])
NAMES = st.text(CHARACTERS, min_size=1, max_size=20).filter(
    lambda name: name.encode().strip(b" \t\r\n\v\f") == name.encode() and not name.startswith("#")
)
OTHER_LINES = st.sampled_from([b"# a comment: with a colon", b"", b"  ", b"without", b"\t"])


@given(
    st.dictionaries(NAMES, st.sampled_from([SHA512, SHA512_PBKDF2]), max_size=8),
    st.lists(OTHER_LINES, max_size=4),
    NAMES,
    st.booleans(),
    st.randoms(),
)
def test_a_change_changes_one_line_and_nothing_else(
    users: dict[str, bytes], others: list[bytes], name: str, ends: bool, random: st.randoms
) -> None:
    rows = [user.encode() + b":" + stored for user, stored in users.items()] + others
    random.shuffle(rows)
    data = b"\n".join(rows) + (b"\n" if ends and rows else b"")
    lines = PasswordLines(data)
    assert lines.hashes == users
    changed = lines.with_user(name, SHA512)
    again = PasswordLines(changed)
    assert again.hashes == {**users, name: SHA512}
    kept = [row for row in data.split(b"\n") if not row.startswith(name.encode() + b":")]
    assert [row for row in changed.split(b"\n") if not row.startswith(name.encode() + b":") and row] == [
        row for row in kept if row
    ]
    gone = PasswordLines(again.without_user(name))
    assert gone.hashes == {user: stored for user, stored in users.items() if user != name}
    assert gone.skipped == [
        number for number, row in enumerate(again.without_user(name).split(b"\n"), 1) if row == b"without"
    ]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_file_or_an_error_that_names_a_line(data: bytes) -> None:
    try:
        lines = PasswordLines(data)
    except PasswordLineError as error:
        assert 1 <= error.line <= data.count(b"\n") + 1
        return
    for name, stored in lines.hashes.items():
        assert name.encode().strip()
        assert ":" not in name
        PasswordHash(stored)


@pytest.mark.parametrize("name", [b"", b"a:b", b"a\nb", b"#a", b" a", b"a\t", b"\xff", b"a\0", b"a" * 65_536])
def test_a_name_that_no_line_can_begin_with_is_refused_before_it_is_written(name: bytes) -> None:
    with pytest.raises(ValueError, match="user name"):
        checked_name(name)


# Verified logins ------------------------------------------------------------------------------------------------------


def test_a_verified_login_is_of_one_user_one_hash_and_one_password() -> None:
    verified = VerifiedLogins()
    verified.add("ann", SHA512, b"secret2")
    assert verified.has("ann", SHA512, b"secret2")
    assert not verified.has("ann", SHA512_PBKDF2, b"secret2")
    assert not verified.has("ann", SHA512, b"secret")
    assert not verified.has("bob", SHA512, b"secret2")
    # The same bytes with another border between hash and password.
    assert not verified.has("ann", SHA512 + b"s", b"ecret2")
    verified.add("ann", SHA512, b"secret2")
    assert verified.added == 1


def test_verified_logins_are_bounded_and_hold_no_password() -> None:
    verified = VerifiedLogins(buckets=2)
    users = [f"user{number}" for number in range(100)]
    for user in users:
        verified.add(user, SHA512, b"plain-password")
        assert verified.has(user, SHA512, b"plain-password")
    assert sum(verified.has(user, SHA512, b"plain-password") for user in users) == 2 * BUCKET_DIGESTS
    memory = verified._memory[:]
    assert memory[KEY_BYTES + 2 * BUCKET_DIGESTS * DIGEST_BYTES :].strip(b"\0") == b""
    assert b"plain-password" not in memory
    assert b"user" not in memory


def test_two_brokers_remember_under_different_keys() -> None:
    one, other = VerifiedLogins(), VerifiedLogins()
    assert one._digest("ann", SHA512, b"x") != other._digest("ann", SHA512, b"x")


def test_workers_share_what_they_remember_and_who_comes_later_has_it_too() -> None:
    descriptor = shared_memory()
    try:
        one, other = VerifiedLogins(descriptor), VerifiedLogins(descriptor)
        one.add("ann", SHA512, b"x")
        assert other.has("ann", SHA512, b"x")
        assert not other.has("ann", SHA512, b"y")
        later = VerifiedLogins(descriptor)
        assert later.has("ann", SHA512, b"x")
    finally:
        os.close(descriptor)


def test_a_digest_that_was_torn_lets_nobody_in() -> None:
    verified = VerifiedLogins()
    verified.add("ann", SHA512, b"x")
    at = verified._memory.find(verified._digest("ann", SHA512, b"x"))
    verified._memory[at + DIGEST_BYTES // 2 : at + DIGEST_BYTES] = bytes(DIGEST_BYTES // 2)
    assert not verified.has("ann", SHA512, b"x")
    verified.add("ann", SHA512, b"x")
    assert verified.has("ann", SHA512, b"x")


def test_defaults_are_those_of_the_page() -> None:
    assert (password_hash.ARGON2_MEMORY_KIB, password_hash.ARGON2_TIME, password_hash.ARGON2_LANES) == (47_104, 1, 1)
