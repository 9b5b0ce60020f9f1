"""Authenticators that take their time or fail, and clients that leave or are silent meanwhile."""

from typing import Any

import pytest
import trio
import trio.testing

from broker.auth.enhanced_auth import Exchange
from broker.auth.outcome import Accepted, Outcome, Refused
from broker.auth.scram import ScramCredentials, ScramSha256
from broker.config.loader import Config, Limits
from broker.wire.packets import Auth, Connack, Connect, Disconnect, Pingreq, Pingresp, encode
from broker.wire.reasons import CloseReason, Reason
from broker.worker.worker import Worker
from tests.support.authentication import Driver, House, house, subscriber
from tests.support.conversation import MemoryBroker
from tests.support.doubles import SlowAuthenticator
from tests.support.embedded import as_guest, as_task
from tests.support.scram import ScramClient

PENCIL = ScramCredentials.from_password("pencil", iterations=4096)
SCRAM = ScramSha256({"user": PENCIL, "root": PENCIL}, iterations=4096)


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
        assert connection.pending_bytes == 0  # the challenge had nobody to go to


async def test_nothing_is_kept_of_an_authentication_without_a_method() -> None:
    async with house(SlowAuthenticator()) as here:
        client = await here.client()
        await client.connect(None)
        assert isinstance(await client.hear(), Connack)
        assert here.worker.controller.handshake.exchanges == {}


async def test_clients_that_are_asked_and_do_not_answer_do_not_keep_others_out() -> None:
    async with house(SCRAM, limits=Limits(pending_connects_max=2)) as here:
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


@pytest.mark.parametrize("is_in", [False, True])
async def test_an_auth_with_any_byte_changed_is_an_answer_or_an_error_and_leaves_nothing(is_in: bool) -> None:
    async with trio.open_nursery() as nursery:
        broker = MemoryBroker(Config(), nursery, None, None, SlowAuthenticator())

        async def say(connection: Any, data: bytes) -> None:
            connection.feed_bytes(data)
            for _ in range(3):
                broker.hub.run_turn(broker.now_ms)
                await trio.testing.wait_all_tasks_blocked()

        method = {"authentication_method": "toy"}
        answer = encode(Auth(Reason.CONTINUE_AUTHENTICATION, {**method, "authentication_data": b"cba"}), 5)
        again = encode(Auth(Reason.RE_AUTHENTICATE, {**method, "user_property": [("a", "b")]}), 5)
        for packet in (answer, again):
            for position in range(len(packet)):
                for value in {0, 0x7F, 0xFF, packet[position] ^ 1, packet[position] ^ 0x80}:
                    connection = broker.hub.connect()
                    await say(connection, encode(Connect(5, b"one", properties=method), 5))
                    if is_in:
                        await say(connection, answer)
                        assert connection.is_open
                        if packet is answer:
                            await say(connection, again)
                    await say(connection, packet[:position] + bytes((value,)) + packet[position + 1 :])
                    if not connection.is_closing:
                        connection.close(CloseReason.CONNECTION_LOST)
                        await say(connection, b"")
        assert broker.controller.ends["internal_error"] == 0
        assert broker.controller.handshake.exchanges == {}
        assert broker.controller.handshake.pending.connections == {}
        assert not nursery.child_tasks
