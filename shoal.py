"""The public names of Shoal."""

from broker.config import Config, ConfigError, load

__all__ = ["Config", "ConfigError", "load"]
