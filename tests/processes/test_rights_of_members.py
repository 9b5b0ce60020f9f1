"""Members of a shared subscription that may read different topics, on three workers."""

from __future__ import annotations

import select
from collections import Counter
from pathlib import Path

from broker.wire.packets import Ack, Publish, Suback, Subscribe, subscription
from broker.wire.properties import PacketType
from tests.processes.test_admin import asked
from tests.support.process import BrokerProcess
from tests.support.raw_client import RawClient, wait_until

BEFORE = b"user ann\ntopic read a/#\nuser ben\ntopic read b/#\nuser pub\ntopic write #\n"
AFTER = BEFORE.replace(b"read a/#", b"read b/#")
EACH = 4  # clients of each user: they are at home where their client identifiers say
MESSAGES = 12  # of each topic and publisher, half of them at QoS 0


class Members:
    """Clients of two users, all in one group."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.of: dict[RawClient, str] = {}
        self.got: Counter[tuple[str, bytes]] = Counter()  # by user and topic
        for name in ("ann", "ben"):
            for number in range(EACH):
                client = RawClient(broker.port)
                client.connect(f"{name}{number}", user_name=name)
                client.send(Subscribe(1, (subscription(b"$share/g/#", 1),)))
                assert isinstance(client.read(), Suback)
                self.of[client] = name

    def read(self, count: int) -> Counter[tuple[str, bytes]]:
        """Read until so many messages have come."""

        def read_some() -> bool:
            ready, _, _ = select.select([client.socket for client in self.of], [], [], 0)
            for client, name in self.of.items():
                while client.has_packet or client.socket in ready:
                    ready = [each for each in ready if each is not client.socket]
                    packet = client.read()
                    assert isinstance(packet, Publish)
                    self.got[name, packet.topic] += 1
                    if packet.qos:
                        client.send(Ack(PacketType.PUBACK, packet.packet_identifier))
            return self.got.total() >= count

        wait_until(read_some, f"{count} messages")
        return self.got


def test_each_message_comes_to_a_member_that_may_read_it_whatever_worker_it_is_on(tmp_path: Path) -> None:
    acl = tmp_path / "acl.conf"
    acl.write_bytes(BEFORE)
    (tmp_path / "shoal.toml").write_text(f'[[authorizer]]\ntype = "acl_file"\nfile = "{acl}"\n')
    with BrokerProcess(tmp_path, "--config", str(tmp_path / "shoal.toml"), "--workers", "3") as broker:
        members = Members(broker)
        publishers = [RawClient(broker.port) for _ in range(3)]
        for number, publisher in enumerate(publishers):
            publisher.connect(f"pub{number}", user_name="pub")

        def publish(*topics: bytes) -> None:
            for publisher in publishers:
                for number in range(1, MESSAGES + 1):
                    for topic in topics:
                        if number % 2:
                            publisher.send(Publish(topic, b"x", 1, packet_identifier=number))
                            assert isinstance(publisher.read(), Ack)
                        else:
                            publisher.send(Publish(topic, b"x", 0))

        publish(b"a/1", b"b/1")
        sent = 3 * MESSAGES
        assert members.read(2 * sent) == {("ann", b"a/1"): sent, ("ben", b"b/1"): sent}
        acl.write_bytes(AFTER)
        assert asked(broker, "/reload", "POST")[0] == 200
        publish(b"a/1")  # which nobody may read now
        publish(b"b/1")
        got = members.read(3 * sent)
        assert (got["ann", b"a/1"], got["ben", b"a/1"]) == (sent, 0)
        assert got["ann", b"b/1"] > 0
        for client in [*members.of, *publishers]:
            client.socket.close()
