"""Spark looks for packages of this kind of name: `spark.read.format("shoal")` needs no import at all."""

# ruff: noqa: E402  (what stands in the way of the packages is named before they are imported)

import shoal_packages

shoal_packages.check("router", "analytics")

from analytics.source.source import ShoalSource as DefaultSource

__all__ = ["DefaultSource"]
