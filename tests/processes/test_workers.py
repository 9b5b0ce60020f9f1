"""`shoal serve --workers 3`: what becomes of clients and workers when workers, or their supervisor, end."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from broker.wire.packets import Ack, Disconnect, Publish, Suback, Subscribe, subscription
from broker.wire.reasons import Reason
from tests.support.raw_client import RawClient, wait_until
from tests.support.workers import Workers, is_alive
from tests.tools.soak.claims import claims
from tests.tools.soak.stall import Publisher, Subscriber, stall


def ended(broker: Workers) -> tuple[int, str]:
    """Wait until a broker has ended; return its exit code and the last line that it wrote to standard error."""
    code = broker.process.wait(30)
    broker.process.stdout.close()
    return code, broker.errors.read_text().splitlines()[-1]


def run_dir_of(data: Path) -> Path:
    """Return the folder with the sockets of the broker that runs on a data folder."""
    (found,) = (link.parent for link in Path(tempfile.gettempdir()).glob("shoal-*/data") if link.readlink() == data)
    return found


def test_a_session_is_found_again_wherever_its_client_is_let_in(tmp_path: Path) -> None:
    with Workers(tmp_path) as broker:
        names = [name for home in range(3) for name in broker.names(home, 4)]
        for name in names:
            with RawClient(broker.port) as client:
                assert not client.connect(name, keep=True).session_present
                client.send(Subscribe(1, (subscription(f"to/{name}".encode(), 1),)))
                assert isinstance(client.read(), Suback)
        for _ in range(6):
            for name in names:
                with RawClient(broker.port) as client:
                    assert client.connect(name, keep=True).session_present
                    client.send(Publish(f"to/{name}".encode(), b"x", 1, packet_identifier=7))
                    packets = [client.read(), client.read()]
                    assert {type(packet) for packet in packets} == {Publish, Ack}
                    client.send(
                        *(Ack(4, packet.packet_identifier) for packet in packets if isinstance(packet, Publish))
                    )


@pytest.mark.parametrize("program", ["paho", "mosquitto_sub"])
def test_real_clients_find_their_sessions_again(tmp_path: Path, program: str) -> None:
    if program == "mosquitto_sub" and not shutil.which(program):
        pytest.skip("mosquitto_sub is not installed")
    with Workers(tmp_path) as broker:
        for home in range(3):
            name, publisher = broker.names(home, 2)
            for round_number in range(3):
                if round_number:
                    with RawClient(broker.port) as client:  # at the same home, where its subscriber is known
                        client.connect(publisher)
                        client.send(Publish(name.encode(), b"%d" % round_number, 1, packet_identifier=1))
                        assert client.read() == Ack(4, 1)
                got = real_client(program, broker.port, name, first=not round_number)
                assert got == (str(round_number) if round_number else ""), (name, round_number)


def real_client(program: str, port: int, name: str, *, first: bool) -> str:
    """Have a client subscribe to its own name, and if it is not there for the first time get one message."""
    if program == "mosquitto_sub":
        ending = ["-E"] if first else ["-C", "1"]
        command = ["mosquitto_sub", "-p", str(port), "-i", name, "-c", "-q", "1", "-t", name, *ending]
    else:
        command = [sys.executable, "-c", PAHO, str(port), name, str(int(first))]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()


PAHO = """
import sys
import paho.mqtt.client as paho
port, name, first = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "1"
client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)
client.on_connect = lambda *_: client.subscribe(name, 1)
client.on_subscribe = lambda *_: client.disconnect() if first else None
got = []
client.on_message = lambda _client, _data, message: got.append(message.payload.decode())
client.connect("127.0.0.1", port)
while not got and client.loop() == paho.MQTT_ERR_SUCCESS:
    pass                                             # the message is acknowledged behind on_message
print(*got)
client.disconnect()
"""


def test_a_killed_worker_comes_back_and_who_comes_meanwhile_is_served(tmp_path: Path) -> None:
    with Workers(tmp_path) as broker:
        victims, others = broker.names(1, 5), broker.names(0, 1)
        with RawClient(broker.port) as bystander:
            assert bystander.connect(others[0]).reason == 0
            with RawClient(broker.port) as client:
                client.connect(victims[0], keep=True)
                client.send(Subscribe(1, (subscription(b"to/me", 1),)))
                client.read()
                first = broker.kill_worker(1)
                assert client.read() is None
            # Until the system has closed all that it had, who is sent to it is lost with it (worker/handover.py).
            assert "SIGKILL" in broker.wait_for("worker_ended", worker=1)["what"]
            for name in victims * 3:  # wherever the system puts them: also into the dead one's backlog
                with RawClient(broker.port) as client:
                    answer = client.connect(name, keep=True)
                    assert answer.reason == 0
                    assert answer.session_present or name != victims[0]
            broker.wait_for("worker_listening", worker=1, restarts=1, incarnation=2)
            bystander.send(Publish(b"a", b"x", 1, packet_identifier=1))
            assert bystander.read().packet_identifier == 1
        assert broker.pid_of(1) != first


def test_a_worker_that_ends_too_often_ends_the_broker(tmp_path: Path) -> None:
    with Workers(tmp_path, SHOAL_PROCESSES__RESTARTS_MAX="1") as broker:
        broker.kill_worker(2)
        broker.wait_for("worker_listening", worker=2, restarts=1)
        with RawClient(broker.port) as client:
            client.connect(*broker.names(0))
            broker.kill_worker(2)
            assert client.read() == Disconnect(Reason.SERVER_SHUTTING_DOWN)
        assert ended(broker) == (
            4,
            "Worker 2 ended 2 times within 60 s, at last: it was ended by SIGKILL (killed; perhaps there was no "
            "memory left).",
        )


def test_a_worker_that_cannot_start_ends_the_broker_with_the_reason(tmp_path: Path) -> None:
    with Workers(tmp_path):
        pass
    (tmp_path / "data" / "worker-1" / "incarnation").write_text("none")
    broker = Workers(tmp_path)
    with pytest.raises(AssertionError, match="did not start"):
        broker.start()
    lines = broker.errors.read_text().splitlines()
    assert broker.process.returncode == 3
    assert lines[-1].startswith(f"Worker 1 could not start: The data in {tmp_path}/data/worker-1 cannot be used: ")
    assert lines[-1].count("incarnation") == 1
    assert len(broker.events("worker_not_booted", worker=1)) == 3


def test_an_address_that_somebody_took_while_workers_started_ends_the_broker_with_the_reason(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        broker = Workers(tmp_path)
        broker.options = (*broker.options, "--listen", address)
        broker.launch()
        stopped = wait_until(lambda: list(filter(is_worker, children_of(broker.process.pid))), "a worker starts")[0]
        os.kill(stopped, signal.SIGSTOP)  # the broker has bound the address, and waits for all workers
        other.listen()
        os.kill(stopped, signal.SIGCONT)
        try:
            code, line = ended(broker)
        finally:
            broker.process.kill()
    assert code == 3
    assert line.startswith(f"The address {address} is in use")


def test_a_worker_that_does_not_turn_is_killed_and_replaced(tmp_path: Path) -> None:
    with Workers(tmp_path, SHOAL_PROCESSES__STALL_S="1") as broker:
        stopped = broker.kill_worker(0, signal.SIGSTOP)
        with RawClient(broker.port) as client:  # nobody else is hurt
            assert client.connect(*broker.names(1)).reason == 0
        assert broker.wait_for("worker_killed", worker=0)["pid"] == stopped
        broker.wait_for("worker_listening", worker=0, restarts=1)
        assert not is_alive(stopped)


def test_a_worker_that_was_stopped_for_less_serves_its_clients_again(tmp_path: Path) -> None:
    with Workers(tmp_path) as broker, RawClient(broker.port) as client:
        client.connect(*broker.names(2))
        pid = broker.kill_worker(2, signal.SIGSTOP)
        client.send(Publish(b"a", b"x", 1, packet_identifier=1))
        os.kill(pid, signal.SIGCONT)
        assert client.read().packet_identifier == 1
        assert broker.pid_of(2) == pid


def test_a_killed_supervisor_takes_its_workers_along_and_the_next_start_works(tmp_path: Path) -> None:
    broker = Workers(tmp_path)
    broker.start()
    pids = broker.pids()
    (name,) = broker.names(1)
    with RawClient(broker.port) as client:
        client.connect(name, keep=True)
        os.kill(pids[0], signal.SIGSTOP)  # even one that does not turn
        run_dir = run_dir_of(tmp_path / "data")
        assert oct(run_dir.stat().st_mode & 0o777) == "0o700"
        broker.kill()
        broker.process.stdout.close()
        # The worker sees the end of its control channel, and is killed; whichever the system does first.
        assert client.read() in (None, Disconnect(Reason.SERVER_SHUTTING_DOWN))
    with Workers(tmp_path) as again, RawClient(again.port) as client:
        assert client.connect(name, keep=True).session_present
        assert not any(map(is_alive, pids))
        assert not run_dir.exists()
        run_dir = run_dir_of(tmp_path / "data")
    assert not run_dir.exists()
    assert not (tmp_path / "data" / "run").is_symlink()


def test_what_was_acknowledged_arrives_though_the_supervisor_is_killed_at_once(tmp_path: Path) -> None:
    broker = Workers(tmp_path)
    broker.start()
    names = [broker.names(home, 2) for home in range(3)]
    for name, _ in names:
        Subscriber(broker.port, name, b"to/all", keep=True).socket.close()
    for _, name in names:
        with Publisher(broker.port, name, b"to/all") as publisher:
            for _ in range(20):
                publisher.publish()
    broker.kill()
    broker.process.stdout.close()
    with Workers(tmp_path) as again:
        for name, _ in names:
            with Subscriber(again.port, name, b"to/all", keep=True) as subscriber:
                got = [subscriber.message() for _ in range(60)]
                assert sorted(got, key=int) == [b"%d" % (1 + number // 3) for number in range(60)]


def test_while_a_worker_does_not_turn_the_others_go_on_and_then_its_clients_get_everything(tmp_path: Path) -> None:
    faults, _, _ = stall(tmp_path, 3.0, usual_s=0.5, messages=30, SHOAL_MESH__SILENCE_S="1")
    assert faults == []


def test_of_two_clients_that_claim_a_name_at_once_one_owns_it_and_the_other_is_told(tmp_path: Path) -> None:
    # Proves: [MQTT-3.1.4-3]
    with Workers(tmp_path) as broker:
        assert claims(broker.port, 30) == []


def test_sigterm_tells_the_clients_of_all_workers_and_accepts_no_more(tmp_path: Path) -> None:
    broker = Workers(tmp_path)
    broker.start()
    names = [broker.names(home)[0] for home in range(3)]
    clients = [RawClient(broker.port) for _ in names]
    older = RawClient(broker.port, 4)
    older.connect("an older client")
    for client, name in zip(clients, names, strict=True):
        client.connect(name)
        client.send(Publish(b"a", b"x", 1, packet_identifier=1))
        client.read()
    pids = broker.pids()
    output = broker.stop()
    for client in clients:
        assert client.read() == Disconnect(Reason.SERVER_SHUTTING_DOWN)
        assert client.read() is None
        client.socket.close()
    assert older.read() is None
    older.socket.close()
    assert_refused(broker.port)
    summary = output.splitlines()[-1]
    assert summary.startswith("Shoal has stopped after ")
    assert " 3 messages in," in summary
    assert " 4 connections" in summary
    assert not any(map(is_alive, pids))


def end_beside(broker: Workers, stopped: int) -> None:
    """Tell a broker to end that has a stopped worker; this one is let go once the others have ended."""
    broker.process.send_signal(signal.SIGTERM)
    wait_until(lambda: children_of(broker.process.pid) == [stopped], "the others end")
    os.kill(stopped, signal.SIGCONT)
    assert broker.process.wait(30) == 0
    broker.process.stdout.close()


def test_a_worker_that_waits_for_the_others_ends_when_it_is_told_to(tmp_path: Path) -> None:
    broker = Workers(tmp_path)
    broker.start()
    links = len(broker.events("peer", worker=1, state="up"))
    stopped = broker.kill_worker(0, signal.SIGSTOP)  # it says nothing, so nobody who starts now is ready
    broker.kill_worker(1)
    wait_until(lambda: len(broker.events("peer", worker=1, state="up")) > links, "worker 1 turns again")
    end_beside(broker, stopped)
    assert broker.events("worker_killed") == []


def with_one_stopped(folder: Path) -> tuple[Workers, int, bool]:
    """Start a broker, and stop one of its workers at once; say which, and whether the others found one another."""
    folder.mkdir()
    broker = Workers(folder)
    broker.launch()
    stopped = wait_until(lambda: list(filter(is_worker, children_of(broker.process.pid))), "a worker starts")[0]
    os.kill(stopped, signal.SIGSTOP)
    with contextlib.suppress(AssertionError):
        wait_until(lambda: len(broker.events("peer", state="up")) >= 2, "the others have found one another", 5)
    return broker, stopped, len(broker.events("peer", state="up")) >= 2


def test_workers_that_are_told_to_end_before_all_have_joined_end_without_complaint(tmp_path: Path) -> None:
    # One that is stopped while it opens what they share keeps the others waiting: then another broker is taken.
    for attempt in range(5):
        broker, stopped, have_met = with_one_stopped(tmp_path / str(attempt))
        if have_met:
            break
        os.kill(stopped, signal.SIGCONT)
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(30) == 0
        broker.process.stdout.close()
    end_beside(broker, stopped)
    assert broker.events("worker_ended") == []
    assert "Traceback" not in broker.errors.read_text()


def test_a_second_signal_ends_it_at_once_though_a_worker_does_not_turn(tmp_path: Path) -> None:
    broker = Workers(tmp_path)
    broker.start()
    pids = broker.pids()
    os.kill(pids[0], signal.SIGSTOP)
    broker.process.send_signal(signal.SIGINT)
    wait_until(lambda: not is_alive(pids[1]), "the others end")
    assert broker.process.poll() is None
    broker.process.send_signal(signal.SIGINT)
    assert broker.process.wait(10) == 128 + signal.SIGINT
    broker.process.stdout.close()
    wait_until(lambda: not any(map(is_alive, pids)), "all are gone")


def test_sighup_opens_the_log_file_anew_in_all_processes(tmp_path: Path) -> None:
    file = tmp_path / "shoal.log"
    broker = Workers(tmp_path, SHOAL_LOG__FILE=str(file))
    with broker:
        pids = [broker.process.pid, *broker.pids()]
        file.rename(tmp_path / "rotated")
        broker.process.send_signal(signal.SIGHUP)
        for pid in pids:
            wait_until(lambda pid=pid: str(file) in open_files(pid), f"process {pid} opens it anew")
            assert str(tmp_path / "rotated") not in open_files(pid)


def test_no_process_of_several_loads_the_openssl_that_it_does_not_use(tmp_path: Path) -> None:
    with Workers(tmp_path) as broker:
        assert broker.process is not None
        for pid in (broker.process.pid, *broker.pids()):
            assert "libcrypto" not in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def test_process_1_reaps_whoever_has_no_parent_left(tmp_path: Path) -> None:
    if os.getuid() != 0 or not shutil.which("unshare") or not shutil.which("nsenter"):
        pytest.skip("a process namespace needs root, unshare and nsenter")
    broker = InNamespace(tmp_path, 2)
    with broker:
        supervisor = int(Path(f"/proc/{broker.process.pid}/task/{broker.process.pid}/children").read_text())
        subprocess.run(["nsenter", "-t", str(supervisor), "-p", "/bin/sh", "-c", "sleep 0.1 &"], check=True, timeout=30)
        broker.wait_for("orphan_reaped")
        with RawClient(broker.port) as client:
            assert client.connect(*broker.names(1)).reason == 0
        assert broker.events("worker_ended") == []
        os.kill(supervisor, signal.SIGTERM)
        assert broker.process.wait(30) == 0
    broker.process.stdout.close()


class InNamespace(Workers):
    """A broker that is process 1 of a namespace."""

    def command(self) -> list[str]:
        return ["unshare", "--pid", "--fork", "--kill-child", *super().command()]


def is_worker(pid: int) -> bool:
    """Return whether a process is a worker's."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"shoal: worker ")
    except OSError:
        return False  # it has ended


def children_of(pid: int) -> list[int]:
    """Return the process ids of the children that a process's main thread has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def assert_refused(port: int) -> None:
    """Nobody listens on a port."""
    with pytest.raises(ConnectionRefusedError):
        RawClient(port)


def open_files(pid: int) -> list[str]:
    """Return what a process has open."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(descriptor))
        except OSError:
            continue  # closed meanwhile
    return found
