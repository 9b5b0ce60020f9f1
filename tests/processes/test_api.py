"""`/api/v1`: what the admin socket says, over the network, to those who may."""

import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from broker.admin.api import BODY_BYTES_MAX
from broker.admin.http_server import HEADER_BYTES_MAX
from broker.admin.openapi import DESCRIBED
from broker.admin.rest import STREAMS_MAX
from broker.wire.packets import Disconnect, Publish, Suback, Subscribe, subscription
from broker.wire.reasons import Reason
from tests.support.certificates import certificates
from tests.support.http_api import ask, basic, connected, port_of, write_settings
from tests.support.process import BrokerProcess
from tests.support.raw_client import RawClient, wait_until
from tests.support.tokens import token
from tests.support.workers import Workers

SLOW_CLIENTS = 80  # more than the endpoint has connections


@pytest.fixture(scope="module", params=[1, 3])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    options = ("--config", str(write_settings(folder)), "--workers", str(request.param))
    with BrokerProcess(folder, *options) as running:
        yield running


def problem_of(answer: Any, status: int, reason: str) -> Any:
    """Return a problem, which is one as RFC 9457 has it."""
    assert (answer.status, answer.headers["Content-Type"]) == (status, "application/problem+json")
    found = answer.json
    assert (found["type"], found["status"], found["reason"]) == ("about:blank", status, reason)
    assert found["title"]
    assert found["detail"].endswith(".")
    return found


def filled(broker: BrokerProcess) -> RawClient:
    """Return a client that has something of all that can be listed."""
    client = connected(broker, "listed", session_expiry_interval=60)
    client.send(Subscribe(1, (subscription(b"plant/+", 1), subscription(b"$share/all/plant/#", 1))))
    assert isinstance(client.read(), Suback)
    given = {"topic": "plant/level", "payload": "7", "qos": 1, "retain": True}
    assert ask(broker, "/publish", method="POST", given=given).json["recorded"] is True
    assert isinstance(client.read(), Publish)
    assert ask(broker, "/bans", method="POST", given={"kind": "client", "name": "bad", "for_s": 60}).status == 200
    return client


def test_every_answer_is_what_the_document_says(broker: BrokerProcess) -> None:
    document = ask(broker, "/openapi.json").json
    asked = {
        ("GET", "/slowest"): "?limit=5", ("GET", "/clients/*/why"): "?topic=plant/level",
        ("GET", "/routes"): "?topic=plant/level", ("GET", "/acl"): "?client=x&action=publish&topic=a",
        ("GET", "/history"): "?series=clients&last_s=60",
    }  # fmt: skip
    given: dict[tuple[str, str], Any] = {
        ("POST", "/clients/*/kick"): {"session": False},
        ("POST", "/publish"): {"topic": "a", "payload_base64": "AAE=", "qos": 1},
        ("PUT", "/log-level"): {"level": "info"},
        ("POST", "/bans"): {"kind": "user", "name": "eve", "reason": "a test"},
    }
    with filled(broker):
        for (method, path), described in DESCRIBED.items():
            if path in ("/drain", "/restart", "/shadow", "/clients/*/trace", "/peers/*/forget", "/stream"):
                continue  # it ends the broker or its workers, goes on, or has nothing here to tell of
            where = path.replace("*", "listed") + asked.get((method, path), "")
            if method == "DELETE":
                where += "?kind=user&name=eve"
            answer = ask(broker, where, method=method, given=given.get((method, path)))
            assert (answer.status, answer.headers["Content-Type"]) == (described.status, described.content_type), path
            whole = msgspec.to_builtins(msgspec.convert(answer.json, described.answer))
            assert whole == answer.json, (path, answer.json.keys() ^ whole.keys())
            operation = document["paths"][path.replace("*", "{client}")][method.lower()]
            schema = operation["responses"][str(described.status)]["content"][described.content_type]["schema"]
            jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(answer.json)


def test_a_request_that_is_wrong_is_told_what_is_wrong_with_it(broker: BrokerProcess) -> None:
    problem_of(ask(broker, "/nothing"), 404, "unknown_path")
    assert "There is nothing at /nothing" in problem_of(ask(broker, "/nothing"), 404, "unknown_path")["detail"]
    refused = ask(broker, "/status", method="POST")
    problem_of(refused, 405, "method_not_allowed")
    assert refused.headers["Allow"] == "GET"
    problem_of(ask(broker, "/clients?colour=red"), 400, "unknown_argument")
    problem_of(ask(broker, "/clients?limit=0"), 400, "bad_argument")
    problem_of(ask(broker, "/clients/nobody"), 404, "unknown_client")
    problem_of(ask(broker, "/publish", method="POST", given=["a list"]), 400, "bad_json")
    written = ask(broker, "/reload", method="POST", given={}, headers={"Content-Type": "text/plain"})
    problem_of(written, 415, "not_json")
    problem_of(ask(broker, "/live"), 404, "unknown_path")  # that is /livez


def test_who_asks_for_the_head_alone_gets_no_body_of_a_problem_either(broker: BrokerProcess) -> None:
    for user, path, status in ((None, "/status", 401), ("bob", "/nothing", 404), ("bob", "/status", 200)):
        answer = ask(broker, path, user, method="HEAD")
        assert (answer.status, answer.body) == (status, b"")
        assert int(answer.headers["Content-Length"]) > 0
    assert ask(broker, "/stream", "bob", method="HEAD").headers["Content-Type"] == "text/event-stream"
    assert broker.events("admin_failed") == []


def test_who_asks_has_to_be_one_who_may(broker: BrokerProcess) -> None:
    for headers in ({}, {"Authorization": "Basic !"}, {"Authorization": "Digest x"}, {"Authorization": "Bearer "}):
        refused = ask(broker, "/status", None, headers=headers)
        problem_of(refused, 401, "no_login")
        assert 'Basic realm="shoal", charset="UTF-8"' in refused.headers.get_all("WWW-Authenticate")
    for wrong in (basic("ann", "guessed"), {"Authorization": f"Bearer {token('HS256', 1, sub='token').decode()}"}):
        refused = ask(broker, "/status", None, headers=wrong)
        problem_of(refused, 401, "bad_login")
    problem_of(ask(broker, "/status", "carl"), 403, "no_rights")
    assert ask(broker, "/status", "bob").status == 200
    problem_of(ask(broker, "/publish", "bob", method="POST", given={"topic": "a"}), 403, "observer")
    problem_of(ask(broker, "/bans?kind=user&name=eve", "bob", method="DELETE"), 403, "observer")
    bearer = {"Authorization": f"Bearer {token('HS256', sub='token').decode()}"}
    assert ask(broker, "/clients", None, headers=bearer).status == 200
    problem_of(ask(broker, "/reload", None, method="POST", headers=bearer), 403, "observer")
    wait_until(lambda: broker.events("api_refused", user="carl", reason="no_rights"), "the log says who was refused")


def test_a_page_of_another_site_has_nothing_done(broker: BrokerProcess) -> None:
    address = f"127.0.0.1:{port_of(broker)}"
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        problem_of(ask(broker, "/reload", method="POST", headers=headers), 403, "other_site")
    own = {"Origin": f"http://{address}", "Sec-Fetch-Site": "same-origin"}
    assert ask(broker, "/reload", method="POST", headers=own).status == 200


def test_a_listing_is_paged(broker: BrokerProcess) -> None:
    clients = [connected(broker, f"paged-{number}") for number in range(7)]
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = ask(broker, f"/clients?prefix=paged-&limit=3{f'&cursor={cursor}' if cursor else ''}", "bob").json
        assert len(page["rows"]) <= 3
        found += [row["client"] for row in page["rows"]]
        cursor = page["cursor"]
    assert sorted(found) == [f"paged-{number}" for number in range(7)]
    for client in clients:
        client.socket.close()


def test_an_administrator_kicks_bans_and_changes_what_is_logged(broker: BrokerProcess) -> None:
    with connected(broker, "kicked") as client:
        assert ask(broker, "/clients/kicked/kick", method="POST").json["disconnected"] is True
        sent_away = client.read()
        assert isinstance(sent_away, Disconnect)
        assert sent_away.reason == Reason.ADMINISTRATIVE_ACTION
    with connected(broker, "banned") as client:
        given = {"kind": "client", "name": "banned", "for_s": 600, "reason": "a test"}
        assert ask(broker, "/bans", method="POST", given=given).json["ends_in_s"] > 0
        assert isinstance(client.read(), Disconnect)
    assert "banned" in [row["name"] for row in ask(broker, "/bans", "bob").json["rows"]]
    assert ask(broker, "/bans?kind=client&name=banned", method="DELETE").status == 200
    connected(broker, "banned").socket.close()
    assert ask(broker, "/log-level", method="PUT", given={"level": "debug"}).json == {"level": "debug"}
    assert ask(broker, "/log-level", method="PUT", given={"level": "info"}).json == {"level": "info"}
    wait_until(
        lambda: broker.events("api_asked", user="ann", method="DELETE", path="/api/v1/bans"), "the log says who did it"
    )


def test_a_trace_goes_on_until_its_reader_has_gone(broker: BrokerProcess) -> None:
    with connected(broker, "traced") as client:
        connection = http.client.HTTPConnection("127.0.0.1", port_of(broker), timeout=30)
        connection.request("GET", "/api/v1/clients/traced/trace", headers=basic("bob"))
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Content-Type"]) == (200, "application/x-ndjson")
        assert json.loads(answer.readline())["event"] == "tracing"
        client.send(Subscribe(1, (subscription(b"traced", 0),)))
        line = json.loads(answer.readline())
        while "SUBSCRIBE" not in str(line).upper():
            line = json.loads(answer.readline())
        connection.close()


def stream_of(broker: BrokerProcess, user: str = "bob") -> tuple[http.client.HTTPConnection, Any]:
    """Return a connection, and the answer that its events come in."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(broker), timeout=30)
    connection.request("GET", "/api/v1/stream", headers=basic(user))
    return connection, connection.getresponse()


def event_in(answer: Any) -> tuple[str, Any]:
    """Return the next event: its name and its data."""
    name = answer.readline().decode().removeprefix("event: ").strip()
    data = answer.readline().decode().removeprefix("data: ")
    assert answer.readline() == b"\n"
    return name, json.loads(data)


def test_the_overview_is_streamed_and_remembered(broker: BrokerProcess) -> None:
    connection, answer = stream_of(broker)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
    name, whole = event_in(answer)
    assert name == "overview"
    while whole["workers"] < len(ask(broker, "/workers").json["rows"]):  # one has only begun to serve
        whole |= event_in(answer)[1]
    with connected(broker, "streamed") as client:
        client.send(Publish(b"a", b"b", 0))
        name, changed = event_in(answer)
        while "messages_in_qos0" not in changed:
            assert name == "change"
            assert len(changed) < len(whole)
            name, changed = event_in(answer)
        assert changed["messages_in_qos0"] > 0

        def remembered() -> bool:
            past = ask(broker, "/history?series=clients,messages_in_qos0&step_s=1&last_s=60", "bob").json
            assert list(past["series"]) == ["clients", "messages_in_qos0"]
            assert {len(values) for values in past["series"].values()} == {60}
            return any(past["series"]["messages_in_qos0"])

        wait_until(remembered, "a message is in the past of the overview")
    connection.close()
    day = ask(broker, "/history", "bob").json
    assert day["step_s"] == 15
    assert day["series"].keys() == whole.keys() - {"at_ms", "ready", "draining"}
    assert {len(values) for values in day["series"].values()} == {5760}
    problem_of(ask(broker, "/history?series=colour"), 400, "bad_argument")
    problem_of(ask(broker, "/history?step_s=7"), 400, "bad_argument")


def test_a_stream_ends_with_the_token_that_it_was_opened_with(broker: BrokerProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(broker), timeout=30)
    bearer = f"Bearer {token('HS256', ends_in_s=2, sub='token').decode()}"
    connection.request("GET", "/api/v1/stream", headers={"Authorization": bearer})
    answer = connection.getresponse()
    assert event_in(answer)[0] == "overview"
    while answer.readline():
        pass
    connection.close()


def test_streams_are_few(broker: BrokerProcess) -> None:
    streams = [stream_of(broker) for _ in range(STREAMS_MAX)]
    assert [event_in(answer)[0] for _, answer in streams] == ["overview"] * STREAMS_MAX
    problem_of(ask(broker, "/stream", "bob"), 503, "too_many_streams")
    for connection, answer in streams:
        answer.close()
        connection.close()
    wait_until(lambda: event_after_all(broker), "there is room again")


def event_after_all(broker: BrokerProcess) -> bool:
    """Return whether a stream may be opened."""
    connection, answer = stream_of(broker)
    found = answer.status == 200
    answer.close()
    connection.close()
    return bool(found)


def raw(broker: BrokerProcess, data: bytes) -> socket.socket:
    """Return a connection to the endpoint on which something was sent."""
    found = socket.create_connection(("127.0.0.1", port_of(broker)), 30)
    found.sendall(data)
    return found


def read_all(connection: socket.socket) -> bytes:
    """Return what comes until the other end closes."""
    found = b""
    try:
        while data := connection.recv(65_536):
            found += data
    except ConnectionResetError:
        pass  # it closed before it had read what was still coming
    return found


def test_slow_and_hostile_callers_disturb_no_client(broker: BrokerProcess) -> None:
    login = f"Authorization: {basic('ann')['Authorization']}\r\n"
    head = f"POST /api/v1/publish HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{login}"
    half = b"GET /api/v1/status HTTP/1.1\r\nHost: x\r\nX-Long: "
    with connected(broker, "undisturbed") as client:
        slow = [raw(broker, half) for _ in range(SLOW_CLIENTS // 2)]
        slow += [raw(broker, f"{head}Content-Length: 1000\r\n\r\n{{".encode()) for _ in range(SLOW_CLIENTS // 2)]
        # Without a login a body is not even read.
        big = raw(broker, b"POST /api/v1/publish HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n")
        assert read_all(big).startswith(b"HTTP/1.1 401 ")
        # No byte more than is read: what is left unread resets the connection, and the answer is lost with it.
        long = raw(broker, half + b"x" * (HEADER_BYTES_MAX + 1 - len(half)))
        assert read_all(long).startswith(b"HTTP/1.1 431 ")
        other = raw(broker, b"\x16\x03\x01\x00\xff" * 20 + b"\r\n\r\n")
        assert read_all(other).startswith(b"HTTP/1.1 400 ")
        much = raw(broker, f"{head}Content-Length: 99999999\r\n\r\n".encode() + b" " * (BODY_BYTES_MAX + 1))
        assert read_all(much).startswith(b"HTTP/1.1 413 ")
        client.send(Subscribe(1, (subscription(b"own", 1),)))
        assert isinstance(client.read(), Suback)
        for path in (b"/metrics", b"/readyz", b"/api/v1/status"):  # one behind the other, and no answer is read
            slow.append(raw(broker, b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path * 300))
        for number in range(50):
            client.send(Publish(b"own", b"%d" % number, 0))
            echoed = client.read()
            assert isinstance(echoed, Publish)
            assert echoed.payload == b"%d" % number
        assert ask(broker, "/status", "bob").status == 200  # one that is slow has made room
        for connection in (*slow, big, long, other, much):
            connection.close()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Path]]:
    folder = tmp_path_factory.mktemp("secured")
    put(folder, "first")
    http = f'certfile = ["{folder}/http.crt"]\nkeyfile = ["{folder}/http.key"]\nadministrators = ["ann"]\n'
    with BrokerProcess(folder, "--config", str(write_settings(folder, http))) as running:
        yield running, folder


def put(folder: Path, name: str) -> None:
    """Put a new certificate in place, as those do who renew them."""
    certificate, key = certificates().issue(name, "127.0.0.1", common_name=name)
    for source, target in ((certificate, "http.crt"), (key, "http.key")):
        (folder / "new").write_bytes(Path(source).read_bytes())
        os.replace(folder / "new", folder / target)


def test_tls_is_spoken_and_a_new_certificate_is_used(secured: tuple[BrokerProcess, Path]) -> None:
    running, folder = secured
    context = ssl.create_default_context(cafile=str(certificates().cafile))
    assert ask(running, "/status", context=context).status == 200
    with raw(running, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") as plain:
        assert b"HTTP" not in read_all(plain)

    def shown() -> str:
        connection = socket.create_connection(("127.0.0.1", port_of(running)), 30)
        with context.wrap_socket(connection, server_hostname="127.0.0.1") as stream:
            (subject,) = [value for ((name, value),) in stream.getpeercert()["subject"] if name == "commonName"]
            return str(subject)

    assert shown() == "first"
    (folder / "http.key").write_text("no key")
    assert shown() == "first"
    wait_until(lambda: running.events("http_certificates_unusable"), "the log says so")
    put(folder, "second")
    assert shown() == "second"


def test_failed_logins_slow_an_address_down(secured: tuple[BrokerProcess, Path]) -> None:
    running, _ = secured
    context = ssl.create_default_context(cafile=str(certificates().cafile))
    for _ in range(3):
        assert ask(running, "/status", None, headers=basic("bob", "guessed"), context=context).status == 401
    slowed = ask(running, "/status", "bob", context=context)  # though it is right now
    problem_of(slowed, 429, "logins_slowed")
    assert slowed.headers["Retry-After"]
    assert ask(running, "/status", context=context).status == 200  # another user of this address
    with RawClient(running.port) as client:
        assert client.connect("x", user_name="bob").reason == Reason.CONNECTION_RATE_EXCEEDED


def test_a_broker_is_drained(secured: tuple[BrokerProcess, Path]) -> None:
    running, _ = secured
    context = ssl.create_default_context(cafile=str(certificates().cafile))
    answer = ask(running, "/drain", method="POST", context=context)
    assert (answer.status, answer.json) == (202, {"draining": True})
    assert running.process is not None
    running.process.communicate(timeout=30)
    assert running.process.returncode == 0


def test_without_users_there_is_no_api(tmp_path: Path) -> None:
    with Workers(tmp_path, 1, SHOAL_HTTP__LISTEN="127.0.0.1:0") as plain:
        refused = ask(plain, "/status")
        assert "neither [http] administrators nor observers" in problem_of(refused, 404, "no_api")["detail"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ('listen = "9641"\nadministrators = ["ann"]\n', "an [[authenticator]] that knows these users"),
        ('administrators = ["ann"]\n', "an address: other settings of [http] are given"),
        ('listen = "9641"\ncertfile = ["a"]\n', "as many keys as certificates: 1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path, settings: str, expected: str) -> None:
    (tmp_path / "shoal.toml").write_text(f"[http]\n{settings}")
    with pytest.raises(AssertionError) as refusal:
        BrokerProcess(tmp_path, "--config", str(tmp_path / "shoal.toml")).start()
    assert expected in str(refusal.value)
