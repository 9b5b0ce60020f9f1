"""The events of what is asked over HTTP: part of broker.telemetry.log_events."""

from __future__ import annotations

from typing import Final

from broker.telemetry.log_event import Event

HTTP: Final = (
    Event(
        "http_listening",
        "info",
        "admin",
        "address",
        "Health, metrics and the API are answered at this address (`http.listen`).",
    ),
    Event("http_certificates_read", "info", "admin", "", "Certificates of `[http]` had changed, and are in use."),
    Event(
        "http_certificates_unusable",
        "warning",
        "admin",
        "what",
        "Certificates of `[http]` have changed, and cannot be used: those before stay in use.",
        "Do certificate and key belong together, and were both written?",
    ),
    Event(
        "http_passwords_in_the_clear",
        "warning",
        "admin",
        "address",
        "Users log in at `/api/v1`, which other machines reach without TLS.",
        "Set `http.certfile` and `http.keyfile`, or put a proxy with TLS before it and listen on loopback.",
    ),
    Event("api_asked", "warning", "admin", "user, address, method, path", "A user had something changed by `/api/v1`."),
    Event(
        "api_refused",
        "warning",
        "admin",
        "user, address, reason",
        "A request to `/api/v1` was refused for who made it: a wrong password, or no rights.",
        "Many addresses: someone guesses passwords.",
    ),
)
