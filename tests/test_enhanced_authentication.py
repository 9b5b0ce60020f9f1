"""Enhanced authentication over real sockets (4.12): SCRAM-SHA-256, and authenticators that take their time or fail."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from broker.auth import Accepted, Outcome, Refused
from broker.config import Config, Limits, Shutdown
from broker.exchange import Exchange
from broker.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Will,
    decode,
    encode,
    subscription,
)
from broker.reasons import Reason
from broker.scram import METHOD, ScramCredentials, ScramSha256
from broker.worker import Worker, open_broker
from tests.support.conversation import SocketClient
from tests.support.doubles import FakeLog, SlowAuthenticator
from tests.support.embedded import as_guest, as_task
from tests.support.scram import ScramClient

PENCIL = ScramCredentials.from_password("pencil", iterations=4096)
SCRAM = ScramSha256({"user": PENCIL, "root": PENCIL}, iterations=4096)
DEADLINE_S = 20

Driver = Callable[..., None]                # as_task or as_guest: both ways in which a worker is run


class Client(SocketClient):
    """A client that speaks in packets."""

    version = 5

    async def say(self, *packets: Packet) -> None:
        """Send packets in one go."""
        await self.send(b"".join(encode(packet, self.version) for packet in packets), False)

    async def hear(self) -> Packet | None:
        """Return the next packet, None at the end."""
        frame = await self.receive()
        return None if frame is None else decode(*frame, self.version)

    async def connect(self, method: str | None = METHOD, data: bytes | None = None, identifier: bytes = b"one",
                      will: Will | None = None, expiry_s: int | None = None) -> None:
        """Send CONNECT."""
        properties: dict[str, Any] = {} if method is None else {"authentication_method": method}
        if expiry_s is not None:
            properties["session_expiry_interval"] = expiry_s
        if data is not None:
            properties["authentication_data"] = data
        await self.say(Connect(self.version, identifier, True, 0, will, properties=properties))

    async def auth(self, reason: Reason, data: bytes | None = None, method: str = METHOD) -> None:
        """Send AUTH."""
        extra = {} if data is None else {"authentication_data": data}
        await self.say(Auth(reason, {"authentication_method": method, **extra}))

    async def challenge(self) -> bytes:
        """Return the data of the AUTH 0x18 that comes next."""
        packet = await self.hear()
        assert isinstance(packet, Auth), packet
        assert packet.reason == Reason.CONTINUE_AUTHENTICATION
        data: bytes = packet.properties["authentication_data"]
        return data

    async def log_in(self, scram: ScramClient) -> Packet | None:
        """Go through SCRAM in a CONNECT; returns the CONNACK."""
        await self.connect(data=scram.first)
        await self.auth(Reason.CONTINUE_AUTHENTICATION, scram.final(await self.challenge()))
        return await self.hear()

    async def ends(self, packet: type[Packet], reason: Reason) -> Packet:
        """Check that the broker says why and closes; returns what it said."""
        last = await self.hear()
        assert isinstance(last, packet), last
        assert last.reason == reason
        assert await self.hear() is None
        return last


class House:
    """A broker and its clients."""

    def __init__(self, worker: Worker) -> None:
        assert worker.acceptor is not None
        self.worker = worker
        self.port = worker.acceptor.addresses[0].port
        self.clients: list[Client] = []

    async def client(self, version: int = 5) -> Client:
        """Return a new connection."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = Client(stream, False)
        client.version = version
        self.clients.append(client)
        return client

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the broker does by itself."""
        with trio.fail_after(DEADLINE_S):
            while not condition():  # noqa: ASYNC110  (the reactor knows no trio)
                await trio.sleep(0.002)

    async def is_empty(self) -> None:
        """Wait until nothing is left of any client."""
        handshake = self.worker.controller.handshake
        await self.until(lambda: not self.worker.reactor.connection_count)
        await self.until(lambda: not handshake.pending.connections)
        assert handshake.exchanges == {}
        assert handshake.open_connections == 0

    def close(self) -> None:
        """Close all clients' sockets."""
        for client in self.clients:
            client.stream.socket.close()

    def ended(self, reason: str) -> int:
        """How many connections ended for a reason."""
        return self.worker.controller.ends[reason]


@asynccontextmanager
async def house(authenticator: Any = SCRAM, limits: Limits | None = None, **seams: Any) -> AsyncIterator[House]:
    config = Config(listen=("tcp://127.0.0.1:0",), limits=limits or Limits(), shutdown=Shutdown(drain_s=0.5))
    async with open_broker(config, authenticator=authenticator, **seams) as worker:
        here = House(worker)
        try:
            yield here
        finally:
            here.close()


# SCRAM-SHA-256 -----------------------------------------------------------------------------------------------------

async def test_a_client_and_the_broker_prove_to_each_other_that_they_know_the_password() -> None:
    # Proves: [MQTT-4.12.0-2] [MQTT-4.12.0-3] [MQTT-4.12.0-5]
    async with house() as here:
        client, scram = await here.client(), ScramClient("user", "pencil")
        connack = await client.log_in(scram)
        assert isinstance(connack, Connack)
        assert connack.reason == Reason.SUCCESS
        assert connack.properties["authentication_method"] == METHOD
        assert scram.trusts(connack.properties["authentication_data"])
        await client.say(Pingreq())
        assert isinstance(await client.hear(), Pingresp)


async def test_a_client_may_leave_its_first_message_for_the_first_auth() -> None:
    async with house() as here:
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
    async with house() as here:
        answers = []
        for scram in (ScramClient("user", "pen"), ScramClient("ghost", "pencil")):
            client = await here.client()
            answers.append(await client.log_in(scram))
            assert await client.hear() is None
        assert answers[0] == answers[1] == Connack(False, Reason.NOT_AUTHORIZED,
                                                   {"reason_string": "authentication failed"})
        assert here.ended("not_authorized") == 2


async def test_a_message_with_a_wrong_nonce_is_of_another_exchange() -> None:
    async with house() as here:
        client, scram = await here.client(), ScramClient("user", "pencil")
        scram.nonce = "abc"
        await client.connect(data=scram.first)
        await client.auth(Reason.CONTINUE_AUTHENTICATION, scram.final(await client.challenge()))
        await client.ends(Connack, Reason.NOT_AUTHORIZED)
        assert here.ended("bad_authentication") == 1


async def test_a_recorded_login_is_worth_nothing() -> None:
    async with house() as here:
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
    async with house() as here:
        client = await here.client()
        await client.connect(data=first)
        await client.ends(Connack, Reason.NOT_AUTHORIZED)
        assert here.ended("bad_authentication") == 1


@pytest.mark.parametrize(("version", "method", "reason"), [
    (5, None, Reason.NOT_AUTHORIZED), (4, None, 5), (3, None, 5), (5, "SCRAM-SHA-1", Reason.BAD_AUTHENTICATION_METHOD),
])
async def test_a_client_without_the_method_is_refused(version: int, method: str | None, reason: Reason) -> None:
    # Proves: [MQTT-4.12.0-1]
    async with house() as here:
        client = await here.client(version)
        await client.connect(method)
        await client.ends(Connack, reason)


# Re-authentication -------------------------------------------------------------------------------------------------

async def test_a_client_re_authenticates_under_its_own_name_only() -> None:
    # Proves: [MQTT-4.12.1-1] [MQTT-4.12.1-2]
    async with house() as here:
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

    def may_publish(self, identity: object, topic_name: bytes) -> bool:
        """Return whether the topic is named after the identity."""
        return topic_name == str(identity).encode()

    def may_subscribe(self, identity: object, topic_filter: bytes) -> bool:
        """Return True."""
        return True


async def subscriber(here: House, *topics: bytes) -> Client:
    """Return a connected client that subscribes topics at QoS 0."""
    client = await here.client()
    await client.connect(None, identifier=b"subscriber")
    await client.say(Subscribe(1, tuple(subscription(topic, 0) for topic in topics)))
    assert isinstance(await client.hear(), Connack)
    assert isinstance(await client.hear(), Suback)
    return client


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


@pytest.mark.parametrize(("reason", "said"), [
    (Reason.NOT_AUTHORIZED, Reason.NOT_AUTHORIZED), (Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED),
    (Reason.BANNED, Reason.NOT_AUTHORIZED), (Reason.SERVER_MOVED, Reason.SERVER_MOVED),
    (Reason.USE_ANOTHER_SERVER, Reason.USE_ANOTHER_SERVER),
])
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


@pytest.mark.parametrize(("settled", "reason"), [
    (True, Reason.CONTINUE_AUTHENTICATION), (False, Reason.CONTINUE_AUTHENTICATION), (False, Reason.RE_AUTHENTICATE)])
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
    async with house(limits=Limits(connect_timeout_s=0.5)) as here:
        client = await here.client()
        await client.log_in(ScramClient("user", "pencil"))
        await client.auth(Reason.RE_AUTHENTICATE, ScramClient("user", "pencil").first)
        await client.challenge()
        await client.ends(Disconnect, Reason.NOT_AUTHORIZED)
        assert here.ended("bad_authentication") == 1


# Clients that leave ------------------------------------------------------------------------------------------------

class Host:
    """Asks a client in the method `ask`, thinks in any other; counts who is with it."""

    def __init__(self) -> None:
        self.inside = 0
        self.came = trio.Event()

    async def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome:
        """Wait for ever, for the client or by itself."""
        if exchange.method == "in" and not exchange.again:
            return Accepted()
        self.inside += 1
        self.came.set()
        try:
            if exchange.method != "think":
                await exchange.challenge(b"?")
            await trio.sleep_forever()
        finally:
            self.inside -= 1
        raise AssertionError


@pytest.mark.parametrize("driver", [as_task, as_guest])
@pytest.mark.parametrize("method", ["think", "ask", "in"])
def test_a_client_that_leaves_in_the_middle_leaves_nothing(driver: Driver, method: str) -> None:
    host = Host()

    async def run(worker: Worker) -> None:
        here = House(worker)
        for polite in (False, True):
            host.came = trio.Event()
            client = await here.client()
            await client.connect(method)
            if method == "in":
                assert isinstance(await client.hear(), Connack)
                await client.auth(Reason.RE_AUTHENTICATE, method="in")
                await client.challenge()
            elif method == "ask":
                await client.challenge()
            await host.came.wait()
            assert host.inside == 1
            if polite:
                await client.say(Disconnect())
            await client.cut()
            await here.until(lambda: host.inside == 0)
            await here.is_empty()

    driver(run, authenticator=host)


class Dawdler:
    """Cannot be interrupted while it thinks, like a thread that hashes a password."""

    def __init__(self) -> None:
        self.came = trio.Event()
        self.done = trio.Event()

    async def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome:
        """Think, whoever wants it to stop, then ask."""
        self.came.set()
        with trio.CancelScope(shield=True):
            await self.done.wait()
        await exchange.challenge(b"?")
        raise AssertionError


async def test_an_authenticator_that_cannot_be_stopped_counts_as_pending_until_it_is_done() -> None:
    dawdler = Dawdler()
    async with house(dawdler) as here:
        pending = here.worker.controller.handshake.pending
        client = await here.client()
        await client.connect("any")
        await dawdler.came.wait()
        await client.cut()
        await here.until(lambda: not here.worker.reactor.connection_count)
        (connection,) = pending.connections.values()
        dawdler.done.set()
        await here.is_empty()
        assert connection.pending_bytes == 0        # the challenge had nobody to go to


async def test_nothing_is_kept_of_an_authentication_without_a_method() -> None:
    async with house(SlowAuthenticator()) as here:
        client = await here.client()
        await client.connect(None)
        assert isinstance(await client.hear(), Connack)
        assert here.worker.controller.handshake.exchanges == {}


async def test_clients_that_are_asked_and_do_not_answer_do_not_keep_others_out() -> None:
    async with house(limits=Limits(pending_connects_max=2)) as here:
        silent = [await here.client() for _ in range(5)]
        for number, client in enumerate(silent):
            await client.connect(data=ScramClient("user", "pencil").first, identifier=b"silent%d" % number)
            await client.challenge()
        assert not here.worker.controller.handshake.pending.connections
        connack = await (await here.client()).log_in(ScramClient("user", "pencil"))
        assert isinstance(connack, Connack)
        assert connack.reason == Reason.SUCCESS


# Authenticators that fail ------------------------------------------------------------------------------------------

class Broken:
    """Fails in the way that the client identifier names, or lets the client in."""

    def authenticate(self, connect: Connect, exchange: Exchange) -> Any:
        """Fail at once, return what is no outcome, or fail later."""
        how = connect.client_identifier.decode()
        if how == "subscriber" or (exchange.method == "in" and not exchange.again):
            return Accepted("fine")
        if how == "raises":
            raise ValueError("broken")
        if how == "returns":
            return None
        return self.later(how, exchange)

    async def later(self, how: str, exchange: Exchange) -> Any:
        """Fail."""
        await trio.lowlevel.checkpoint()
        if how == "raises_later":
            raise ValueError("broken")
        if how == "closed":
            raise trio.ClosedResourceError("of its own")
        if how == "refuses_with_success":
            return Refused(Reason.SUCCESS)
        if how == "too_long":
            return Accepted("fine", b"x" * 65_536)
        if how == "challenge_too_long":
            await exchange.challenge(b"x" * 65_536)
        if how == "challenges_nobody":
            await exchange.challenge(b"?")
        return None


WAYS = ["raises", "returns", "raises_later", "returns_later", "closed", "refuses_with_success", "too_long"]


@pytest.mark.parametrize("how", [*WAYS, "challenges_nobody"])
async def test_an_authenticator_that_fails_refuses_its_client_and_hurts_nobody_else(how: str) -> None:
    # Proves: [MQTT-4.12.0-6]
    async with house(Broken()) as here:
        bystander = await subscriber(here, b"t")
        client = await here.client()
        await client.connect(None, identifier=how.encode())
        await client.ends(Connack, Reason.IMPLEMENTATION_SPECIFIC_ERROR)
        await bystander.say(Pingreq())
        assert isinstance(await bystander.hear(), Pingresp)


@pytest.mark.parametrize("how", [*WAYS, "challenge_too_long"])
async def test_an_authenticator_that_fails_again_ends_its_client_and_hurts_nobody_else(how: str) -> None:
    async with house(Broken()) as here:
        bystander = await subscriber(here, b"t")
        client = await here.client()
        await client.connect("in", identifier=how.encode())
        await client.hear()
        await client.auth(Reason.RE_AUTHENTICATE, method="in")
        await client.ends(Disconnect, Reason.IMPLEMENTATION_SPECIFIC_ERROR)
        await bystander.say(Pingreq())
        assert isinstance(await bystander.hear(), Pingresp)


class BrokenAdmission:
    """Knows nobody whose identifier is not ASCII."""

    def admit(self, connect: Connect, peer: str | None) -> Refused | None:
        """Fail for the others."""
        connect.client_identifier.decode("ascii")
        return None


async def test_an_admission_that_fails_refuses_its_client_and_hurts_nobody_else() -> None:
    async with house(None, admission=BrokenAdmission()) as here:
        bystander = await subscriber(here, b"t")
        client = await here.client()
        await client.connect(None, identifier="Zoë".encode())
        await client.ends(Connack, Reason.IMPLEMENTATION_SPECIFIC_ERROR)
        await bystander.say(Pingreq())
        assert isinstance(await bystander.hear(), Pingresp)


async def test_the_longest_authentication_method_that_fits_is_refused_like_any_other() -> None:
    # Proves: [MQTT-4.12.0-1]
    async with house(None) as here:
        client = await here.client()
        await client.connect("x" * 65_510, identifier=b"")
        await client.ends(Connack, Reason.BAD_AUTHENTICATION_METHOD)
