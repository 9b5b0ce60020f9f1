"""What a person is told when the broker is ready: which listeners are open, which are not encrypted, what to try."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.cli.preflight import banner
from broker.config.authenticator import DynamicSecurityTable, HttpTable, JwtTable
from broker.config.authorizer import AclFileTable, HttpRightsTable
from broker.config.listener import Listener
from broker.config.loader import Config, parse_address

PAIR = {"certfile": ("s.crt",), "keyfile": ("s.key",)}
PROOF = {**PAIR, "cafile": "ca.crt", "require_certificate": True}
ONLY_HERE = " Other machines cannot connect."


def told(*listeners: Listener, **settings: Any) -> tuple[str, str]:
    """Return what the banner says of protection, in one line, and what it leads `shoal sub` by."""
    config = Config(listen=(), listener=listeners, **settings)
    text = banner(config, [parse_address(listener.address) for listener in listeners], Path("/data"))
    protection = text.partition("Protection:")[2].partition("\n\n")[0]
    command = next(line for line in text.splitlines() if "'hello/#'" in line)
    return " ".join(protection.split()), command.partition(" sub")[2].partition(" -t ")[0]


def here(scheme: str, port: int, **settings: object) -> Listener:
    return Listener(address=f"{scheme}://127.0.0.1:{port}", **settings)  # type: ignore[arg-type]


def everywhere(scheme: str, port: int, **settings: object) -> Listener:
    return Listener(address=f"{scheme}://0.0.0.0:{port}", **settings)  # type: ignore[arg-type]


EVERYTHING = "and may then subscribe and publish everything"
NO_PASSWORD = "may connect, subscribe and publish without a password"


@pytest.mark.parametrize(("listeners", "protection", "there"), [
    ([here("tcp", 1883)], f"none. Anyone on this machine {NO_PASSWORD}, and nothing is encrypted.{ONLY_HERE}", ""),
    ([everywhere("tcp", 1884), here("ws", 1)],
     f"none. Anyone who reaches these addresses {NO_PASSWORD}, and nothing is encrypted.",
     " --url tcp://127.0.0.1:1884"),
    ([everywhere("tls", 8883, **PAIR)],
     f"none. Anyone who reaches these addresses {NO_PASSWORD}, and what goes over a network is encrypted.",
     " --url tls://127.0.0.1:8883 --cafile FILE"),
    ([everywhere("tls", 8883, **PROOF), here("tcp", 1883), everywhere("ws", 8083)],
     f"Anyone {NO_PASSWORD} at tcp://127.0.0.1:1883, ws://0.0.0.0:8083, "
     "and nothing is encrypted at tcp://127.0.0.1:1883, ws://0.0.0.0:8083.", ""),
    ([everywhere("tls", 8883, **PROOF), here("tcp", 7)],
     f"Anyone on this machine {NO_PASSWORD} at tcp://127.0.0.1:7, and nothing is encrypted at tcp://127.0.0.1:7.",
     " --url tcp://127.0.0.1:7"),
    ([everywhere("wss", 8084, **PROOF)],
     f"clients prove who they are, by a certificate or a key, {EVERYTHING}, and what goes over a network is encrypted.",
     " --url wss://127.0.0.1:8084 --cafile FILE --cert FILE --key FILE"),
    ([here("tls", 8883, psk_file="keys")],
     f"clients prove who they are, by a certificate or a key, {EVERYTHING}, and what goes over a network is encrypted."
     f"{ONLY_HERE}",
     " --url tls://127.0.0.1:8883 --psk KEY --psk-identity NAME"),
    ([Listener(address="unix:///run/s"), everywhere("tls", 8883, **PROOF)],
     f"Anyone on this machine {NO_PASSWORD} at unix:///run/s, and what goes over a network is encrypted.",
     " --url unix:///run/s"),
    ([everywhere("tcp", 1883, proxy_protocol=True), here("ws", 8083, websocket_paths=("/here",))],
     f"none. Anyone who reaches these addresses {NO_PASSWORD}, and nothing is encrypted.",
     " --url ws://127.0.0.1:8083/here"),
])  # fmt: skip
def test_each_listener_is_named_that_is_open(listeners: list[Listener], protection: str, there: str) -> None:
    assert told(*listeners) == (protection, there)


def test_where_clients_have_roles_these_say_what_they_may_do() -> None:
    roles = (DynamicSecurityTable(),)
    assert told(here("tcp", 1883), authenticator=roles)[0] == (
        "clients prove who they are, by a password, a certificate or a key, and nothing is encrypted."
        f"{ONLY_HERE} What clients may do their roles say, by `mosquitto_ctrl dynsec`."
    )
    rules = (AclFileTable(file="acl.conf"),)
    assert told(here("tcp", 1883, authorizers=()), authenticator=roles, authorizer=rules)[0].endswith(
        "by `mosquitto_ctrl dynsec`. What clients may do stands in acl.conf."
    )


@pytest.mark.parametrize(("url", "is_named"), [
    ("http://auth.example/a?key=k", True), ("http://192.0.2.1:8080/a?key=k", True), ("https://auth.example/a", False),
    ("http://127.0.0.1:8080/a", False), ("http://[::1]/a", False), ("http://localhost/a", False),
])  # fmt: skip
def test_a_server_that_decides_without_encryption_is_named(url: str, is_named: bool) -> None:
    tables: tuple[dict[str, Any], ...] = (
        {"authenticator": (HttpTable(urls=(url,)),)},
        {"authenticator": (JwtTable(algorithms=("ES256",), jwks_url=url),)},
        {"authorizer": (HttpRightsTable(urls=("https://auth.example/", url)),)},
    )
    for settings in tables:
        said = told(here("tcp", 1883), **settings)[0]
        named = f"What {url.partition('?')[0]} is asked and answers is not encrypted"
        assert (named in said) == is_named
        assert "key=k" not in said


def test_a_listener_at_which_no_authorizer_is_asked_is_named() -> None:
    rules = (AclFileTable(file="acl.conf", name="a"),)
    listeners = [here("tcp", 1883), here("tcp", 1884, authorizers=()), here("tcp", 1885, authorizers=("a",))]
    assert told(*listeners, authorizer=rules)[0].endswith(
        "What clients may do stands in acl.conf. "
        "At tcp://127.0.0.1:1884 no authorizer is asked: clients may do everything there."
    )


def test_where_there_are_rules_it_says_where_they_stand() -> None:
    rules = (AclFileTable(file="acl.conf"), AclFileTable(file="more.conf"))
    assert told(here("tcp", 1883), authorizer=rules)[0] == (
        f"none. Anyone on this machine may connect without a password, and nothing is encrypted.{ONLY_HERE} "
        "What clients may do stands in acl.conf, more.conf."
    )
    assert told(everywhere("wss", 8084, **PROOF), authorizer=rules)[0] == (
        "clients prove who they are, by a certificate or a key, and what goes over a network is encrypted. "
        "What clients may do stands in acl.conf, more.conf."
    )
