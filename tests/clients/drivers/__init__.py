"""The client libraries and programs that the tests speak to the broker through, each behind the same few verbs."""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.clients.drivers.base import Driver

MODULES = ("paho_driver", "aiomqtt_driver", "gmqtt_driver", "mqtt_js_driver", "mosquitto_driver", "shoal_driver")


class MissingError(Exception):
    """A client library or program that is not on this machine; the text names it."""


@cache
def load(module: str) -> type[Driver]:
    """Return the driver of a module here; raise MissingError if what it drives is not installed."""
    try:
        driver: type[Driver] = importlib.import_module(f"tests.clients.drivers.{module}").DRIVER
    except ModuleNotFoundError as error:
        raise MissingError(f"the Python package {error.name}") from error
    driver.check_installed()
    return driver
