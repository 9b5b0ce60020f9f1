"""Spark looks for packages of this kind of name: `spark.read.format("shoal")` needs no import at all."""

from analytics.source import ShoalSource as DefaultSource

__all__ = ["DefaultSource"]
