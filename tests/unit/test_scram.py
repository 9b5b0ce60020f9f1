"""SCRAM-SHA-256 against the published exchange, and against messages that are not quite right."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.auth.scram import Login, ScramCredentials, ScramError, ScramSha256, saslprep
from broker.auth.scram_cost import ITERATIONS_MIN
from tests.support.scram import ScramClient

# The exchange of RFC 7677, section 3.
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="

PENCIL = ScramCredentials.from_password("pencil", salt=SALT, iterations=ITERATIONS_MIN)
USERS = {
    "user": PENCIL,
    "a,b=c": PENCIL,
    "IX": PENCIL,
    "x": ScramCredentials.from_password("I\u00adX", salt=SALT, iterations=ITERATIONS_MIN),
}
SCRAM = ScramSha256(USERS, secret=b"secret", iterations=ITERATIONS_MIN)


def login(client_first: bytes) -> Login:
    return Login(client_first, SCRAM.credentials_of, SERVER_NONCE)


def logs_in(client: ScramClient) -> bool:
    """Whether both sides believe each other."""
    server = login(client.first)
    return client.trusts(server.check(client.final(server.server_first)))


def test_the_published_exchange_is_reproduced_byte_for_byte() -> None:
    server = login(CLIENT_FIRST)
    assert server.server_first == SERVER_FIRST
    assert server.check(CLIENT_FINAL) == SERVER_FINAL
    assert server.user_name == "user"


def test_a_client_that_knows_the_password_and_a_server_that_knows_its_key_believe_each_other() -> None:
    assert logs_in(ScramClient("user", "pencil"))
    assert not logs_in(ScramClient("user", "pen"))
    assert not logs_in(ScramClient("nobody", "pencil"))


def test_a_client_that_could_bind_to_a_channel_and_thinks_that_we_cannot_gets_in() -> None:
    assert logs_in(ScramClient("user", "pencil", gs2_header="y,,"))


def test_a_client_that_wants_to_bind_to_a_channel_is_refused() -> None:
    with pytest.raises(ScramError, match="channel binding"):
        login(b"p=tls-unique,,n=user,r=abc")


def test_what_was_said_about_channels_first_must_be_said_in_the_end() -> None:
    client = ScramClient("user", "pencil", gs2_header="y,,")
    client.binding = "n,,"
    with pytest.raises(ScramError, match="another exchange"):
        logs_in(client)


@pytest.mark.parametrize("nonce", [CLIENT_NONCE, SERVER_NONCE, CLIENT_NONCE + SERVER_NONCE + "x", "abc"])
def test_the_nonce_must_be_the_clients_and_then_ours(nonce: str) -> None:
    client = ScramClient("user", "pencil", CLIENT_NONCE)
    client.nonce = nonce
    with pytest.raises(ScramError, match="another exchange"):
        logs_in(client)


def test_a_client_may_name_itself_as_the_one_to_act_as_and_nobody_else() -> None:
    assert logs_in(ScramClient("user", "pencil", gs2_header="n,a=user,"))
    with pytest.raises(ScramError, match="somebody else"):
        login(b"n,a=root,n=user,r=abc")


def test_commas_and_equal_signs_of_a_name_are_escaped() -> None:
    client = ScramClient("a,b=c", "pencil")
    assert b"n=a=2Cb=3Dc," in client.first
    assert logs_in(client)


@pytest.mark.parametrize("message", [
    b"", b"n", b"n,,", b"n,,n=user", b"n,,r=abc", b"n,,n=,r=abc", b"n,,n=user,r=", b"n,n=user,r=abc",
    b"x,,n=user,r=abc", b"n,,m=ext,n=user,r=abc", b"n,,n=user,r=a\x7f", b"n,,n=user,r=a\xc3\xa9", b"n,,n=us=er,r=abc",
    b"n,,n=us=2cer,r=abc",
    b"n,,n=user=,r=abc", b"n,,n=\xff,r=abc", b"n,,n=us\0er,r=abc", b"n,,n=user,r=abc,", b"n,,n=user,r=abc,x",
    b"n,b=user,n=user,r=abc", b"n,,n=user,r=" + b"a" * 5000, b" n,,n=user,r=abc", b"n,,n=user,r=abc\n",
])  # fmt: skip
def test_a_first_message_that_is_not_one_of_scram_is_an_error(message: bytes) -> None:
    with pytest.raises(ScramError):
        login(message)


@pytest.mark.parametrize("change", [
    lambda final: b"", lambda final: final[:-1], lambda final: final + b",", lambda final: final + b"\n",
    lambda final: final.replace(b"c=", b"d="), lambda final: final.replace(b",p=", b",q="),
    lambda final: final.replace(b"c=biws", b"c=b=ws"), lambda final: final.replace(b"c=biws", b"c=!"),
    lambda final: final.split(b"p=")[0] + b"p=", lambda final: final.split(b"p=")[0] + b"p=AAAA",
    lambda final: final.replace(b"biws", b"biw\xff"), lambda final: final + b"A" * 5000,
])  # fmt: skip
def test_a_final_message_that_is_not_one_of_scram_is_an_error(change) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ScramError):
        login(CLIENT_FIRST).check(change(CLIENT_FINAL))


def test_extensions_that_may_be_ignored_are_ignored_and_still_signed() -> None:
    server = login(CLIENT_FIRST + b",z=more")
    assert server.check(CLIENT_FINAL) is None  # proved without the extension: no proof


def test_an_unknown_name_is_told_a_salt_that_is_always_the_same_and_as_long_as_real_ones() -> None:
    one, again = login(b"n,,n=ghost,r=abc").server_first, login(b"n,,n=ghost,r=abc").server_first
    other = login(b"n,,n=spirit,r=abc").server_first
    assert one == again
    assert one != other
    assert len(one) == len(login(b"n,,n=user,r=abc").server_first)
    assert one.endswith(f",i={ITERATIONS_MIN}".encode())
    elsewhere = ScramSha256(USERS, secret=b"secret", iterations=ITERATIONS_MIN)
    assert elsewhere.credentials_of("ghost") == SCRAM.credentials_of("ghost")
    assert ScramSha256(USERS).credentials_of("ghost") != SCRAM.credentials_of("ghost")


@pytest.mark.parametrize(
    ("text", "prepared"),
    [("I\u00adX", "IX"), ("user", "user"), ("USER", "USER"), ("\u00aa", "a"), ("\u2168", "IX"), ("a\u00a0b", "a b")],
)
def test_names_and_passwords_are_compared_in_one_form(text: str, prepared: str) -> None:
    # The examples of RFC 4013, section 3, and a space of another kind.
    assert saslprep(text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "", "\u00ad", "\ue000", "a\u0627"])
def test_names_and_passwords_with_characters_that_they_may_not_have_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="name or password"):
        ScramCredentials.from_password(text)


def test_a_name_and_a_password_in_another_form_are_the_same() -> None:
    assert logs_in(ScramClient("\u2168", "pencil"))
    assert logs_in(ScramClient("x", "IX"))


@given(st.binary(max_size=100) | st.text(",=nyrcpbiws+/", max_size=60).map(str.encode), st.booleans())
def test_any_bytes_are_an_error_or_no_proof(message: bytes, final: bool) -> None:
    try:
        if final:
            assert login(CLIENT_FIRST).check(message) is None
        else:
            login(message)
    except ScramError:
        pass


# In files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "hash_name"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
def test_credentials_of_a_file_are_those_of_the_password(method: str, hash_name: str) -> None:
    made = ScramCredentials.from_password("pencil", iterations=5000, method=method)
    stored = made.to_stored()
    assert stored.startswith(method.encode() + b"$5000:")
    read = ScramCredentials.from_stored(stored)
    assert (read, read.method) == (made, method)
    assert stored.decode().rpartition(":")[2] not in repr(read)
    for password, right in (("pencil", True), ("pen", False)):
        client = ScramClient("user", password, hash_name=hash_name)
        server = Login(client.first, lambda name: read, "abc", method)
        assert client.trusts(server.check(client.final(server.server_first))) is right


def test_the_published_credentials_are_written_as_rfc_5803_has_it() -> None:
    assert PENCIL.to_stored() == (
        b"SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$"
        b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:"
        b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    )


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (b"", "that are broken"),
        (b"SCRAM-SHA-1$4096:AAAA$AAAA:AAAA", "that are broken"),
        (b"SCRAM-SHA-256$4096:AAAA$AAAA", "that are broken"),
        (b"SCRAM-SHA-256$4096:A$AAAA:AAAA", "in base64"),
        (PENCIL.to_stored().replace(b"4096", b"4095"), "of 4095 iterations, expected 4096"),
        (PENCIL.to_stored().replace(b"4096", b"10000001"), "of 10000001 iterations"),
        (PENCIL.to_stored().replace(b"256", b"512"), "keys of 32 and 32 bytes and a salt of 16, expected 64"),
        (b"SCRAM-SHA-256$4096:AAAA$" + b"A" * 43 + b"=:" + b"A" * 43 + b"=", "a salt of 3"),
    ],
)
def test_credentials_that_cannot_be_used_are_refused_in_words(stored: bytes, said: str) -> None:
    with pytest.raises(ScramError, match=said):
        ScramCredentials.from_stored(stored)
