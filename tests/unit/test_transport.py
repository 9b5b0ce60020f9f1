"""The sockets of the mesh: nothing is missed, nobody unknown is let in, and whoever is gone is no error."""

import os
import select
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from mesh.base_transport import FrameHandler
from mesh.transport import Transport

DEADLINE_S = 20
COMMAND_DELAY_S = 0.003  # libzmq looks at its mailbox in a send only if it has not for 3,000,000 cycles


class Collector(FrameHandler):  # type: ignore[misc]
    """Keeps what comes."""

    def __init__(self) -> None:
        self.frames: list[tuple[bytes, bool, bytes]] = []

    def on_frame(self, identity: bytes, answer: bool, frame: bytes) -> None:
        self.frames.append((identity, answer, frame))


class Host:
    """A transport, watched as the reactor does it."""

    def __init__(self, identity: bytes, endpoint: str, **security: object) -> None:
        self.transport = Transport(identity, endpoint, **security)
        self.collector = Collector()
        self.epoll = select.epoll()
        self.watched: set[int] = set()
        self.watch()

    def watch(self) -> None:
        """Watch what is new, and no more what has gone."""
        for fd in set(self.transport.fds) - self.watched:
            self.epoll.register(fd, select.EPOLLIN)
        self.watched = set(self.transport.fds)

    def connect(self, key: bytes, endpoint: str, server_key: bytes | None = None) -> object:
        channel = self.transport.connect(key, endpoint, server_key)
        self.watch()
        return channel

    def turn(self, timeout_s: float = 0.0) -> int:
        """Wait for a while, unless something is there, and take it if there is; returns how many frames."""
        if not self.transport.is_pending():
            readable = self.epoll.poll(timeout_s)
            if not readable:
                return 0
            for fd, _ in readable:
                self.transport.mark_readable(fd)
        return int(self.transport.receive_frames(self.collector))

    def until(self, condition: Callable[[], bool]) -> None:
        """Turn until something holds."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end, self.collector.frames[-3:]
            self.turn(0.05)

    def until_frames(self, count: int) -> None:
        """Turn until so many frames have come in all."""
        self.until(lambda: len(self.collector.frames) >= count)

    def close(self) -> None:
        self.epoll.close()
        self.transport.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    # A path of a Unix socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="mesh-", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def make() -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def host(identity: bytes, endpoint: str, **security: object) -> Host:
        hosts.append(Host(identity, endpoint, **security))
        return hosts[-1]

    yield host
    for made in hosts:
        made.close()


@pytest.fixture(params=["ipc", "tcp"])
def endpoints(request: pytest.FixtureRequest, folder: Path) -> Callable[[int], str]:
    return lambda worker: f"ipc://{folder}/{worker}" if request.param == "ipc" else "tcp://127.0.0.1:0"


def pair(make: Callable[..., Host], endpoints: Callable[[int], str]) -> tuple[Host, Host, object]:
    """Two hosts and the first one's channel to the second."""
    one, two = make(b"node/1/7", endpoints(1)), make(b"node/2/9", endpoints(2))
    return one, two, one.connect(b"node/2", two.transport.endpoint)


def test_frames_go_there_and_answers_come_back(make: Callable[..., Host], endpoints: Callable[[int], str]) -> None:
    one, two, channel = pair(make, endpoints)
    sent = [b"", b"x", os.urandom(200), os.urandom(3_000_000)]
    for frame in sent:
        one.transport.send_frame(channel, frame)
    two.until_frames(len(sent))
    assert two.collector.frames == [(b"node/1/7", False, frame) for frame in sent]
    assert two.transport.answer_frame(b"node/1/7", b"well")
    one.until_frames(1)
    assert one.collector.frames == [(b"node/2", True, b"well")]


def test_an_answer_to_nobody_is_no_error(make: Callable[..., Host], endpoints: Callable[[int], str]) -> None:
    one, two, channel = pair(make, endpoints)
    assert not two.transport.answer_frame(b"node/1/8", b"late")
    assert two.transport.unanswerable == 1
    one.transport.send_frame(channel, b"x")
    two.until_frames(1)
    assert two.transport.answer_frame(b"node/1/7", b"in time")
    one.until_frames(1)


def test_what_is_sent_before_the_peer_is_there_waits_for_it_in_order(make: Callable[..., Host], folder: Path) -> None:
    one = make(b"node/1/7", f"ipc://{folder}/1")
    channel = one.connect(b"node/2", f"ipc://{folder}/2")
    for number in range(100):
        one.transport.send_frame(channel, b"%d" % number)
    two = make(b"node/2/9", f"ipc://{folder}/2")
    two.until_frames(100)
    assert [frame for _, _, frame in two.collector.frames] == [b"%d" % number for number in range(100)]


def test_a_peer_that_starts_again_at_its_endpoint_is_found(make: Callable[..., Host], folder: Path) -> None:
    one = make(b"node/1/7", f"ipc://{folder}/1")
    channel = one.connect(b"node/2", f"ipc://{folder}/2")
    for incarnation in (1, 2, 3):
        two = make(b"node/2/%d" % incarnation, f"ipc://{folder}/2")
        end = time.monotonic() + DEADLINE_S
        while not two.collector.frames:
            assert time.monotonic() < end
            one.transport.send_frame(channel, b"x")  # what the one before had got is lost with it
            one.turn()
            two.turn(0.02)
        two.close()


def test_a_second_connection_under_one_identity_takes_over(make: Callable[..., Host], folder: Path) -> None:
    # Without ROUTER_HANDOVER the second one is never heard, not even when the first has ended: a peer whose connection
    # broke unnoticed, and that came again before we found out, would be mute for ever.
    two = make(b"node/2/9", f"ipc://{folder}/2")
    first, second = make(b"node/1/7", f"ipc://{folder}/1"), make(b"node/1/7", f"ipc://{folder}/1b")
    for count, host in enumerate((first, second), 1):
        channel = host.connect(b"node/2", two.transport.endpoint)
        host.transport.send_frame(channel, b"x")
        two.until_frames(count)
    assert two.transport.answer_frame(b"node/1/7", b"to the second")
    second.until_frames(1)
    assert first.collector.frames == []


def test_a_frame_whose_signal_a_send_has_swallowed_is_not_missed(
    make: Callable[..., Host], endpoints: Callable[[int], str]
) -> None:
    one, two, channel = pair(make, endpoints)
    one.transport.send_frame(channel, b"known")
    two.until_frames(1)
    missed_by_fd = 0
    for number in range(50):
        assert not two.transport.is_pending()
        time.sleep(COMMAND_DELAY_S)
        one.transport.send_frame(channel, b"%d" % number)
        assert two.epoll.poll(DEADLINE_S), "the frame is at the other end"
        assert two.transport.answer_frame(b"node/1/7", b"")
        missed_by_fd += not two.epoll.poll(0)
        assert two.transport.is_pending(), number
        two.turn()
        assert two.collector.frames[-1][2] == b"%d" % number
    assert missed_by_fd > 25, "the trap was not there"


def test_a_call_takes_a_bounded_number_of_frames_and_the_rest_is_pending(
    make: Callable[..., Host], endpoints: Callable[[int], str]
) -> None:
    one, two, channel = pair(make, endpoints)
    for number in range(1000):
        one.transport.send_frame(channel, b"%d" % number)
    counts = []
    due_s = time.monotonic() + DEADLINE_S
    while sum(counts) < 1000:
        counts.append(two.turn(DEADLINE_S))  # none, if the descriptor told of something else
        assert time.monotonic() < due_s, "what is left is neither pending nor told of"
    assert max(counts) <= 256
    assert [frame for _, _, frame in two.collector.frames] == [b"%d" % number for number in range(1000)]


def test_what_a_handler_raises_leaves_the_rest_for_the_next_call(
    make: Callable[..., Host], endpoints: Callable[[int], str]
) -> None:
    class Refusing(Collector):
        def on_frame(self, identity: bytes, answer: bool, frame: bytes) -> None:
            super().on_frame(identity, answer, frame)
            if frame == b"bad":
                raise ValueError(frame)

    one, two, channel = pair(make, endpoints)
    for frame in (b"1", b"bad", b"2", b"3"):
        one.transport.send_frame(channel, frame)
    two.collector = Refusing()
    with pytest.raises(ValueError, match="bad"):
        two.until_frames(4)
    two.until_frames(4)
    assert [frame for _, _, frame in two.collector.frames] == [b"1", b"bad", b"2", b"3"]


def test_parts_that_no_peer_of_ours_sends_are_passed_over(make: Callable[..., Host], folder: Path) -> None:
    two = make(b"node/2/9", f"ipc://{folder}/2")
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.routing_id = b"odd"
        dealer.connect(two.transport.endpoint)
        dealer.send_multipart([b"first", b"second", b"third"])
        dealer.send(b"after")
        two.until_frames(2)
    assert two.collector.frames == [(b"odd", False, b"first"), (b"odd", False, b"after")]


def test_a_channel_that_is_closed_leaves_the_others(make: Callable[..., Host], endpoints: Callable[[int], str]) -> None:
    one, two, channel = pair(make, endpoints)
    other = one.connect(b"node/3", make(b"node/3/1", endpoints(3)).transport.endpoint)
    assert len(one.transport.fds) == 3
    one.epoll.unregister(other.fd)  # type: ignore[attr-defined]
    one.transport.disconnect(other)
    one.watch()
    assert len(one.transport.fds) == 2
    one.transport.send_frame(channel, b"x")
    two.until_frames(1)


# Encryption -----------------------------------------------------------------------------------------------------------


def test_only_known_keys_are_let_in_and_only_under_their_own_names(make: Callable[..., Host]) -> None:
    keys = {name: zmq.curve_keypair() for name in (b"a", b"b", b"c", b"nobody")}
    names = {keys[name][0]: name for name in (b"a", b"b", b"c")}
    server = make(b"b/0/1", "tcp://127.0.0.1:0", keys=keys[b"b"], names=names)

    def client(name: bytes, identity: bytes) -> tuple[Host, object]:
        host = make(identity, "tcp://127.0.0.1:0", keys=keys[name], names=names)
        return host, host.connect(b"b/0", server.transport.endpoint, keys[b"b"][0])

    good, to_server = client(b"a", b"a/0/1")
    good.transport.send_frame(to_server, b"good")
    server.until_frames(1)
    assert server.transport.answer_frame(b"a/0/1", b"welcome")
    good.until_frames(1)

    unknown, channel = client(b"nobody", b"a/0/2")
    unknown.transport.send_frame(channel, b"unknown")
    server.until(lambda: server.transport.refused == 1)

    impostor, channel = client(b"c", b"a/0/3")
    impostor.transport.send_frame(channel, b"impostor")
    server.until(lambda: server.transport.impostors == 1)

    names[keys[b"nobody"][0]] = b"nobody"
    late, channel = client(b"nobody", b"nobody/0/1")
    late.transport.send_frame(channel, b"known by now")
    server.until_frames(2)
    assert [frame for _, _, frame in server.collector.frames] == [b"good", b"known by now"]


def test_who_does_not_encrypt_is_not_heard_and_hears_nothing(make: Callable[..., Host]) -> None:
    keys = zmq.curve_keypair()
    server = make(b"b/0/1", "tcp://127.0.0.1:0", keys=keys, names={keys[0]: b"b"})
    plain = make(b"a/0/1", "tcp://127.0.0.1:0")
    plain.transport.send_frame(plain.connect(b"b/0", server.transport.endpoint), b"plain")
    own = make(b"b/1/1", "tcp://127.0.0.1:0", keys=keys, names={keys[0]: b"b"})
    own.transport.send_frame(own.connect(b"b/0", server.transport.endpoint, keys[0]), b"encrypted")
    server.until_frames(1)
    assert [frame for _, _, frame in server.collector.frames] == [b"encrypted"]
    assert not server.transport.answer_frame(b"a/0/1", b"secret")
