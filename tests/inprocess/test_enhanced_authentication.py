"""Enhanced authentication over real sockets (4.12): SCRAM-SHA-256, and re-authentication while messages flow."""

from typing import Any

import pytest
import trio

from broker.auth.enhanced_auth import Exchange
from broker.auth.outcome import Accepted, Outcome, Refused
from broker.auth.principal import Principal
from broker.auth.scram import METHOD, ScramCredentials, ScramSha256
from broker.config.loader import Limits
from broker.wire.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    Will,
    subscription,
)
from broker.wire.reasons import Reason
from broker.worker.worker import Worker
from tests.support.authentication import Driver, House, house, subscriber
from tests.support.doubles import FakeLog
from tests.support.embedded import as_guest, as_task
from tests.support.scram import ScramClient

PENCIL = ScramCredentials.from_password("pencil", iterations=4096)
SCRAM = ScramSha256({"user": PENCIL, "root": PENCIL}, iterations=4096)


# SCRAM-SHA-256 -----------------------------------------------------------------------------------------------------


async def test_a_client_and_the_broker_prove_to_each_other_that_they_know_the_password() -> None:
    # Proves: [MQTT-4.12.0-2] [MQTT-4.12.0-3] [MQTT-4.12.0-5]
    async with house(SCRAM) as here:
        client, scram = await here.client(), ScramClient("user", "pencil")
        connack = await client.log_in(scram)
        assert isinstance(connack, Connack)
        assert connack.reason == Reason.SUCCESS
        assert connack.properties["authentication_method"] == METHOD
        assert scram.trusts(connack.properties["authentication_data"])
        await client.say(Pingreq())
        assert isinstance(await client.hear(), Pingresp)


async def test_a_client_may_leave_its_first_message_for_the_first_auth() -> None:
    async with house(SCRAM) as here:
        client, scram = await here.client(), ScramClient("user", "pencil")
        await client.connect()
        assert await client.challenge() == b""
        await client.auth(Reason.CONTINUE_AUTHENTICATION, scram.first)
        await client.auth(Reason.CONTINUE_AUTHENTICATION, scram.final(await client.challenge()))
        connack = await client.hear()
        assert isinstance(connack, Connack)
        assert scram.trusts(connack.properties["authentication_data"])


async def test_a_wrong_password_and_an_unknown_name_are_refused_in_the_same_words() -> None:
    # Proves: [MQTT-4.12.0-4]
    async with house(SCRAM) as here:
        answers = []
        for scram in (ScramClient("user", "pen"), ScramClient("ghost", "pencil")):
            client = await here.client()
            answers.append(await client.log_in(scram))
            assert await client.hear() is None
        assert (
            answers[0]
            == answers[1]
            == Connack(False, Reason.NOT_AUTHORIZED, {"reason_string": "authentication failed"})
        )
        assert here.ended("not_authorized") == 2


async def test_a_message_with_a_wrong_nonce_is_of_another_exchange() -> None:
    async with house(SCRAM) as here:
        client, scram = await here.client(), ScramClient("user", "pencil")
        scram.nonce = "abc"
        await client.connect(data=scram.first)
        await client.auth(Reason.CONTINUE_AUTHENTICATION, scram.final(await client.challenge()))
        await client.ends(Connack, Reason.NOT_AUTHORIZED)
        assert here.ended("bad_authentication") == 1


async def test_a_recorded_login_is_worth_nothing() -> None:
    async with house(SCRAM) as here:
        client, scram = await here.client(), ScramClient("user", "pencil")
        await client.connect(data=scram.first)
        recorded = scram.final(await client.challenge())
        await client.auth(Reason.CONTINUE_AUTHENTICATION, recorded)
        assert isinstance(await client.hear(), Connack)
        thief = await here.client()
        await thief.connect(data=scram.first)
        await thief.challenge()
        await thief.auth(Reason.CONTINUE_AUTHENTICATION, recorded)
        await thief.ends(Connack, Reason.NOT_AUTHORIZED)


@pytest.mark.parametrize("first", [b"hello", b"p=tls-unique,,n=user,r=abc", b"n,,n=us\xffer,r=abc", b"x" * 60_000])
async def test_what_is_not_scram_ends_the_connection_by_name(first: bytes) -> None:
    async with house(SCRAM) as here:
        client = await here.client()
        await client.connect(data=first)
        await client.ends(Connack, Reason.NOT_AUTHORIZED)
        assert here.ended("bad_authentication") == 1


@pytest.mark.parametrize(
    ("version", "method", "reason"),
    [
        (5, None, Reason.NOT_AUTHORIZED),
        (4, None, 5),
        (3, None, 5),
        (5, "SCRAM-SHA-1", Reason.BAD_AUTHENTICATION_METHOD),
    ],
)
async def test_a_client_without_the_method_is_refused(version: int, method: str | None, reason: Reason) -> None:
    # Proves: [MQTT-4.12.0-1]
    async with house(SCRAM) as here:
        client = await here.client(version)
        await client.connect(method)
        await client.ends(Connack, reason)


# Re-authentication -------------------------------------------------------------------------------------------------


async def test_a_client_re_authenticates_under_its_own_name_only() -> None:
    # Proves: [MQTT-4.12.1-1] [MQTT-4.12.1-2]
    async with house(SCRAM) as here:
        client = await here.client()
        await client.log_in(ScramClient("user", "pencil"))
        scram = ScramClient("user", "pencil")
        await client.auth(Reason.RE_AUTHENTICATE, scram.first)
        await client.auth(Reason.CONTINUE_AUTHENTICATION, scram.final(await client.challenge()))
        success = await client.hear()
        assert isinstance(success, Auth)
        assert success.reason == Reason.SUCCESS
        assert scram.trusts(success.properties["authentication_data"])
        other = ScramClient("root", "pencil")
        await client.auth(Reason.RE_AUTHENTICATE, other.first)
        await client.auth(Reason.CONTINUE_AUTHENTICATION, other.final(await client.challenge()))
        await client.ends(Disconnect, Reason.NOT_AUTHORIZED)
        assert here.ended("not_authorized") == 1


class Thinker:
    """Lets everybody in at once, and thinks about a re-authentication until the test says what to decide."""

    def __init__(self) -> None:
        self.asked = trio.Event()
        self.decided = trio.Event()
        self.outcome: Outcome = Accepted("second", b"done")
        self.left = trio.Event()

    def authenticate(self, connect: Connect, exchange: Exchange) -> Any:
        """Accept, or think."""
        return self.think(exchange) if exchange.again else Accepted("first")

    async def think(self, exchange: Exchange) -> Outcome:
        """Wait for the test."""
        self.asked.set()
        try:
            await self.decided.wait()
            return self.outcome
        finally:
            self.left.set()


class ByIdentity:
    """Each identity has one topic of its own; everybody may subscribe."""

    def may_publish(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        """Return whether the topic is named after the user."""
        return topic_name == str(principal.user_name).encode()

    def may_subscribe(self, principal: Principal, topic_filter: bytes, qos: int) -> bool:
        """Return True."""
        return True


@pytest.mark.parametrize("driver", [as_task, as_guest])
def test_messages_go_on_both_ways_while_an_authenticator_thinks_about_a_client(driver: Driver) -> None:
    thinker = Thinker()

    async def run(worker: Worker) -> None:
        here = House(worker)
        watching = await subscriber(here, b"up")
        client = await here.client()
        await client.connect("any")
        assert isinstance(await client.hear(), Connack)
        await client.say(Subscribe(1, (subscription(b"down", 1),)))
        await client.hear()
        await client.auth(Reason.RE_AUTHENTICATE, method="any")
        await thinker.asked.wait()
        for number in range(20):
            await client.say(Publish(b"up", b"%d" % number, 1, False, False, number + 1))
            acknowledgement = await client.hear()
            assert acknowledgement is not None
            arrived = await watching.hear()
            assert isinstance(arrived, Publish)
            assert arrived.payload == b"%d" % number
            await watching.say(Publish(b"down", b"%d" % number))
            arrived = await client.hear()
            assert isinstance(arrived, Publish)
            assert arrived.payload == b"%d" % number
        thinker.decided.set()
        success = await client.hear()
        assert success == Auth(Reason.SUCCESS, {"authentication_method": "any", "authentication_data": b"done"})
        here.close()

    driver(run, authenticator=thinker)


async def test_the_acl_knows_the_client_by_its_new_identity_and_so_does_its_will() -> None:
    thinker = Thinker()
    async with house(thinker, acl=ByIdentity()) as here:
        watching = await subscriber(here, b"first", b"second")
        client = await here.client()
        await client.connect("any", will=Will(b"second", b"the will"))
        await client.hear()
        await client.say(Publish(b"second", b"too early"), Publish(b"first", b"1"))
        await client.auth(Reason.RE_AUTHENTICATE, method="any")
        thinker.decided.set()
        assert isinstance(await client.hear(), Auth)
        await client.say(Publish(b"first", b"too late"), Publish(b"second", b"2"))
        await client.say(Disconnect(Reason.DISCONNECT_WITH_WILL_MESSAGE))
        arrived = [await watching.hear() for _ in range(3)]
        assert [packet.payload for packet in arrived if isinstance(packet, Publish)] == [b"1", b"2", b"the will"]


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (Reason.NOT_AUTHORIZED, Reason.NOT_AUTHORIZED),
        (Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED),
        (Reason.BANNED, Reason.NOT_AUTHORIZED),
        (Reason.SERVER_MOVED, Reason.SERVER_MOVED),
        (Reason.USE_ANOTHER_SERVER, Reason.USE_ANOTHER_SERVER),
    ],
)
async def test_a_refused_re_authentication_says_why_and_where_to_go(reason: Reason, said: Reason) -> None:
    # Proves: [MQTT-4.12.1-2] [MQTT-3.14.2-1]
    thinker = Thinker()
    thinker.outcome = Refused(reason, "no longer", "other.example")
    async with house(thinker) as here:
        client = await here.client()
        await client.connect("any")
        await client.hear()
        await client.auth(Reason.RE_AUTHENTICATE, method="any")
        thinker.decided.set()
        last = await client.ends(Disconnect, said)
        assert last == Disconnect(said, {"reason_string": "no longer", "server_reference": "other.example"})


async def test_a_success_that_does_not_fit_the_clients_maximum_packet_size_is_not_sent() -> None:
    # Proves: [MQTT-3.1.2-24]
    thinker = Thinker()
    thinker.outcome = Accepted("second", b"x" * 100)
    async with house(thinker) as here:
        client = await here.client()
        await client.say(Connect(5, b"one", properties={"authentication_method": "any", "maximum_packet_size": 100}))
        await client.hear()
        await client.auth(Reason.RE_AUTHENTICATE, method="any")
        thinker.decided.set()
        await client.ends(Disconnect, Reason.PACKET_TOO_LARGE)


class Hasty:
    """Asks, and lets the client in before it has answered."""

    async def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome:
        """Accept without waiting for more than a moment."""
        with trio.move_on_after(0):
            await exchange.challenge(b"?")
        return Accepted()


@pytest.mark.parametrize(
    ("settled", "reason"),
    [(True, Reason.CONTINUE_AUTHENTICATION), (False, Reason.CONTINUE_AUTHENTICATION), (False, Reason.RE_AUTHENTICATE)],
)
async def test_an_answer_to_a_challenge_that_was_given_up_is_an_error(settled: bool, reason: Reason) -> None:
    log = FakeLog()
    appended = trio.Event()
    log.on_append = appended.set
    async with house(Hasty(), log_store=log) as here:
        client = await here.client()
        await client.connect("any", expiry_s=60)
        await client.challenge()
        await appended.wait()
        if settled:
            log.sync()
            assert isinstance(await client.hear(), Connack)
        await client.auth(reason, method="any")
        await client.ends(Disconnect if settled else Connack, Reason.PROTOCOL_ERROR)


async def test_a_challenge_that_is_not_answered_in_time_ends_a_re_authentication() -> None:
    async with house(SCRAM, limits=Limits(connect_timeout_s=0.5)) as here:
        client = await here.client()
        await client.log_in(ScramClient("user", "pencil"))
        await client.auth(Reason.RE_AUTHENTICATE, ScramClient("user", "pencil").first)
        await client.challenge()
        await client.ends(Disconnect, Reason.NOT_AUTHORIZED)
        assert here.ended("bad_authentication") == 1
