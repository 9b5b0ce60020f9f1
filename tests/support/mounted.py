"""Settings and seams under which all clients live under a mount point, and see what others see elsewhere."""

from __future__ import annotations

import msgspec

from broker.config.listener import Listener
from broker.config.loader import Config
from tests.support.doubles import TopicAcl


def mount_point_of(over: str) -> str:
    """Return what stands behind the @ of a transport as run_over_sockets() names them; "" if there is none."""
    return over.partition("@")[2]


def acl_for(over: str) -> TopicAcl:
    """Return the ACL of the tests, for clients that come by a transport."""
    return TopicAcl(mount_point_of(over).encode())


def with_mounted(config: Config, listener: Listener, over: str) -> Config:
    """Return settings with one listener, by which clients come under the mount point of a transport.

    Limits and rules are of the broker's names, which are longer.
    """
    mount_point = mount_point_of(over)
    limits, mqtt, more, levels = config.limits, config.mqtt, len(mount_point), mount_point.count("/")
    return msgspec.structs.replace(
        config,
        listen=(),
        listener=(msgspec.structs.replace(listener, mount_point=mount_point),),
        limits=msgspec.structs.replace(
            limits,
            topic_bytes_max=min(limits.topic_bytes_max + more, 65_535),
            topic_levels_max=limits.topic_levels_max + levels,
            wildcard_levels_max=limits.wildcard_levels_max + levels,
        ),
        mqtt=msgspec.structs.replace(mqtt, queue_rules=tuple(mount_point + rule for rule in mqtt.queue_rules)),
    )
