"""`shoal acl` and `shoal admin acl`: what a client may do, and which rule says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broker.cli.acl import acl
from broker.wire.packets import Ack, Connect, Publish, Subscribe, encode, subscription
from tests.processes.test_admin import asked, shoal
from tests.support.process import BrokerProcess
from tests.support.raw_client import RawClient

ACL = """user ann
topic readwrite plant/#
topic deny plant/secret/#
pattern read dev-%c/#
"""
CLIENTS = 4


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(acl, arguments)
    assert result.exit_code == code, result.output
    return result


def test_files_are_checked_and_asked(tmp_path: Path) -> None:
    file, rules = tmp_path / "acl.conf", tmp_path / "rules.toml"
    file.write_text(ACL)
    rules.write_text('[[rule]]\nname = "ops"\ngroups = "ops"\nallow = "all"\ntopics = "#"\n')
    said = run("check", str(file), str(rules)).output
    assert f"{file}: 4 rules, 1 users with rules of their own." in said  # one of them is what patterns imply
    assert f"{file}: %c and %u are replaced where they are a whole level; they stand for themselves in line 4" in said
    assert f"{rules}: 1 rules" in said
    assert run("ask", str(file), "publish", "plant/a", "-u", "ann").output == (
        "yes: acl.conf:2 topic readwrite plant/#\n"
    )
    assert run("ask", str(file), "publish", "plant/secret/a", "-u", "ann", code=1).output == (
        "no: acl.conf:3 topic deny plant/secret/#\n"
    )
    assert run("ask", str(file), "subscribe", "#", "-u", "ann").output == (
        "in part: acl.conf:2 topic readwrite plant/#, acl.conf:3 topic deny plant/secret/#\n"
    )
    assert run("ask", str(file), "read", "plant/a", code=1).output == "no: no rule of acl.conf\n"
    assert run("ask", str(rules), "publish", "x", "--group", "ops").output == "yes: rules.toml:1 (ops) allow all #\n"
    assert "no + and no #" in run("ask", str(file), "publish", "a/+", code=2).output
    file.write_text("topics a\n")
    assert run("check", str(file), code=1).output == (
        f"{file}: line 1: found 'topics', expected user, topic or pattern\n"
    )
    assert "No such file" in run("check", str(tmp_path / "none"), code=1).output


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_running_broker_says_what_a_client_may_do_and_why(tmp_path: Path, workers: str) -> None:
    (tmp_path / "acl.conf").write_text(ACL)
    (tmp_path / "trial.conf").write_text("user ann\ntopic read plant/#\n")
    (tmp_path / "shoal.toml").write_text(
        f'[[authorizer]]\ntype = "acl_file"\nfile = "{tmp_path / "acl.conf"}"\nshadow = "{tmp_path / "trial.conf"}"\n'
    )
    with BrokerProcess(tmp_path, "--config", str(tmp_path / "shoal.toml"), "--workers", workers) as broker:
        with RawClient(broker.port) as client:
            client.socket.sendall(encode(Connect(5, b"meter", user_name="ann"), 5))
            client.read()
            status, answer = asked(broker, "/acl?client=meter&action=publish&topic=plant/secret/x")
            assert status == 200
            assert answer == {
                "client": "meter",
                "user": "ann",
                "address": "127.0.0.1",
                "known_from": "connection",
                "action": "publish",
                "topic": "plant/secret/x",
                "allowed": "refused",
                "decided_by": "acl.conf:3 topic deny plant/secret/#",
            }
            said = shoal(broker, "admin", "acl", "meter", "subscribe", "plant/#")
            assert said.splitlines()[0] == (
                "in part: acl.conf:2 topic readwrite plant/#, acl.conf:3 topic deny plant/secret/#"
            )
            assert "meter, which is connected: user name ann, from 127.0.0.1" in said
            assert shoal(broker, "admin", "acl", "meter", "subscribe", "$share/g/plant/a").startswith("yes")
            assert shoal(broker, "admin", "acl", "meter", "publish", "$SYS/x").startswith("no: the broker's own topics")
            # And of one that is not there, or as if it were another.
            assert shoal(broker, "admin", "acl", "meter", "publish", "plant/a", "--user", "bob").startswith(
                "no: no rule of acl.conf"
            )
        assert shoal(broker, "admin", "acl", "other", "publish", "plant/a", "--user", "ann").startswith(
            "yes: acl.conf:2"
        )
        assert shoal(broker, "admin", "acl", "other", "publish", "plant/a").startswith("no: no rule of acl.conf")
        for query, said in (
            ("action=write&topic=a", "action is one of publish, subscribe, read"),
            ("action=publish&topic=a/%2B", "topic"),
            ("action=subscribe&topic=a%23", "fills a whole level"),
            ("action=publish&topic=a&qos=3", "qos is 0, 1 or 2"),
            ("action=publish&topic=a&address=here", "address is an IP address"),
            ("action=publish&topic=a&listener=9", "listener is 1 to 1"),
            ("action=subscribe&topic=$share/g", "a topic filter follows"),
        ):
            status, answer = asked(broker, f"/acl?client=c&{query}")
            assert status == 400
            assert said in answer["error"]["text"]
        try_other_rules(broker, tmp_path)
        # Each client that published, on whichever worker it lives, has been counted.
        lines = shoal(broker, "admin", "shadow").splitlines()
        assert f"{CLIENTS + 1} would have been refused or narrowed, 0 allowed." in lines[0]
        assert lines[1] == f"  {CLIENTS + 1} refused: no rule of trial.conf"
        assert (
            "  2 refused: passing (ann) publish plant/0" in lines
            or "  2 refused: kept-0 (ann) publish plant/0" in lines
        )


def try_other_rules(broker: BrokerProcess, folder: Path) -> None:
    """Have the log of a broker that runs judged by another file: of kept sessions on all workers."""
    for number in range(CLIENTS):
        with RawClient(broker.port) as client:
            client.connect(f"kept-{number}", keep=True, user_name="ann")
            client.send(Subscribe(1, (subscription(b"plant/%d" % number, 1),)))
            client.read()
            client.send(Publish(b"plant/%d" % number, b"x", 1, packet_identifier=2))
            while not isinstance(client.read(), Ack):  # it gets the message itself, too
                pass
    with RawClient(broker.port) as passing, RawClient(broker.port) as other:
        passing.connect("passing", user_name="ann")
        passing.send(Publish(b"plant/0", b"x", 1, packet_identifier=2))
        passing.read()
        other.connect("other", user_name="ann")
    file = folder / "new.conf"
    file.write_text("user ann\ntopic read plant/#\ntopic write plant/1\ntopic write plant/never\n")
    said = shoal(broker, "acl", "test", str(file), "--since", "1h", "--json", exit_code=1, output=True)
    found = json.loads(said)
    assert {(row["client"], row["user"], row["topic"]) for row in found["rows"]} == {
        (f"kept-{number}", "ann", f"plant/{number}") for number in range(CLIENTS) if number != 1
    }
    assert (found["messages"], found["subscriptions"]) == (CLIENTS, CLIENTS)
    assert found["not_judged"]["clients"] == {"passing": 1}
    assert found["unused"] == ["new.conf:4 topic write plant/never"]
    assert found["problems"] == []
