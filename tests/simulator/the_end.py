"""What must hold of several workers when all is quiet: everything has arrived, and everything goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulator.several import SeveralWorld

GROUP_ENDS = ("session_ended", "no_member", "unreadable")  # why nobody of a group got a message


def check_that_all_goes_on(world: SeveralWorld, rounds: int) -> None:
    """A message of each QoS now comes to whoever wants it, at QoS 0 too, and once."""
    sent: list[tuple[bytes, bytes]] = []
    strategy = world.config.mqtt.shared_subscription_strategy
    chosen_by: dict[tuple[bytes, bytes], set[str]] = {}
    for publisher in world.publishers:
        for qos in (0, 1, 2):
            topic = f"t/{qos}".encode()
            sent.append((topic, publisher.publish_one(topic, qos)))
    world.run_until_quiet(rounds)
    for topic, payload in sent:
        keys = {"hash_topic": topic, "hash_client": payload.partition(b":")[0], "sticky": b""}
        chosen = {member.identifier for member in world.members if payload in world.got[member.identifier]}
        world.check(len(chosen) == bool(world.members), f"the group got {payload!r} by {sorted(chosen)} at the end")
        # Where rights are not the same for all members, each topic has members of its own.
        of_topic = topic if world.rights is not None else b""
        chosen_by.setdefault((keys.get(strategy, payload), of_topic), set()).update(chosen)
    if world.config.mqtt.inflight_max > len(sent):  # else a full window sends some elsewhere
        for key, chosen in chosen_by.items():
            world.check(len(chosen) <= 1, f"by {strategy}, {sorted(chosen)} got what belongs to {key!r} at the end")
    for client in world.subscribers:
        for topic, payload in sent:
            wanted = client.wants(topic) and not world.hides(client, topic)
            times = world.got[client.identifier].get(payload, 0)
            world.check(times == wanted, f"{client.identifier} got {payload!r} {times} times at the end")
    check_the_end(world)


def check_the_end(world: SeveralWorld) -> None:
    """Nothing acknowledged is lost, and nothing is left over."""
    for member in world.members:
        world.got.setdefault("group", {}).update(world.got[member.identifier])
    world.check(world.rights is None or not world.rights.pending, "what is hidden is not in force at the end")
    for identifier, owed in world.owed.items():
        missing = owed - world.got.get(identifier, {}).keys()
        if identifier == "group":
            # Of each topic some member may read all, so nobody is left for it only when members leave.
            ends = GROUP_ENDS if world.members_left or world.has_forgiven else ()
            counted = sum(worker.dropped[reason] for worker in world.all_workers for reason in ends)
            world.check(len(missing) <= counted, f"the group never got {len(missing)}, {counted} are counted")
            continue
        world.check(not missing, f"{identifier} never got {[payload[-20:] for payload in sorted(missing)[:5]]}")
    missing = world.wills_owed - world.wills_came
    world.check(not missing, f"the wills {[payload[-20:] for payload in sorted(missing)[:5]]} never came")
    if world.retaining is not None:
        world.retaining.check_the_end([
            {topic: b"" if (message := worker.router.retaining.message_of(topic)) is None else message.body
             for topic in world.history.topics} for worker in world.workers])  # fmt: skip
    for worker in world.workers:
        worker.check_the_end(sum(client.home == worker.number for client in world.clients), world.has_forgiven)
    world.check_the_totals()
