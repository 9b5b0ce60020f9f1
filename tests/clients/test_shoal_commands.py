"""`shoal pub` and `shoal sub` as a person runs them: how they end, and what they print."""

import json
import signal
import subprocess

import pytest

from tests.clients.drivers.base import ANSWER_TIMEOUT_S
from tests.clients.drivers.processes import Announcements, Program
from tests.clients.drivers.shoal_driver import SHOAL
from tests.support.process import ROOT


@pytest.fixture
def command(broker_port):
    return lambda verb, *arguments: [*SHOAL, verb, "--url", f"tcp://127.0.0.1:{broker_port}", *arguments]


@pytest.fixture
def subscriber(command):
    """Start `shoal sub` and wait until it has subscribed; what it writes is in its `said`."""
    programs = []

    def start(*arguments):
        said = Announcements()
        program = Program(command("sub", "-d", *arguments), said.lines.put, cwd=ROOT)
        programs.append(program)
        program.said = said
        said.wait_for(b"subscribed to")
        return program

    yield start
    for program in programs:
        program.end(signal.SIGKILL)


def published(command, *arguments, **given):
    return subprocess.run(
        command("pub", *arguments), cwd=ROOT, check=True, capture_output=True, timeout=ANSWER_TIMEOUT_S, **given
    )


def test_ctrl_c_ends_sub_without_a_word(subscriber, unique):
    program = subscriber("-t", unique)
    program.end(signal.SIGINT)
    assert program.process.returncode == 130
    assert program.said.lines.empty()


def test_pub_says_nothing_when_all_is_well(command, unique):
    done = published(command, "-t", unique, "-m", "x", "-q", "2")
    assert (done.stdout, done.stderr) == (b"", b"")


def test_sub_ends_after_the_messages_it_was_to_wait_for(subscriber, command, unique):
    program = subscriber("-t", unique, "-C", "2", "-v", "-q", "1")
    published(command, "-t", unique, "-l", "-q", "1", input=b"one\ntwo\nthree")
    assert program.said.wait_for(b"one") == f"{unique} one\n".encode()
    assert program.said.wait_for(b"two") == f"{unique} two\n".encode()
    program.process.wait(ANSWER_TIMEOUT_S)
    assert program.process.returncode == 0


def test_lines_go_out_as_they_come_in(subscriber, command, unique):
    listening = subscriber("-t", unique)
    typing = Program(command("pub", "-t", unique, "-l"), lambda line: None, cwd=ROOT)
    typing.write(b"first\n")
    assert listening.said.wait_for(b"first") == b"first\n"
    typing.write(b"sec")
    typing.write(b"ond\nthi")
    assert listening.said.wait_for(b"second") == b"second\n"
    typing.write(b"rd")
    typing.end()
    assert listening.said.wait_for(b"third") == b"third\n"
    assert typing.process.returncode == 0


def test_json_has_everything_and_shows_bytes_as_base64(subscriber, command, unique):
    program = subscriber("-t", unique, "--json", "-q", "1", "--subscription-identifier", "7")
    published(command, "-t", unique, "-q", "1", "-f", "-", "--user-property", "k", "v", input=b"\xff\x00")
    fields = json.loads(program.said.wait_for(b"{"))
    assert fields["payload"] == {"base64": "/wA="}
    assert fields["properties"] == {"subscription_identifier": [7], "user_property": [["k", "v"]]}
    assert (fields["topic"], fields["qos"], fields["retain"]) == (unique, 1, False)


def test_a_reader_that_has_enough_ends_sub_quietly(command, unique):
    for number in range(3):
        published(command, "-t", f"{unique}/{number}", "-m", "kept", "-r", "-q", "1")
    program = subprocess.Popen(
        command("sub", "-t", f"{unique}/#"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    program.stdout.close()
    assert program.stderr.read() == b""
    program.stderr.close()
    assert program.wait(ANSWER_TIMEOUT_S) == 0


def test_an_alias_saves_the_topic_name_of_all_lines_but_the_first(subscriber, command, unique):
    program = subscriber("-t", unique, "-v")
    published(command, "-t", unique, "-l", "--topic-alias", "1", input=b"one\ntwo\n")
    for word in (b"one", b"two"):
        assert program.said.wait_for(word) == unique.encode() + b" " + word + b"\n"
