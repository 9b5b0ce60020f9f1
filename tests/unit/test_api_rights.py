"""Who may what at /api/v1: by the settings, by user name and by group."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from broker.admin.pagination import QueryError
from broker.admin.requests import Head
from broker.admin.rest import Api
from broker.config.http import Http
from broker.config.loader import load
from tests.support.http_api import basic

ROOT = Path(__file__).parents[2]
RIGHTS = Http(administrators=("ann",), administrator_groups=("ops",), observers=("bob",), observer_groups=("staff",))


class Authenticators:
    """A backend of three workers that know everyone, and which of them is asked."""

    def __init__(self, *groups: str) -> None:
        self.groups = groups
        self.asked: list[int] = []

    def workers(self) -> list[int]:
        return [0, 1, 2]

    async def ask(self, worker: int, query: str, arguments: dict[str, Any]) -> dict[str, Any]:
        assert query == "log_in"
        self.asked.append(worker)
        return {"identity": arguments["user"], "groups": list(self.groups), "expires_at_s": None}


async def told(user: str, method: str, *groups: str, rights: Http = RIGHTS) -> str:
    """Return what a user is told who asks; "" if it may."""
    api = Api(Authenticators(*groups), rights)  # type: ignore[arg-type]
    path = "/api/v1/bans?kind=user&name=x" if method == "DELETE" else "/api/v1/status"
    headers = {name.lower(): value for name, value in basic(user).items()}
    try:
        await api.admit(Head(method, path, headers, "192.0.2.1:5"))
    except QueryError as error:
        return error.reason
    return ""


@pytest.mark.parametrize(
    ("user", "groups", "reading", "changing"),
    [
        ("ann", (), "", ""),
        ("eve", ("ops",), "", ""),
        ("bob", (), "", "observer"),
        ("eve", ("guests", "staff"), "", "observer"),
        ("eve", ("staff", "ops"), "", ""),
        ("eve", (), "no_rights", "no_rights"),
        ("ops", ("ann",), "no_rights", "no_rights"),  # a group is no user, and a user no group
    ],
)
async def test_who_may_what(user: str, groups: tuple[str, ...], reading: str, changing: str) -> None:
    assert await told(user, "GET", *groups) == reading
    assert await told(user, "HEAD", *groups) == reading
    assert await told(user, "DELETE", *groups) == changing


async def test_one_group_is_enough_for_an_api() -> None:
    assert await told("eve", "GET", "staff", rights=Http(observer_groups=("staff",))) == ""
    assert await told("eve", "GET", "staff", rights=Http()) == "no_api"


async def test_one_worker_counts_the_failed_logins_of_a_subscriber() -> None:
    backend = Authenticators("ops")
    api = Api(backend, RIGHTS)  # type: ignore[arg-type]
    headers = {name.lower(): value for name, value in basic("eve").items()}
    for number in range(20):
        await api.admit(Head("GET", "/api/v1/status", headers, f"2001:db8::{number:x}:{4000 + number}"))
    assert len(set(backend.asked)) == 1
    for number in range(20):
        await api.admit(Head("GET", "/api/v1/status", headers, f"192.0.2.{number}:4000"))
    assert set(backend.asked) == {0, 1, 2}


def test_the_settings_of_the_page_are_settings(tmp_path: Path) -> None:
    page = (ROOT / "docs/operations.md").read_text()
    blocks = [text.partition("```")[0] for text in page.split("```toml\n")[1:]]
    assert len(blocks) == 2
    for text in blocks:
        (tmp_path / "shoal.toml").write_text(text)
        http = load(tmp_path / "shoal.toml", {}, {}).http
        assert http.listen == tomllib.loads(text)["http"]["listen"]
    assert http.administrators == ("ann",)
    assert http.certfile == ("http.crt",)
