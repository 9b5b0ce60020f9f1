"""The public names of Shoal."""

# ruff: noqa: E402  (what stands in the way of the packages is named before they are imported)

import shoal_packages

shoal_packages.check("router", "mesh", "broker")

from broker.auth.acl import Acl, Decision, Grant
from broker.auth.authenticator import Admission, Authenticator
from broker.auth.outcome import Accepted, Refused
from broker.auth.principal import Principal
from broker.auth.scram import ScramCredentials, ScramSha256
from broker.config.loader import Config, ConfigError, load
from broker.control.inprocess_client import InProcessClient, RefusedError
from broker.control.presence import ClientInfo, Connected, Disconnected
from broker.wire.application_message import ReceivedMessage
from broker.wire.reasons import CloseReason, Reason
from broker.worker.worker import Worker, open_broker

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
    "Decision",
    "Disconnected",
    "Grant",
    "InProcessClient",
    "Principal",
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
