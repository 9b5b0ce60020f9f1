"""The error that a start ends with."""


class StartError(Exception):
    """Why a worker cannot start, in one sentence."""
