"""The key schedule of TLS 1.3 as a provider of OpenSSL, asked as libssl asks and compared with two others."""

from __future__ import annotations

import ctypes
import threading

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import given
from hypothesis import strategies as st

import broker.transport.key_schedule  # noqa: F401  (it is a provider since it was loaded)

EXTRACT, EXPAND = 1, 2
OURS, THEIRS = b"provider=shoal", b"provider=default"
DIGESTS = {b"SHA2-256": hashes.SHA256(), b"SHA2-384": hashes.SHA384(), b"SHA384": hashes.SHA384()}
crypto = ctypes.CDLL("libcrypto.so.3")
for function in ("EVP_KDF_fetch", "EVP_KDF_CTX_new", "EVP_KDF_get0_provider", "OSSL_PROVIDER_get0_name"):
    getattr(crypto, function).restype = ctypes.c_void_p


class Parameter(ctypes.Structure):
    """OSSL_PARAM."""

    _fields_ = (
        ("key", ctypes.c_char_p),
        ("type", ctypes.c_uint),
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("returned", ctypes.c_size_t),
    )


INTEGER, UTF8_STRING, OCTET_STRING = 1, 4, 5


def derived(query: bytes | None, mode: int, digest: bytes, length: int, **pieces: bytes | None) -> bytes | None:
    """Return what a provider derives; None: it fails."""
    kdf = ctypes.c_void_p(crypto.EVP_KDF_fetch(None, b"TLS13-KDF", query))
    assert kdf.value is not None
    context = ctypes.c_void_p(crypto.EVP_KDF_CTX_new(kdf))
    kept: list[object] = []  # until the answer is there

    def parameter(key: bytes, kind: int, value: bytes) -> Parameter:
        buffer = ctypes.create_string_buffer(value, len(value) + 1)
        kept.append(buffer)
        return Parameter(key, kind, ctypes.addressof(buffer), len(value))

    asked = [parameter(b"mode", INTEGER, mode.to_bytes(4, "little")), parameter(b"digest", UTF8_STRING, digest)]
    asked += [parameter(key.encode(), OCTET_STRING, value) for key, value in pieces.items() if value is not None]
    into = ctypes.create_string_buffer(length)
    done = crypto.EVP_KDF_derive(context, into, ctypes.c_size_t(length), (Parameter * (len(asked) + 1))(*asked))
    crypto.EVP_KDF_CTX_free(context)
    crypto.EVP_KDF_free(kdf)
    crypto.ERR_clear_error()
    return into.raw if done > 0 else None


def expanded(digest: bytes, secret: bytes, label: bytes, data: bytes, length: int) -> bytes:
    """Return HKDF-Expand-Label by another library."""
    named = b"tls13 " + label
    info = length.to_bytes(2, "big") + bytes((len(named),)) + named + bytes((len(data),)) + data
    return HKDFExpand(DIGESTS[digest], length, info).derive(secret)


@given(
    digest=st.sampled_from(sorted(DIGESTS)),
    secret=st.binary(min_size=1, max_size=200),
    label=st.binary(max_size=249),
    data=st.binary(max_size=255),
    length=st.integers(1, 300),
)
def test_secrets_are_expanded_as_another_library_does(
    digest: bytes, secret: bytes, label: bytes, data: bytes, length: int
) -> None:
    made = derived(OURS, EXPAND, digest, length, key=secret, prefix=b"tls13 ", label=label, data=data)
    assert made == expanded(digest, secret, label, data, length)


@given(
    digest=st.sampled_from(sorted(DIGESTS)),
    before=st.sampled_from(("none", "early", "another")),
    label=st.sampled_from((b"derived", b"deriveD", b"")),
    material=st.none() | st.binary(min_size=1, max_size=300),
)
def test_secrets_are_extracted_as_openssl_does(
    digest: bytes, before: str, label: bytes, material: bytes | None
) -> None:
    length = DIGESTS[digest].digest_size
    early = derived(THEIRS, EXTRACT, digest, length, prefix=b"tls13 ", label=b"derived")
    salt = {"none": None, "early": early, "another": bytes(range(length))}[before]
    made, expected = (
        derived(provider, EXTRACT, digest, length, salt=salt, key=material, prefix=b"tls13 ", label=label)
        for provider in (OURS, THEIRS)
    )
    assert made is not None
    assert made == expected


def test_the_secrets_of_a_published_handshake() -> None:
    # RFC 8448, section 3.
    shared = bytes.fromhex("8bd4054fb55b9d63fdfbacf9f04b9f0d35e6d63f537563efd46272900f89492d")
    early = derived(OURS, EXTRACT, b"SHA2-256", 32, prefix=b"tls13 ", label=b"derived")
    assert early == bytes.fromhex("33ad0a1c607ec03b09e6cd9893680ce210adf300aa1f2660e1b22e10f170f92a")
    handshake = derived(OURS, EXTRACT, b"SHA2-256", 32, salt=early, key=shared, prefix=b"tls13 ", label=b"derived")
    assert handshake == bytes.fromhex("1dc826e93606aa6fdc0aadc12f741b01046aa6b99f691ed221a9f0ca043fbeac")
    master = derived(OURS, EXTRACT, b"SHA2-256", 32, salt=handshake, prefix=b"tls13 ", label=b"derived")
    assert master == bytes.fromhex("18df06843d13a08bf2a449844c5f8a478001bc4d4c627984d5a41da8d0402919")


@pytest.mark.parametrize(
    ("mode", "digest", "length", "pieces"),
    [
        (EXPAND, b"SHA2-512", 32, {"key": b"k" * 32}),
        (EXPAND, b"SHA2-256", 32, {}),
        (EXPAND, b"SHA2-256", 32, {"key": b"k" * 32, "data": b"d" * 256}),
        (EXPAND, b"SHA2-256", 32, {"key": b"k" * 32, "label": b"l" * 250}),
        (EXPAND, b"SHA2-256", 255 * 32 + 1, {"key": b"k" * 32}),
        (EXTRACT, b"SHA2-256", 31, {}),
        (0, b"SHA2-256", 32, {"key": b"k" * 32}),
    ],
)
def test_what_is_no_question_of_tls_1_3_fails(mode: int, digest: bytes, length: int, pieces: dict[str, bytes]) -> None:
    assert derived(OURS, mode, digest, length, prefix=b"tls13 ", **pieces) is None


def test_others_in_the_process_go_on_with_openssl() -> None:
    kdf = ctypes.c_void_p(crypto.EVP_KDF_fetch(None, b"TLS13-KDF", None))
    provider = ctypes.c_void_p(crypto.EVP_KDF_get0_provider(kdf))
    assert ctypes.string_at(crypto.OSSL_PROVIDER_get0_name(provider)) == b"default"
    crypto.EVP_KDF_free(kdf)


def test_threads_may_ask_at_the_same_time() -> None:
    # ctypes lets go of the interpreter while OpenSSL computes.
    wrong: list[int] = []

    def ask(number: int) -> None:
        secret = bytes((number,)) * 48
        expected = expanded(b"SHA2-384", secret, b"key", b"", 300)
        answers = {
            derived(OURS, EXPAND, b"SHA2-384", 300, key=secret, prefix=b"tls13 ", label=b"key") for _ in range(300)
        }
        if answers != {expected}:
            wrong.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
