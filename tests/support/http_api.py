"""A broker with /api/v1, its users, and requests as an operator's program makes them."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from pathlib import Path
from typing import Any

from broker.auth.password_hash import new_hash
from broker.wire.packets import Connack, Connect
from tests.support.process import BrokerProcess
from tests.support.raw_client import RawClient, wait_until
from tests.support.tokens import private_key

USERS = ("ann", "bob", "carl", "device")  # an administrator, an observer, and two that are neither
TIMEOUT_S = 30


def password_of(user: str) -> str:
    """Return the password of a user."""
    return f"{user}: the password"  # with what stands between the two in HTTP Basic


def write_settings(folder: Path, http: str = "") -> Path:
    """Write users, the secret of tokens, and settings with [http]; returns the file of the settings."""
    lines = [f"{user}:".encode() + new_hash(password_of(user).encode(), "sha512-pbkdf2", 2) + b"\n" for user in USERS]
    (folder / "users").write_bytes(b"".join(lines))
    (folder / "secret").write_bytes(private_key("HS256"))
    settings = folder / "shoal.toml"
    settings.write_text(
        f'[[authenticator]]\ntype = "password_file"\nfile = "{folder}/users"\n'
        f'[[authenticator]]\ntype = "jwt"\nalgorithms = ["HS256"]\nsecret_file = "{folder}/secret"\n'
        '[http]\nlisten = "127.0.0.1:0"\n' + (http or 'administrators = ["ann"]\nobservers = ["bob", "token"]\n')
    )
    return settings


class Answered:
    """Status, headers and body of one request."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self.body = answer.read()

    @property
    def json(self) -> Any:
        """The body, taken apart."""
        return json.loads(self.body)


def port_of(broker: BrokerProcess) -> int:
    """Return the port of a broker's HTTP endpoint."""
    listening = wait_until(lambda: broker.events("http_listening"), "HTTP is listened on")
    return int(listening[-1]["address"].rpartition(":")[2])


def basic(user: str, password: str | None = None) -> dict[str, str]:
    """Return the header of a login."""
    text = f"{user}:{password_of(user) if password is None else password}"
    return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


def ask(
    broker: BrokerProcess,
    path: str,
    user: str | None = "ann",
    *,
    method: str = "GET",
    given: Any = None,
    headers: dict[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> Answered:
    """Return the answer to a request at /api/v1, with a body of JSON if something is given."""
    if context is None:
        connection = http.client.HTTPConnection("127.0.0.1", port_of(broker), timeout=TIMEOUT_S)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port_of(broker), timeout=TIMEOUT_S, context=context)
    sent = {} if user is None else basic(user)
    body = None
    if given is not None:
        body, sent["Content-Type"] = json.dumps(given), "application/json"
    try:
        connection.request(method, f"/api/v1{path}", body, {**sent, **(headers or {})})
        return Answered(connection.getresponse())
    finally:
        connection.close()


def connected(broker: BrokerProcess, identifier: str, **more: Any) -> RawClient:
    """Return an MQTT client that is let in."""
    client = RawClient(broker.port)
    client.send(Connect(5, identifier.encode(), True, 0, None, "device", password_of("device").encode(), more))
    answer = client.read()
    assert isinstance(answer, Connack), answer
    assert answer.reason == 0, answer
    return client
