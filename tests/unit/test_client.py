"""The command-line client against a scripted broker: what it says when the broker refuses, misbehaves or is silent."""

from __future__ import annotations

import socket
import threading

import pytest
from click.testing import CliRunner

from broker.cli.mqtt_client import Client
from broker.cli.mqtt_errors import MqttError
from broker.cli.mqtt_url import Way
from broker.cli.pubsub import pub, sub
from broker.wire import packets as p
from broker.wire.properties import PacketType
from broker.wire.reasons import ConnectReturn, Reason


class ScriptedBroker:
    """Accepts one connection and runs a script with it; a failure of the script fails the test at `join`."""

    def __init__(self, script, version=5):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.version = version
        self.buffer = bytearray()
        self.script = script
        self.failure = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            self.socket = self.listener.accept()[0]
            try:
                self.script(self)
            finally:
                self.socket.close()
        except BaseException as error:
            self.failure = error

    def read(self):
        """The client's next packet; None when it has closed."""
        while (frame := p.next_frame(self.buffer)) is None:
            data = self.socket.recv(65536)
            if not data:
                return None
            self.buffer += data
        return p.decode(*frame, self.version)

    def send(self, *packets):
        self.socket.sendall(b"".join(p.encode(packet, self.version) for packet in packets))

    def next_connection(self):
        """Close the connection, and take the one that the client makes next."""
        self.socket.close()
        self.buffer.clear()
        self.socket = self.listener.accept()[0]

    def accept(self, **properties):
        connect = self.read()
        assert isinstance(connect, p.Connect)
        self.send(p.Connack(properties=properties))
        return connect

    def join(self):
        self.thread.join(20)
        self.listener.close()
        assert not self.thread.is_alive()
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def scripted():
    brokers = []

    def start(script, version=5):
        brokers.append(ScriptedBroker(script, version))
        return brokers[-1]

    yield start
    for broker in brokers:
        broker.join()


def run(command, broker, *arguments, stdin=None):
    return CliRunner().invoke(command, ["--url", f"tcp://127.0.0.1:{broker.port}", *arguments], input=stdin)


def test_a_refused_connection_is_one_sentence_with_the_reason(scripted):
    def script(broker):
        broker.read()
        broker.send(p.Connack(False, Reason.NOT_AUTHORIZED, {"reason_string": "ask Ada"}))

    broker = scripted(script)
    result = run(pub, broker, "-t", "a", "-m", "x")
    assert result.exit_code == 1
    assert result.stderr == (
        f"shoal: the broker at 127.0.0.1:{broker.port} refused the connection: not authorized (0x87), "
        "it says: ask Ada.\n"
    )


def test_a_refusal_of_3_1_1_is_told_in_its_own_words(scripted):
    def script(broker):
        broker.read()
        broker.send(p.Connack(False, ConnectReturn.IDENTIFIER_REJECTED))

    result = run(sub, scripted(script, 4), "-t", "a", "-V", "3.1.1")
    assert result.exit_code == 1
    assert "refused the connection: identifier rejected (0x02)." in result.stderr


def test_nobody_listening_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    result = CliRunner().invoke(sub, ["-t", "a", "-p", str(port), "-h", "127.0.0.1"])
    assert result.exit_code == 1
    assert result.stderr == f"shoal: no broker answers at 127.0.0.1:{port} (connection refused).\n"


def test_a_broker_that_closes_at_connect_is_one_sentence(scripted):
    result = run(pub, scripted(lambda broker: broker.read()), "-t", "a", "-m", "x")
    assert result.exit_code == 1
    assert result.stderr == "shoal: the broker closed the connection before it answered CONNECT.\n"


def test_a_disconnect_from_the_broker_is_told_with_its_reason(scripted):
    def script(broker):
        broker.accept()
        broker.read()
        broker.send(p.Disconnect(Reason.SESSION_TAKEN_OVER))

    result = run(sub, scripted(script), "-t", "a")
    assert result.exit_code == 1
    assert result.stderr == "shoal: the broker ended the connection: session taken over (0x8e).\n"


def test_a_broker_that_breaks_the_protocol_is_told_with_the_clause(scripted):
    def script(broker):
        broker.accept()
        broker.socket.sendall(b"\x36\x00")

    result = run(sub, scripted(script), "-t", "a")
    assert result.exit_code == 1
    assert "broke the protocol" in result.stderr
    assert "MQTT-3.3.1-4" in result.stderr


def test_a_refused_message_fails_the_command(scripted):
    def script(broker):
        broker.accept()
        publish = broker.read()
        broker.send(p.Ack(PacketType.PUBACK, publish.packet_identifier, Reason.QUOTA_EXCEEDED))
        broker.read()

    result = run(pub, scripted(script), "-t", "a", "-m", "x", "-q", "1")
    assert result.exit_code == 1
    assert result.stderr == "shoal: the broker refused the message: quota exceeded (0x97).\n"


def test_a_partly_refused_subscription_goes_on_and_a_wholly_refused_one_ends(scripted):
    def partly(broker):
        broker.accept()
        subscribe = broker.read()
        broker.send(p.Suback(subscribe.packet_identifier, (Reason.NOT_AUTHORIZED, Reason.GRANTED_QOS_1)))
        broker.send(p.Publish(b"b", b"hello"))
        assert broker.read() == p.Disconnect()

    result = run(sub, scripted(partly), "-t", "a", "-t", "b", "-C", "1")
    assert (result.exit_code, result.stdout) == (0, "hello\n")
    assert result.stderr == "shoal: the broker refused the subscription to 'a': not authorized (0x87).\n"

    def wholly(broker):
        broker.accept()
        broker.send(p.Suback(broker.read().packet_identifier, (Reason.NOT_AUTHORIZED,)))

    result = run(sub, scripted(wholly), "-t", "a")
    assert (result.exit_code, result.stdout) == (1, "")


def test_the_time_of_w_ends_the_command_and_tells_whether_something_is_missing(scripted):
    def script(broker):
        broker.accept()
        broker.send(p.Suback(broker.read().packet_identifier, (Reason.SUCCESS,)))
        assert broker.read() == p.Disconnect()

    assert run(sub, scripted(script), "-t", "a", "-W", "0").exit_code == 0
    assert run(sub, scripted(script), "-t", "a", "-W", "0", "-C", "1").exit_code == 3


def test_qos_2_is_completed_in_both_directions(scripted):
    # Proves: [MQTT-4.3.3-2] [MQTT-4.3.3-8] [MQTT-4.3.3-11]
    def script(broker):
        broker.accept()
        publish = broker.read()
        assert publish.qos == 2
        broker.send(p.Ack(PacketType.PUBREC, publish.packet_identifier))
        assert broker.read() == p.Ack(PacketType.PUBREL, publish.packet_identifier)
        broker.send(p.Ack(PacketType.PUBCOMP, publish.packet_identifier))
        broker.send(p.Publish(b"t", b"there", 2, packet_identifier=9))
        assert broker.read() == p.Ack(PacketType.PUBREC, 9)
        broker.send(p.Publish(b"t", b"there", 2, dup=True, packet_identifier=9))
        assert broker.read() == p.Ack(PacketType.PUBREC, 9)
        broker.send(p.Ack(PacketType.PUBREL, 9), p.Publish(b"t", b"end"))
        assert broker.read() == p.Ack(PacketType.PUBCOMP, 9)
        assert broker.read() == p.Disconnect()

    with Client(Way("tcp", "127.0.0.1", scripted(script).port), p.Connect(5)) as client:
        client.publish(b"t", b"here", 2)
        client.flush()
        assert [client.receive().payload for _ in range(2)] == [b"there", b"end"]
        client.turn(0)


def test_no_more_messages_are_unfinished_than_the_broker_allows(scripted):
    # Proves: [MQTT-3.3.4-9]
    def script(broker):
        broker.accept(receive_maximum=2)
        first, second = broker.read(), broker.read()
        broker.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            broker.read()
        broker.socket.setblocking(True)
        broker.send(p.Ack(PacketType.PUBACK, second.packet_identifier))
        third = broker.read()
        assert len({first.packet_identifier, second.packet_identifier, third.packet_identifier}) == 3
        broker.send(*(p.Ack(PacketType.PUBACK, each.packet_identifier) for each in (first, third)))
        assert broker.read() == p.Disconnect()

    with Client(Way("tcp", "127.0.0.1", scripted(script).port), p.Connect(5)) as client:
        for number in range(3):
            client.publish(b"t", str(number).encode(), 1)
        client.flush()


def test_keep_alive_is_kept_while_nothing_arrives(scripted):
    # Proves: [MQTT-3.1.2-20] [MQTT-3.2.2-21]
    def script(broker):
        assert broker.accept(server_keep_alive=1).keep_alive_s == 0
        for _ in range(2):
            assert broker.read() == p.Pingreq()
            broker.send(p.Pingresp())
        broker.send(p.Publish(b"t", b"end"))
        assert broker.read() == p.Disconnect()

    with Client(Way("tcp", "127.0.0.1", scripted(script).port), p.Connect(5)) as client:
        assert client.receive().payload == b"end"


def test_an_answer_that_never_comes_ends_in_a_sentence(scripted):
    def script(broker):
        broker.accept()
        while broker.read() is not None:
            pass

    client = Client(Way("tcp", "127.0.0.1", scripted(script).port), p.Connect(5), answer_timeout_s=0.05)
    client.open()
    with pytest.raises(MqttError, match=r"did not answer SUBSCRIBE within 0\.05 seconds"):
        client.subscribe([p.subscription(b"a")])
    client.close()


def test_a_topic_alias_of_the_broker_is_resolved(scripted):
    # Proves: [MQTT-3.3.2-12]
    def script(broker):
        assert broker.accept().properties == {"topic_alias_maximum": 1}
        broker.send(p.Publish(b"t", b"1", properties={"topic_alias": 1}))
        broker.send(p.Publish(b"", b"2", properties={"topic_alias": 1}))
        broker.read()
        broker.send(p.Publish(b"", b"3", properties={"topic_alias": 2}))

    way = Way("tcp", "127.0.0.1", scripted(script).port)
    client = Client(way, p.Connect(5, properties={"topic_alias_maximum": 1}))
    client.open()
    assert [client.receive() for _ in range(2)] == [p.Publish(b"t", b"1"), p.Publish(b"t", b"2")]
    client.publish(b"t", b"go on")
    with pytest.raises(MqttError, match="topic alias 2"):
        client.receive()


def test_limits_that_the_broker_has_named_are_kept(scripted):
    # Proves: [MQTT-3.2.2-11] [MQTT-3.2.2-14] [MQTT-3.2.2-15]
    def script(broker):
        broker.accept(maximum_qos=1, retain_available=0, maximum_packet_size=20)
        assert broker.read() == p.Disconnect()

    with Client(Way("tcp", "127.0.0.1", scripted(script).port), p.Connect(5)) as client:
        with pytest.raises(MqttError, match="QoS 1 at most"):
            client.publish(b"t", b"", 2)
        with pytest.raises(MqttError, match="no retained messages"):
            client.publish(b"t", b"", 0, True)
        with pytest.raises(MqttError, match="20 bytes at most"):
            client.publish(b"t", b"x" * 30)


def test_what_the_options_say_is_what_is_sent(scripted):
    seen = []
    done = threading.Event()

    def script(broker):
        seen.append(broker.accept())
        seen.append(broker.read())
        done.set()

    result = run(
        pub, scripted(script), "-t", "a/b", "-m", "grün", "-r", "-i", "me", "-u", "ada", "-P", "secret", "-k", "7",
        "--no-clean-start", "--session-expiry-interval", "60", "--will-topic", "w", "--will-payload", "bye",
        "--will-qos", "2", "--will-retain", "--will-delay", "5", "--content-type", "text/plain",
        "--correlation-data", "c", "--response-topic", "r", "--message-expiry-interval", "9",
        "--user-property", "k", "1", "--user-property", "k", "2")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert done.wait(20)  # a QoS 0 publisher does not wait to be read
    assert seen == [
        p.Connect(
            5, b"me", False, 7, p.Will(b"w", b"bye", 2, True, {}, 5), "ada", b"secret", {"session_expiry_interval": 60}
        ),
        p.Publish(
            b"a/b",
            "grün".encode(),
            0,
            True,
            False,
            0,
            {
                "message_expiry_interval": 9,
                "content_type": "text/plain",
                "response_topic": "r",
                "correlation_data": b"c",
                "user_property": [("k", "1"), ("k", "2")],
            },
        ),
    ]


@pytest.mark.parametrize(
    ("command", "arguments", "complaint"),
    [
        (pub, ["-t", "a"], "give one of -m, -f, -l and -n"),
        (pub, ["-t", "a", "-m", "x", "-n"], "give one of -m, -f, -l and -n"),
        (pub, ["-t", "a/+", "-n"], "a topic name cannot have wildcards"),
        (pub, ["-t", "", "-n"], "a topic name cannot be empty"),
        (pub, ["-t", "a", "-n", "-V", "3.1.1", "--content-type", "x"], "--content-type needs MQTT 5.0"),
        (pub, ["-t", "a", "-n", "-V", "4", "-P", "x"], "a password without a user name needs MQTT 5.0"),
        (pub, ["-t", "a", "-n", "--no-clean-start"], "--no-clean-start needs a client identifier"),
        (pub, ["-t", "a", "-n", "--will-retain"], "--will-retain needs --will-topic"),
        (pub, ["-t", "a", "-n", "--url", "http://here"], "expected mqtt[s]://HOST"),
        (pub, ["-t", "a", "-n", "--url", "tcp://here:70000"], "expected a port from 1 to 65535"),
        (pub, ["-t", "a", "-f", "/no/such/file"], "No such file"),
        (sub, ["-t", "a", "-V", "4", "--no-local"], "--no-local needs MQTT 5.0"),
        (sub, ["-t", "$share/g/a", "--no-local"], "cannot go with a shared subscription"),
        (sub, ["-t", ""], "a topic filter cannot be empty"),
        (sub, ["-t", "a", "-W", "soon"], "is not a number of seconds"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_sent(command, arguments, complaint):
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.replace("│", " ").split())


def test_sub_comes_again_when_the_connection_is_lost_and_subscribes_anew(scripted):
    def script(broker):
        for payload, ends_with in ((b"one", None), (b"two", p.Disconnect(Reason.SERVER_SHUTTING_DOWN))):
            assert broker.accept().clean_start
            subscribe = broker.read()
            assert isinstance(subscribe, p.Subscribe)
            broker.send(p.Suback(subscribe.packet_identifier, (Reason.SUCCESS,)), p.Publish(b"t", payload))
            if ends_with is not None:
                broker.send(ends_with)
            broker.next_connection()
        broker.read()
        broker.send(p.Connack(reason=Reason.SERVER_BUSY))
        broker.next_connection()
        broker.accept()
        subscribe = broker.read()
        broker.send(p.Suback(subscribe.packet_identifier, (Reason.SUCCESS,)), p.Publish(b"t", b"three"))
        assert isinstance(broker.read(), p.Disconnect)

    result = run(sub, scripted(script), "-t", "t", "-C", "3")
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\nthree\n")
    assert result.stderr.count("; connecting again.") == 2
    assert "server shutting down (0x8b); connecting again." in result.stderr
    assert result.stderr.count("connected again to") == 2


def test_sub_goes_on_with_a_session_that_outlived_the_connection(scripted):
    def script(broker):
        assert broker.accept().clean_start
        subscribe = broker.read()
        broker.send(
            p.Suback(subscribe.packet_identifier, (Reason.SUCCESS,)), p.Publish(b"t", b"one", 2, packet_identifier=7)
        )
        assert broker.read() == p.Ack(PacketType.PUBREC, 7)
        broker.next_connection()
        assert not broker.read().clean_start
        broker.send(
            p.Connack(session_present=True),
            p.Publish(b"t", b"one", 2, dup=True, packet_identifier=7),  # the PUBREC may have been lost
            p.Publish(b"t", b"two", 1, packet_identifier=8),
        )
        assert broker.read() == p.Ack(PacketType.PUBREC, 7)
        assert broker.read() == p.Ack(PacketType.PUBACK, 8)
        assert isinstance(broker.read(), p.Disconnect)

    result = run(sub, scripted(script), "-t", "t", "-q", "2", "-i", "c", "--session-expiry-interval", "60", "-C", "2")
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\n")


@pytest.mark.parametrize("reason", [Reason.SESSION_TAKEN_OVER, Reason.NOT_AUTHORIZED, Reason.SERVER_MOVED])
def test_sub_does_not_come_again_where_that_cannot_help(scripted, reason):
    def script(broker):
        broker.accept()
        subscribe = broker.read()
        broker.send(p.Suback(subscribe.packet_identifier, (Reason.SUCCESS,)), p.Disconnect(reason))

    result = run(sub, scripted(script), "-t", "t")
    assert result.exit_code == 1
    assert "connecting again" not in result.stderr


def test_the_time_of_w_goes_on_while_there_is_no_broker(scripted):
    def script(broker):
        broker.accept()
        broker.listener.close()
        subscribe = broker.read()
        broker.send(p.Suback(subscribe.packet_identifier, (Reason.SUCCESS,)))

    assert run(sub, scripted(script), "-t", "t", "-W", "1.5", "-C", "1").exit_code == 3
