"""Real client libraries and programs against the real broker, each in 3.1.1 and in 5.0."""

import pytest

from tests.clients.conftest import found
from tests.clients.drivers import MODULES
from tests.clients.drivers.base import Message, Options
from tests.support.relay import Relay

# What a program cannot do, it is not asked to: connecting and subscribing are one to mosquitto_sub and shoal sub.
LIBRARIES = tuple(module for module in MODULES if module not in ("mosquitto_driver", "shoal_driver"))
HAVE_SUBSCRIPTION_OPTIONS = (*LIBRARIES, "shoal_driver")
# mosquitto_sub in 5.0 asks for its will even when it is told to end.
DROP_THEIR_WILL = [
    pytest.param(module, version, id=f"{module.removesuffix('_driver')}-{'5.0' if version == 5 else '3.1.1'}")
    for module in MODULES
    for version in (4, 5)
    if (module, version) != ("mosquitto_driver", 5)
]

MESSAGES = 60
LARGE = 200_000


def only(modules):
    """Run a test with these drivers instead of all."""
    return pytest.mark.parametrize(
        "driver", modules, indirect=True, ids=[module.removesuffix("_driver") for module in modules]
    )


def essence(message):
    return message.topic, message.payload, message.qos, message.retain


def gathered(client, end):
    """The payloads that arrive until the one that ends them: what has not come by then never will."""
    payloads = []
    while (payload := client.receive().payload) != end:
        payloads.append(payload)
    return payloads


def test_a_message_arrives_at_the_qos_it_was_sent_with(new_client, unique):
    # Proves: [MQTT-4.3.1-1] [MQTT-4.3.2-4] [MQTT-4.3.3-8] [MQTT-4.3.3-11]
    subscriber, publisher = new_client("subscriber"), new_client("publisher")
    subscriber.subscribe(f"{unique}/+", 2)
    for qos in (0, 1, 2):
        publisher.publish(f"{unique}/{qos}", f"grün {qos}".encode(), qos)
        assert essence(subscriber.receive()) == (f"{unique}/{qos}", f"grün {qos}".encode(), qos, False)


@pytest.mark.parametrize("granted", [0, 1])
def test_the_granted_qos_is_the_highest_that_arrives(new_client, unique, granted):
    # Proves: [MQTT-3.8.4-8]
    subscriber, publisher = new_client("subscriber"), new_client("publisher")
    subscriber.subscribe(unique, granted)
    publisher.publish(unique, b"x", 2)
    assert subscriber.receive().qos == granted


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_many_messages_arrive_once_and_in_order(new_client, unique, qos):
    # Proves: [MQTT-4.6.0-5] [MQTT-4.6.0-6]
    subscriber, publisher = new_client("subscriber"), new_client("publisher")
    subscriber.subscribe(unique, qos)
    expected = [str(number).encode() for number in range(MESSAGES)]
    publisher.publish_all(unique, [*expected, b"end"], qos)
    assert gathered(subscriber, b"end") == expected


def test_a_large_message_arrives_whole(new_client, unique):
    subscriber, publisher = new_client("subscriber"), new_client("publisher")
    subscriber.subscribe(unique, 1)
    payload = b"0123456789" * (LARGE // 10)
    publisher.publish(unique, payload, 1)
    assert subscriber.receive().payload == payload


def test_a_retained_message_is_kept_replaced_and_cleared(new_client, unique):
    # Proves: [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-12]
    publisher, early = new_client("publisher"), new_client("early")
    early.subscribe(unique, 1)
    for payload in (b"old", b"new"):
        publisher.publish(unique, payload, 1, retain=True)
        assert essence(early.receive()) == (unique, payload, 1, False)

    late = new_client("late")
    late.subscribe(unique, 1)
    assert essence(late.receive()) == (unique, b"new", 1, True)

    publisher.publish(unique, b"", 1, retain=True)
    assert essence(late.receive()) == (unique, b"", 1, False)
    later = new_client("later")
    later.subscribe(unique, 1)
    publisher.publish(unique, b"end", 1)
    assert gathered(later, b"end") == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_is_published_when_the_connection_is_lost(new_client, unique, broker_port, qos):
    # Proves: [MQTT-3.1.2-8]
    observer = new_client("observer")
    observer.subscribe(f"{unique}/will", 2)
    relay = Relay(broker_port)
    mortal = new_client("mortal", port=relay.port, will=Message(f"{unique}/will", b"gone", qos))
    mortal.subscribe(f"{unique}/nothing")
    relay.cut()
    assert essence(observer.receive()) == (f"{unique}/will", b"gone", qos, False)


@pytest.mark.parametrize(("driver", "version"), DROP_THEIR_WILL, indirect=True)
def test_a_will_is_dropped_by_an_orderly_disconnect(new_client, unique):
    # Proves: [MQTT-3.14.4-3]
    observer = new_client("observer")
    observer.subscribe(f"{unique}/#", 1)
    mortal = new_client("mortal", will=Message(f"{unique}/will", b"gone", 1))
    mortal.subscribe(f"{unique}/nothing")
    mortal.disconnect()
    observer.publish(f"{unique}/end", b"end", 1)
    assert gathered(observer, b"end") == []


def test_a_session_is_found_again_with_what_came_meanwhile(new_client, unique):
    # Proves: [MQTT-3.1.2-5] [MQTT-3.2.2-3] [MQTT-4.5.0-1]
    publisher, sleeper = new_client("publisher"), new_client("sleeper", durable=True)
    assert not sleeper.session_present
    sleeper.subscribe(f"{unique}/#", 2)
    sleeper.disconnect()
    for number in range(10):
        for qos in (1, 2):
            publisher.publish(f"{unique}/{qos}", f"{qos} {number}".encode(), qos)

    awake = new_client("sleeper", durable=True)
    assert awake.session_present or not awake.knows_session_present
    if awake.must_subscribe_to_resume:
        awake.subscribe(f"{unique}/#", 2)
    publisher.publish(f"{unique}/2", b"end", 2)
    # Some clients hand out a QoS 2 message at its PUBLISH, some at its PUBREL: the order holds per topic and QoS.
    assert sorted(gathered(awake, b"end"), key=lambda payload: payload[:1]) == [
        f"{qos} {number}".encode() for qos in (1, 2) for number in range(10)
    ]


def test_a_clean_start_forgets_the_session(new_client, unique):
    # Proves: [MQTT-3.1.2-4]
    publisher, sleeper = new_client("publisher"), new_client("sleeper", durable=True)
    sleeper.subscribe(unique, 1)
    sleeper.disconnect()
    publisher.publish(unique, b"lost", 1)
    fresh = new_client("sleeper")
    assert not fresh.session_present
    fresh.subscribe(unique, 1)
    publisher.publish(unique, b"end", 1)
    assert gathered(fresh, b"end") == []


def test_a_shared_subscription_gives_each_message_to_one_member(new_client, unique):
    publisher = new_client("publisher")
    members = [new_client("first"), new_client("second")]
    for name, member in zip(("first", "second"), members, strict=True):
        member.subscribe_all([f"$share/group/{unique}/work", f"{unique}/end/{name}"], 1)
    expected = [str(number).encode() for number in range(MESSAGES)]
    publisher.publish_all(f"{unique}/work", expected, 1)

    # QoS 1 at both ends and one publisher: the end reaches each member behind the work it was given.
    shares = []
    for name, member in zip(("first", "second"), members, strict=True):
        publisher.publish(f"{unique}/end/{name}", b"end", 1)
        shares.append(gathered(member, b"end"))
    assert sorted(shares[0] + shares[1]) == sorted(expected)
    assert shares[0]
    assert shares[1]
    assert not set(shares[0]) & set(shares[1])


def test_wildcards_match_their_levels(new_client, unique):
    # Proves: [MQTT-4.7.1-1] [MQTT-4.7.1-2]
    subscriber, publisher = new_client("subscriber"), new_client("publisher")
    subscriber.subscribe(f"{unique}/+/temperature/#", 1)
    for topic in ("a/temperature", "a/temperature/max/day", "temperature", "a/b/temperature", "a/humidity"):
        publisher.publish(f"{unique}/{topic}", topic.encode(), 1)
    publisher.publish(f"{unique}/x/temperature", b"end", 1)
    assert gathered(subscriber, b"end") == [b"a/temperature", b"a/temperature/max/day"]


@only(LIBRARIES)
def test_nothing_arrives_after_unsubscribe(new_client, unique):
    # Proves: [MQTT-3.10.4-1]
    subscriber, publisher = new_client("subscriber"), new_client("publisher")
    subscriber.subscribe(f"{unique}/a", 1)
    subscriber.subscribe(f"{unique}/b", 1)
    subscriber.unsubscribe(f"{unique}/a")
    publisher.publish(f"{unique}/a", b"lost", 1)
    publisher.publish(f"{unique}/b", b"end", 1)
    assert gathered(subscriber, b"end") == []


@pytest.mark.parametrize("version", [5], indirect=True, ids=["5.0"])
class TestProperties:
    """What only 5.0 has."""

    def test_every_property_of_a_message_is_passed_on(self, new_client, unique):
        # Proves: [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]
        subscriber, publisher = new_client("subscriber"), new_client("publisher")
        subscriber.subscribe(unique, 1)
        properties = {
            "user_property": [("a", "1"), ("a", "2"), ("b", "3")],
            "content_type": "text/plain",
            "response_topic": "answers/here",
            "correlation_data": b"question 7",
            "payload_format_indicator": 1,
        }
        publisher.publish(unique, b"x", 1, properties=properties)
        received = subscriber.receive().properties
        # Some programs do not print the payload format.
        assert {name: received.get(name, 1) for name in properties} == properties

    def test_a_message_carries_the_time_it_has_left(self, new_client, unique):
        # Proves: [MQTT-3.3.2-6]
        subscriber, publisher = new_client("subscriber"), new_client("publisher")
        publisher.publish(unique, b"x", 1, retain=True, properties={"message_expiry_interval": 1000})
        subscriber.subscribe(unique, 1)
        assert 900 <= subscriber.receive().properties["message_expiry_interval"] <= 1000

    @only(LIBRARIES)
    def test_no_local_keeps_a_clients_own_messages_from_it(self, new_client, unique):
        # Proves: [MQTT-3.8.3-3]
        client, other = new_client("client"), new_client("other")
        client.subscribe(unique, 1, Options(no_local=True))
        client.publish(unique, b"own", 1)
        other.publish(unique, b"end", 1)
        assert gathered(client, b"end") == []

    @only(HAVE_SUBSCRIPTION_OPTIONS)
    def test_retain_as_published_keeps_the_flag(self, new_client, unique):
        # Proves: [MQTT-3.3.1-13]
        subscriber, publisher = new_client("subscriber"), new_client("publisher")
        subscriber.subscribe(unique, 1, Options(retain_as_published=True))
        for retain in (True, False):
            publisher.publish(unique, b"x", 1, retain=retain)
            assert subscriber.receive().retain == retain

    @only(HAVE_SUBSCRIPTION_OPTIONS)
    def test_retain_handling_2_gets_nothing_retained(self, new_client, unique):
        # Proves: [MQTT-3.3.1-11]
        subscriber, publisher = new_client("subscriber"), new_client("publisher")
        publisher.publish(unique, b"retained", 1, retain=True)
        subscriber.subscribe(unique, 1, Options(retain_handling=2))
        publisher.publish(unique, b"end", 1)
        assert gathered(subscriber, b"end") == []


def test_every_client_hears_every_other(broker_port, unique):
    # Proves: [MQTT3-7.0.0-2]
    drivers = [found(module) for module in MODULES]
    clients = {}
    try:
        for driver in drivers:
            for version in (4, 5):
                client = clients[driver.name, version] = driver(broker_port, version)
                client.connect(f"{unique}-{driver.name}-{version}")
                client.subscribe(f"{unique}/#", 1)
        for (name, version), client in clients.items():
            client.publish(f"{unique}/{name}", str(version).encode(), 1)
        expected = sorted((f"{unique}/{name}", str(version).encode()) for name, version in clients)
        for client in clients.values():
            received = sorted((message.topic, message.payload) for message in (client.receive() for _ in clients))
            assert received == expected
    finally:
        for client in clients.values():
            client.close()
