"""A will that waited in the log is published as its client's, not as the broker's."""

import pytest

from broker.auth.enhanced_auth import Exchange
from broker.auth.outcome import Accepted, Outcome
from broker.auth.principal import Principal
from broker.wire.packets import Auth, Connect, Subscribe, Will, encode, subscription
from broker.wire.reasons import Reason
from tests.support.disk import SimulatedDisk
from tests.support.disk_broker import Broker


class TopicOfOnesOwn:
    """Everybody may publish to the topic that has their name; a client without a name, to `nobody`."""

    def may_publish(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        return topic_name.decode() == (principal.user_name or "nobody")

    def may_subscribe(self, principal: Principal, topic_filter: bytes, qos: int) -> bool:
        return True


@pytest.mark.parametrize("user_name", ["ann", "", None])
@pytest.mark.parametrize("topic", [b"ann", b"ben", b"nobody"])
def test_a_will_that_comes_out_of_the_log_is_published_only_where_its_client_may(
    user_name: str | None, topic: bytes
) -> None:
    disk, acl = SimulatedDisk(), TopicOfOnesOwn()
    broker = Broker(disk, acl=acl)
    broker.connect(b"watching").say(Subscribe(1, (subscription(b"#", 1),)))
    broker.connect(b"gone", Will(topic, b"the will", 1), user_name)
    watching = Broker(disk, 2, acl=acl).connect(b"watching")
    watching.say(Subscribe(2, (subscription(b"other", 0),)))
    assert watching.got == [b"the will"] * (topic.decode() == (user_name or "nobody"))


class LastName:
    """A client is who its user name says, and `ben` once it has authenticated again."""

    def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome:
        return Accepted("ben" if exchange.again else connect.user_name)


def test_a_will_that_comes_out_of_the_log_is_of_whom_its_client_became() -> None:
    disk, acl = SimulatedDisk(), TopicOfOnesOwn()
    broker = Broker(disk, acl=acl, authenticator=LastName())
    broker.connect(b"watching").say(Subscribe(1, (subscription(b"#", 1),)))
    gone = broker.hub.connect()
    for packet in (
        Connect(
            5,
            b"gone",
            will=Will(b"ben", b"the will", 1),
            user_name="ann",
            properties={"authentication_method": "any", "session_expiry_interval": 60},
        ),
        Auth(Reason.RE_AUTHENTICATE, {"authentication_method": "any"}),
    ):
        gone.feed_bytes(encode(packet, 5))
        broker.turn()
    watching = Broker(disk, 2, acl=acl).connect(b"watching")
    watching.say(Subscribe(2, (subscription(b"other", 0),)))
    assert watching.got == [b"the will"]
