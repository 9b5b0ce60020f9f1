"""The public names of Shoal."""

from broker.config import Config, ConfigError, load
from broker.worker import open_broker

__all__ = ["Config", "ConfigError", "load", "open_broker"]
