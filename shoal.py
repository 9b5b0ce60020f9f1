"""The public names of Shoal."""

# ruff: noqa: E402  (what stands in the way of the packages is named before they are imported)

import shoal_packages

shoal_packages.check("router", "mesh", "broker")

from broker.acl import Acl
from broker.application import ReceivedMessage
from broker.auth import Accepted, Admission, Authenticator, Refused
from broker.config import Config, ConfigError, load
from broker.inprocess import InProcessClient, RefusedError
from broker.presence import ClientInfo, Connected, Disconnected
from broker.reasons import CloseReason, Reason
from broker.scram import ScramCredentials, ScramSha256
from broker.worker import Worker, open_broker

__all__ = [
    "Accepted",
    "Acl",
    "Admission",
    "Authenticator",
    "ClientInfo",
    "CloseReason",
    "Config",
    "ConfigError",
    "Connected",
    "Disconnected",
    "InProcessClient",
    "Reason",
    "ReceivedMessage",
    "Refused",
    "RefusedError",
    "ScramCredentials",
    "ScramSha256",
    "Worker",
    "load",
    "open_broker",
]
