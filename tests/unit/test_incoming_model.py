"""Packet identifiers of QoS 2 messages that a client has sent and not released, against a set."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from broker.auth.acl import AllowAll
from broker.auth.authenticator import Anonymous
from broker.config.loader import Config, Mqtt
from broker.control.controller import Controller
from broker.reactor.pump import Pump
from broker.reactor.turn import Hub
from broker.wire.packets import Ack, Connect, Publish, Subscribe, decode, encode, next_frame, subscription
from broker.wire.properties import PacketType
from broker.wire.reasons import CloseReason, Reason
from broker.worker.terms import terms
from router.router import Router
from router.sessions.ledger import Ledger

NOW_MS = 1_000_000
# Few, so that they come again; most with the same low bits, so that they meet in the table whatever its size.
IDENTIFIERS = [1 + step * 1024 for step in range(8)] + [2, 65_535]
MANY = [1 + step * 1024 for step in range(60)]
STEPS = st.lists(
    st.tuples(
        st.sampled_from((PacketType.PUBLISH, PacketType.PUBLISH, PacketType.PUBREL, None)), st.sampled_from(IDENTIFIERS)
    ),
    min_size=10,
    max_size=100,
)


class Talk:
    """A client that publishes at QoS 2 and hears its own messages at QoS 0, over one connection after another."""

    def __init__(self, router: Router | None = None, log: Any = None) -> None:
        self.router = router or Router(Ledger())
        self.log = log
        config = Config(mqtt=Mqtt(receive_maximum=65_535))
        controller = Controller(config, self.router, Anonymous(), AllowAll())
        self.hub = Hub(self.router, controller, Pump(self.router, log), now_ms=NOW_MS, **terms(config))
        self.connection: Any = None
        self.connect()
        assert len(self.say(Subscribe(1, (subscription(b"t", 0),)))) == 1

    def say(self, *packets: Any) -> list[Any]:
        """Send packets and return the answers."""
        self.connection.feed_bytes(b"".join(encode(packet, 5) for packet in packets))
        self.hub.run_turn(NOW_MS)
        while self.log is not None and self.log.commit():
            self.hub.run_turn(NOW_MS)
        buffer, answers = bytearray(self.connection.take_output()), []
        while (frame := next_frame(buffer)) is not None:
            answers.append(decode(*frame, 5))
        return answers

    def connect(self) -> None:
        """Go on with the session on a new connection."""
        if self.connection is not None:
            self.connection.close(CloseReason.CONNECTION_LOST)
            self.hub.run_turn(NOW_MS)
        self.connection = self.hub.connect()
        self.say(Connect(5, b"c", False, properties={"session_expiry_interval": 0xFFFFFFFF}))


@given(steps=STEPS)
@example(
    steps=[(PacketType.PUBLISH, identifier) for identifier in MANY]
    + [(PacketType.PUBREL, identifier) for identifier in MANY]
)
def test_a_qos_2_message_is_passed_on_once_until_it_is_released(steps: list[tuple[PacketType | None, int]]) -> None:
    # Proves: [MQTT-4.3.3-10], [MQTT-4.3.3-12]
    talk = Talk()
    unreleased: set[int] = set()
    for packet_type, identifier in steps:
        if packet_type is None:
            talk.connect()
        elif packet_type == PacketType.PUBLISH:
            answers = talk.say(Publish(b"t", b"%d" % identifier, 2, False, identifier in unreleased, identifier))
            passed_on = [answer.payload for answer in answers if isinstance(answer, Publish)]
            assert passed_on == ([] if identifier in unreleased else [b"%d" % identifier])
            assert Ack(PacketType.PUBREC, identifier) in answers
            unreleased.add(identifier)
        else:
            reason = Reason.SUCCESS if identifier in unreleased else Reason.PACKET_IDENTIFIER_NOT_FOUND
            assert talk.say(Ack(PacketType.PUBREL, identifier)) == [Ack(PacketType.PUBCOMP, identifier, reason)]
            unreleased.discard(identifier)
        assert talk.router.sessions[b"c"].state()["incoming"] == sorted(unreleased)
