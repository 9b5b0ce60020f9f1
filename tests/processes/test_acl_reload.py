"""An ACL file that changes while real workers run: by command, by signal, by being looked at."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from broker.wire.packets import Ack, Connect, Publish, encode
from broker.wire.reasons import Reason
from tests.processes.test_admin import asked
from tests.support.process import BrokerProcess
from tests.support.raw_client import RawClient, wait_until

ACL = b"user ann\ntopic readwrite plant/#\ntopic read other/#\n"
CLIENTS = 6  # of several workers, as their client identifiers have it


def clients(broker: BrokerProcess) -> list[RawClient]:
    found = []
    for number in range(CLIENTS):
        client = RawClient(broker.port)
        client.socket.sendall(encode(Connect(5, b"c%d" % number, user_name="ann"), 5))
        client.read()
        found.append(client)
    return found


def answers(publishers: list[RawClient], topic: bytes) -> set[int]:
    """Return what the clients are answered that publish to a topic."""
    found = set()
    for client in publishers:
        client.send(Publish(topic, b"x", 1, packet_identifier=7))
        answer = client.read()
        assert isinstance(answer, Ack)
        found.add(int(answer.reason))
    return found


ALLOWED, REFUSED = {Reason.NO_MATCHING_SUBSCRIBERS}, {Reason.NOT_AUTHORIZED}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_changed_file_counts_on_all_workers(tmp_path: Path, workers: str) -> None:
    acl = tmp_path / "acl.conf"
    acl.write_bytes(ACL)
    (tmp_path / "shoal.toml").write_text(f'[[authorizer]]\ntype = "acl_file"\nfile = "{acl}"\n')
    with BrokerProcess(tmp_path, "--config", str(tmp_path / "shoal.toml"), "--workers", workers) as broker:
        publishers = clients(broker)
        assert answers(publishers, b"plant/a") == ALLOWED
        assert answers(publishers, b"other/a") == REFUSED
        acl.write_bytes(ACL.replace(b"readwrite plant/#", b"read plant/#") + b"topic write other/#\n")
        status, answer = asked(broker, "/reload", "POST")
        assert status == 200
        assert [(row["type"], row["rules"], row["users"]) for row in answer["authorizers"]] == [("acl_file", 3, 1)]
        assert (answer["rules"]["come"], answer["rules"]["gone"]) == (2, 1)
        assert answer["rules"]["shown"] == [
            "- acl.conf: user ann: topic readwrite plant/#",
            "+ acl.conf: user ann: topic read plant/#",
            "+ acl.conf: user ann: topic write other/#",
        ]
        assert answers(publishers, b"plant/a") == REFUSED
        assert answers(publishers, b"other/a") == ALLOWED
        # A file that cannot be used: everything stays, and it is said.
        acl.write_bytes(ACL + b"topic read\n\ntopics x\n")
        status, refused = asked(broker, "/reload", "POST")
        assert status == 422
        assert "line 6: found 'topics'" in refused["error"]["text"]
        assert answers(publishers, b"other/a") == ALLOWED
        acl.write_bytes(ACL)
        assert broker.process is not None
        broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: answers(publishers, b"plant/a") == ALLOWED, "the signal")
        assert answers(publishers, b"other/a") == REFUSED
        # And nobody has to say anything.
        acl.write_bytes(b"user ann\ntopic deny #\n")
        wait_until(lambda: answers(publishers, b"plant/a") == REFUSED, "the next look at the file")
        for client in publishers:
            client.socket.close()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_broker_without_its_acl_file_says_so_and_ends(tmp_path: Path, workers: str) -> None:
    (tmp_path / "shoal.toml").write_text('[[authorizer]]\ntype = "acl_file"\nfile = "nowhere"\n')
    broker = BrokerProcess(tmp_path, "--config", str(tmp_path / "shoal.toml"), "--workers", workers)
    with pytest.raises(AssertionError) as caught:
        broker.start()
    assert "authorizer 1: The ACL file nowhere cannot be read: No such file or directory." in str(caught.value)
