"""A world of clients around several workers that are one broker, each of which dies for itself."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from random import Random

from broker.config.loader import Config, Limits, Mqtt
from broker.processes.reshard_main import FLUSH_BYTES, Adoption, AdoptionError, Books
from broker.reactor.turn import Hub
from broker.wire.packets import Disconnect, Publish, encode
from tests.simulator.clients import Client, Publisher, Subscriber
from tests.simulator.heard import Heard
from tests.simulator.index import SharedEnvironment
from tests.simulator.machine import Killed, Machine
from tests.simulator.network import Network
from tests.simulator.promises import Promises, ViolationError
from tests.simulator.retained import History, Reader, Retaining
from tests.simulator.rights_of_several import RightsOfSeveral
from tests.simulator.the_end import check_that_all_goes_on, check_the_end
from tests.simulator.worker import Worker
from tests.support.disk import PowerLoss

DEATHS_LIKELY = (0.0002, 0.0006, 0.002, 0.005)  # for each step of a worker, in a run with deaths
STOPPED_STEPS = 100  # of the world, at most, that a worker has no turn
DOWN_STEPS = 30  # of the world, at most, until a worker that died is started again
RIGHTS_EVERY, RIGHTS_AT = 10, 5  # the seeds in which topics are hidden from clients
FILTERS = ("t/#", "t/+", "t/0", "t/1", "r/#", "#")


class SeveralWorld(Promises):
    """One seed is one run."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        draw = self.random
        self.count = draw.choice((2, 2, 3))
        self.filters = {topic_filter.encode() for topic_filter in FILTERS}
        self.network = Network(draw, draw.choice((0.3, 1, 6)))
        self.config = Config(
            mqtt=Mqtt(queue_messages_max=1_000_000, queue_bytes_max=1 << 40, topic_alias_maximum=0,
                      inflight_max=draw.choice((3, 20, 1000)), shared_subscription_strategy=draw.choice(
                          ("round_robin", "random", "sticky", "hash_client", "hash_topic"))),
            limits=Limits(connect_timeout_s=10_000))  # fmt: skip
        # Long ones put a turn's records into several sectors; some close a window after a handful, when nothing moves.
        self.digits = draw.choice((1, 1, 1, 150, 60_000))
        self.commit_likelihood = draw.choice((0.05, 0.2, 0.5))
        self.heard = Heard()
        self.group_got: dict[bytes, int] = {}
        self.members_left = 0  # of the group, for good
        self.deaths_in_adoption = 0
        # In the others each worker retains for itself, as without a data folder.
        self.environment = SharedEnvironment() if seed % 4 != 1 else None
        self.history = History()
        self.all_workers = [Worker(self, number) for number in range(self.count)]  # those that are left, too
        forgetful = draw.random() < 0.25  # a world in which numbers of records are given again
        self.introduce(
            [Publisher(self, f"p{i}", draw.choice((4, 5))) for i in range(draw.randint(1, 3))],
            [Subscriber(self, f"s{i}", draw.choice((4, 5)), durable=draw.random() < 0.6,
                        topic_filter=draw.choice(FILTERS), qos=draw.choice((0, 1, 2)))
             for i in range(draw.randint(1, 4))],
            [Subscriber(self, f"m{i}", draw.choice((4, 5)), topic_filter="t/#", qos=draw.choice((1, 2)), group="g")
             for i in range(draw.choice((0, 2, 3)))],
            Subscriber(self, "w", draw.choice((4, 5)), topic_filter="w/#", qos=2))  # fmt: skip
        self.rights_of_several = RightsOfSeveral(self, str(seed)) if seed % RIGHTS_EVERY == RIGHTS_AT else None
        if self.rights_of_several is not None:
            self.rights = self.rights_of_several
            self.rights.introduce(self.subscribers, self.members)
        self.retaining = Retaining(self, seed, self.count) if self.environment is not None else None
        self.stops = 0
        if self.retaining is not None:
            self.clients += self.retaining.readers
            self.retaining.busy = [*self.publishers, *self.retaining.readers]
            self.got.update({reader.identifier: {} for reader in self.retaining.readers})
        self.resharding = Random(f"resharding of {seed}")
        self.reshards_likely = self.resharding.choice((0.0, 0.0, 0.003))
        self.reshards = 0
        self.leaving = Random(f"leaving of {seed}")
        self.leaves_likely = self.leaving.choice((0.0, 0.0, 0.02, 0.1))  # whenever something happens to a member
        self.settle_in()
        for worker in self.workers:
            self.decide_durability(worker, forgetful)
            worker.boot()
        if draw.random() < 0.8:
            likelihood = draw.choice(DEATHS_LIKELY) * (1.0 if self.retaining is None else self.retaining.deaths_weigh)
            for worker in self.workers:
                worker.machine.death.likelihood = likelihood

    def settle_in(self) -> None:
        """Give each client a home, and some a will."""
        draw = self.random
        for client in self.clients:
            client.home = draw.randrange(self.count)
            client.has_will = client is not self.watcher and client.durable and draw.random() < 0.2
            if isinstance(client, Reader):
                client.home, client.has_will = int(client.identifier.removeprefix("reader")) % self.count, False
            if self.reshards_likely and client is not self.watcher and client.durable and client.version == 5 and (
                    not isinstance(client, Reader)):  # fmt: skip
                client.has_will = client.has_will or self.resharding.random() < 0.5
                client.will_delay_s = self.resharding.choice((0, 2))

    def decide_durability(self, worker: Worker, forgetful: bool) -> None:
        """Whoever spreads sessions anew must not have lost what was acknowledged: nobody could say whose that was."""
        machine = worker.machine
        if self.reshards_likely:
            machine.durability = "os" if machine.durability == "none" else machine.durability
            machine.power_loss_likely = 0.0 if machine.durability == "os" else machine.power_loss_likely
        elif forgetful:
            machine.durability = self.random.choice(("os", "none"))
            machine.power_loss_likely = 0.8

    @property
    def workers(self) -> list[Worker]:
        """Return those of the present number."""
        return self.all_workers[: self.count]

    @property
    def machines(self) -> list[Machine]:
        """Those under the workers."""
        return [worker.machine for worker in self.all_workers]

    # Promises -------------------------------------------------------------------------------------------------------

    def hub_of(self, client: Client) -> Hub:
        """Return the worker that a client lives on."""
        return self.workers[client.home].hub

    def in_trouble(self) -> bool:
        """Return whether a worker may refuse what it cannot log now."""
        return any(worker.machine.had_trouble for worker in self.workers)

    def subscribed(self, client: Subscriber | Reader) -> None:
        """SUBACK came: every worker has installed the filter, but those that were not heard of meanwhile."""
        self.heard.subscribed(client, self.workers[client.home])
        if isinstance(client, Reader):
            late = self.heard.lacked_by(client)
            self.history.missed(client.identifier, {each.identifier for each in self.publishers if each.home in late})

    def is_promised(self, publisher: Client, client: Subscriber | Reader) -> bool:
        """Return whether what a client publishes now must come to a subscriber that it matches."""
        if not client.subscribed or not client.qos:
            return False
        here, home = self.workers[publisher.home], self.workers[client.home]
        if here is home:
            return True
        if here.router is None or not self.heard.has(here, home, client):
            return False
        options = here.router.tree.options_of(here.peer_session(home), client.full_filter)
        self.check(
            options >= 0 and options & 3 > 0,
            f"worker {here.number} does not know that {client.identifier} wants {client.topic_filter}",
        )
        return True

    def will_owed(self, client: Client, payload: bytes) -> None:
        """A worker that comes back hears of everybody before it publishes the wills of those that it had lost."""
        if self.workers[client.home].is_up:
            super().will_owed(client, payload)
        elif self.watcher.subscribed:
            self.wills_owed.add(payload)

    def published(self, publisher: Publisher, message: Publish, number: int) -> None:
        """A message is on its way."""
        super().published(publisher, message, number)
        rights, audience = self.rights_of_several, self.audience.get(message.payload, [])
        if rights is not None and "group" in audience and rights.unsettles(message.topic):
            audience.remove("group")
        for client in self.subscribers:
            if client.subscribed and client.qos and client.identifier not in self.audience.get(message.payload, ()):
                # Its worker may not know that it is wanted, but when it is sent again it does, and that comes late.
                self.before.setdefault(client.identifier, set()).add(message.payload)
        if message.retain:
            self.history.published(message, number, {
                reader.identifier for reader in self.retaining.readers if reader.connected and reader.subscribed
                and not self.is_promised(publisher, reader)} if self.retaining is not None else set())  # fmt: skip

    def acknowledged(self, message: Publish, number: int) -> None:
        """A publisher got PUBACK or PUBREC."""
        super().acknowledged(message, number)
        self.history.acknowledged(message)

    def forgive(self, clients: Collection[Client]) -> None:
        """A worker has lost what it had acknowledged."""
        super().forgive(clients)
        self.history.forget({client.identifier for client in clients})
        for reader in self.retaining.readers if self.retaining is not None else ():
            reader.forget_all()

    def delivered(self, client: Client, packet: Publish) -> None:
        """A group gets a message of QoS 2 once, too."""
        if isinstance(client, Reader):
            client.saw(packet)
            return
        if packet.retain and packet.topic.endswith(b"/0") and self.recoveries:
            return  # a newer one, published at QoS 0 and shown live, may be lost with its worker
        super().delivered(client, packet)
        if isinstance(client, Subscriber) and client.group and packet.qos == 2:
            times = self.group_got[packet.payload] = self.group_got.get(packet.payload, 0) + 1
            self.check(
                times == 1 or self.has_forgiven or any(member.qos < 2 for member in self.members),
                f"the group got {packet.payload!r} {times} times at QoS 2",
            )

    def was_silent(self, reader: Reader) -> bool:
        """Return whether some link of a reader's worker was not up at any time since it asked, or had asked before."""
        return any(step >= reader.asked_steps[0] for step in self.workers[reader.home].silent_steps.values())

    def renounces(self, client: Subscriber) -> None:
        """A client does not want what it has not got, and is not owed it any more."""
        client.subscribed = False
        self.before.setdefault(client.identifier, set()).update(
            packet.payload for publisher in self.publishers for packet in publisher.in_flight.values()
        )
        if client.group:
            return
        self.owed[client.identifier] &= self.got[client.identifier].keys()
        for audience in self.audience.values():
            if client.identifier in audience:
                audience.remove(client.identifier)

    # Clients --------------------------------------------------------------------------------------------------------

    def act(self, client: Client | None = None) -> None:
        """Let one thing happen to one client."""
        client = client or self.random.choice(self.clients)
        worker = self.workers[client.home]
        if worker.is_ready and worker.moves:
            self.survive(worker, lambda: self.act_of(client))

    def act_of(self, client: Client) -> None:
        """Let one thing happen to this client, of which its worker may die: it sends a batch that has grown large."""
        what = self.random.random()
        if self.faults and self.retaining is not None:
            self.retaining.act(client)
        if self.faults and client in self.members and self.leaving.random() < self.leaves_likely:
            self.change_mind(client)
        if self.act_as_usual(client, what):
            return
        if self.faults and what < 0.97:
            self.cut(client)
        elif self.faults and what < 0.98:
            if client.durable:
                client.connect()  # a takeover: the broker does not know of the broken connection
        elif self.faults and what < 0.99:
            self.change_mind(client)
        else:
            self.now_ms += self.random.randint(1, 1000)

    def cut(self, client: Client) -> None:
        """A connection breaks."""
        client.cut()
        self.lose_session(client)

    def lose_session(self, client: Client) -> None:
        """A client has lost its connection: what was for an ephemeral session is lost with it."""
        if isinstance(client, Subscriber) and not client.durable:
            self.renounces(client)
            self.got_at_qos2.pop(client.identifier, None)

    def change_mind(self, client: Client) -> None:
        """A subscriber of its own takes another filter, or a member of a group leaves for good."""
        if not isinstance(client, Subscriber) or client is self.watcher or not (client.subscribed and client.connected):
            return
        if client.group:
            if client.version == 5:
                self.leave_for_good(client)
            return
        self.renounces(client)
        client.old_filters.add(client.full_filter)
        client.topic_filter = self.random.choice(FILTERS)
        client.subscribe()

    def leave_for_good(self, client: Subscriber) -> None:
        """A member's session ends: what it was not sent goes to others, and at QoS 1 what it has not acknowledged.

        What it was sent at QoS 2 goes to nobody else [MQTT-4.8.2-5], and is counted.
        """
        self.members_left += 1
        client.answers.clear()
        client.send(encode(Disconnect(0, {"session_expiry_interval": 0}), 5))
        data = b"".join(client.to_broker)
        client.connection.feed_bytes(data)
        client.has_will, had_will = False, client.has_will
        client.cut_quietly()
        client.has_will = had_will
        client.established = client.subscribed = False
        # What is on its way comes behind this: it is for those members that are left.
        for publisher in self.publishers:
            is_ready = self.workers[publisher.home].is_ready  # else it may not know of them yet
            left = [member for member in self.members if is_ready and self.is_promised(publisher, member)]
            for packet in publisher.in_flight.values():
                if "group" in self.audience.get(packet.payload, ()) and all(
                        self.hides(member, packet.topic) for member in left):  # fmt: skip
                    self.audience[packet.payload].remove("group")
        client.forgot = True
        client.unanswered.clear()
        client.received_qos2.clear()

    # Another number of workers --------------------------------------------------------------------------------------

    def reshard(self) -> None:
        """All workers end, and others go on with what these had; whoever spreads the sessions may die of it, too."""
        draw = self.resharding
        self.reshards += 1
        died_ms = self.now_ms
        likelihood = self.workers[0].machine.death.likelihood
        flush_bytes = draw.choice((1, 300, FLUSH_BYTES))
        for worker in self.workers:
            self.bury(worker)
        begun: dict[bytes, int] | None = None
        while True:
            count = draw.choice((1, 2, 3))
            while len(self.all_workers) < count:
                self.all_workers.append(Worker(self, len(self.all_workers)))
                self.decide_durability(self.all_workers[-1], False)
            homes = {client.identifier.encode(): draw.randrange(count) for client in self.clients}
            begins: list[dict[bytes, int]] = []
            try:
                self.risk_death(draw.choice((0.0, likelihood)))  # else it hardly ever comes to move anything
                for left in self.all_workers[count:] if self.environment is not None else ():
                    left.apply_retained()
                books = {worker.number: Books(self.config, worker.machine.disk, worker.name, worker.number,
                                              self.now_ms * 1000, self.now_ms, flush_bytes=flush_bytes)
                         for worker in self.all_workers}  # fmt: skip
                self.risk_death(draw.choice((likelihood, min(10 * likelihood, 0.02))))
                Adoption(
                    books,
                    count,
                    homes.__getitem__,
                    None if begun is None else begun.__getitem__,
                    partial(begins.append, homes),
                ).run()
                break
            except (Killed, PowerLoss):
                self.deaths_in_adoption += 1
            except (AdoptionError, OSError):
                for machine in self.machines:
                    machine.heal()
            if begins:
                begun = homes
            for machine in self.machines:
                machine.die()
        self.risk_death(likelihood)
        self.count = count
        for reader in self.retaining.readers if self.retaining is not None else ():
            reader.forget_live()
        for client in self.clients:
            client.home = homes[client.identifier.encode()]
        self.heard.all_over()
        for worker in self.workers:
            worker.silent_steps.clear()
        self.now_ms += draw.choice((0, 3000))
        for client in self.clients:
            # Its delay counts from when it was known that its connection was lost: that was now, if not before.
            payload, due_ms = client.waiting_will or (b"", 0)
            if payload and due_ms > died_ms and self.watcher.subscribed and self.now_ms > max(due_ms, died_ms + 2000):
                self.wills_owed.add(payload)

    def risk_death(self, likelihood: float) -> None:
        """From here on every step of a worker is so dangerous."""
        for machine in self.machines:
            machine.death.likelihood = likelihood

    # Running --------------------------------------------------------------------------------------------------------

    def while_syncing(self, worker: Worker) -> None:
        """A sync is slow: everything goes on meanwhile."""
        if self.faults and self.random.random() < 0.3:
            for _ in range(self.random.randint(1, 5)):
                self.act()
                other = self.random.choice(self.workers)
                if other is worker:
                    worker.turn()
                elif other.moves:
                    self.survive(other, other.turn)

    def step(self) -> None:
        """Let one thing happen."""
        self.steps += 1
        draw = self.random
        if self.reshards_likely and self.resharding.random() < self.reshards_likely:
            self.reshard()
        for _ in range(draw.randint(1, 15)):
            self.act()
        for _ in range(0 if self.retaining is None else self.retaining.random.randint(0, self.retaining.acts_max)):
            self.act(self.retaining.random.choice(self.retaining.busy))  # type: ignore[union-attr]
        self.now_ms += draw.randint(0, 60)
        if self.rights_of_several is not None:
            self.rights_of_several.step()
        self.network.step(self.faults)
        for worker in draw.sample(self.workers, draw.randint(1, self.count)):
            if self.retaining is not None and worker.is_up and self.is_stopped(worker, self.retaining):
                continue
            if worker.is_up:
                self.survive(worker, lambda worker=worker: self.step_worker(worker))  # type: ignore[misc]
            elif worker.down_steps:
                worker.down_steps -= 1
            else:
                self.start(worker)

    def is_stopped(self, worker: Worker, retaining: Retaining) -> bool:
        """Stop a worker now and then, and let it go on, or kill it, after a while."""
        draw = retaining.random
        if worker.stopped_steps:
            worker.stopped_steps -= 1
            if draw.random() < 0.003:
                self.bury(worker)
        elif draw.random() < retaining.stops_likely:
            self.stops += 1
            worker.stopped_steps = draw.randint(1, STOPPED_STEPS)
        return worker.stopped_steps > 0 or not worker.is_up

    def step_worker(self, worker: Worker) -> None:
        """A turn, perhaps a sync, and another turn."""
        machine = worker.machine
        worker.turn()
        if self.random.random() < self.commit_likelihood:
            machine.commit()
        if self.retaining is not None and self.retaining.random.random() < self.retaining.commit_likelihood:
            worker.write_index()
        if machine.follower is not None and self.random.random() < 0.2:
            machine.follower.acknowledge()
        if self.faults:
            machine.meddle()
        worker.turn()

    def survive(self, worker: Worker, action: Callable[[], None]) -> None:
        """Let a worker do something, of which it may die."""
        try:
            action()
        except (Killed, PowerLoss):
            self.bury(worker)

    def bury(self, worker: Worker) -> None:
        """A worker has died, and its clients notice it."""
        worker.die()
        self.notice_loss(worker)
        worker.down_steps = self.random.randint(0, DOWN_STEPS) if self.faults else 0
        for client in self.clients:
            if client.home == worker.number:
                client.survive()
                self.lose_session(client)
            if isinstance(client, Reader):
                client.forget_live()
        self.notice_loss(worker)

    def notice_loss(self, worker: Worker) -> None:
        """A worker that died may have lost what it had acknowledged."""
        if worker.machine.forgot:
            self.forgive([client for client in self.clients if client.home == worker.number])
            self.heard.forgot(
                worker,
                [
                    (client, self.workers[client.home])
                    for client in self.clients
                    if isinstance(client, Subscriber | Reader)
                ],
            )

    def start(self, worker: Worker) -> None:
        """Start a worker that has died; it may die of that."""
        self.recoveries += 1
        try:
            worker.boot()
            self.notice_loss(worker)
        except (Killed, PowerLoss):
            worker.die()
            self.notice_loss(worker)
        except OSError:
            worker.die()
            self.notice_loss(worker)
            worker.machine.heal()  # somebody makes room, or puts in another disk, and starts it again

    def run(self, steps: int) -> None:
        """Let things happen, faults included."""
        for number in range(steps):
            self.step()
            if number % 50 == 0:
                self.check_the_totals()

    def heal(self) -> None:
        """From here on nothing breaks, and everybody comes back."""
        self.faults = False
        for worker in self.workers:
            worker.machine.heal()
            worker.down_steps = worker.stopped_steps = 0
            if worker.is_up:
                self.survive(worker, worker.machine.die_at_last)
            worker.machine.death.likelihood = 0.0
        if self.rights_of_several is not None:
            self.rights_of_several.judge_all()

    def quiet(self) -> bool:
        """Return whether nobody owes anybody anything."""
        return all(worker.is_ready and worker.owes_nothing for worker in self.workers) and all(
            client.connected and not client.to_broker and not client.answers and not client.has_unanswered
            and not getattr(client, "in_flight", None) and getattr(client, "subscribed", True)
            and not client.connection.pending_bytes for client in self.clients)  # fmt: skip

    def round(self) -> None:
        """Everything moves on a little."""
        self.steps += 1
        self.now_ms += 100
        self.network.step(self.faults)
        for worker in self.workers:
            if not worker.is_up:
                self.start(worker)
        for client in self.clients:
            worker = self.workers[client.home]
            if worker.is_ready and client.connection is None:
                client.connect()
            client.carry()
            if worker.is_up:
                self.survive(worker, worker.turn)
            client.read()
            client.answer()
        for worker in self.workers:
            if worker.is_up:
                worker.machine.commit()
                worker.write_index()
                if worker.machine.follower is not None:
                    worker.machine.follower.acknowledge()
                worker.turn()

    def run_until_quiet(self, rounds: int) -> None:
        """Run without faults until nobody owes anybody anything."""
        for _ in range(rounds):
            self.round()
            if self.quiet() and self.network.is_quiet:
                return
        # fmt: off
        raise ViolationError(f"seed {self.seed}: not quiet after {rounds} rounds: " + ", ".join(
            f"{c.identifier} {c.connected} {len(c.to_broker)} {c.answers} {c.unanswered} "
            f"{getattr(c, 'subscribed', True)} {list(getattr(c, 'in_flight', ()))}" for c in self.clients) + ", ".join(
                f"worker {w.number} {w.is_ready} {len(w.router.effects)} "
                f"{[neighbour.state() for neighbour in w.mesh.neighbours.values()]}" for w in self.workers))
        # fmt: on

    def settle(self, rounds: int = 3000) -> None:
        """Run without faults until it is quiet; then all that is owed has arrived, and everything goes on."""
        self.heal()
        self.run_until_quiet(rounds)
        check_the_end(self)
        check_that_all_goes_on(self, rounds)
        for worker in self.workers:
            worker.compare()

    # Checks ---------------------------------------------------------------------------------------------------------

    def check_the_totals(self) -> None:
        """What the ledgers keep count of is what the sessions hold."""
        for worker in self.workers:
            if worker.is_up:
                worker.check_its_ledger()


def run_seed(seed: int, steps: int = 600) -> SeveralWorld:
    """Run one seed to its quiet end; `trace` has a hash of all that the broker sent. Raises ViolationError."""
    world = SeveralWorld(seed)
    world.run(steps)
    world.settle()
    for machine in world.machines:
        machine.disk.wipe()
    return world
