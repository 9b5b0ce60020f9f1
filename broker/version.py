"""The version of this distribution, in the one place that the build reads too."""

VERSION = "0.2.0"
