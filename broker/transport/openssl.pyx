"""Which OpenSSL this is."""


def version() -> str:
    """Return the name and the version of the library that is loaded: "OpenSSL 3.0.19 27 Jan 2026"."""
    return (<bytes>OpenSSL_version(0)).decode("ascii")
