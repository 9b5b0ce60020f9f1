"""All targets by name."""

from tests.tools.fuzz import (
    acl_file,
    codec,
    configuration,
    connection,
    control_requests,
    decoders,
    first_bytes,
    http_answers,
    openings,
    password_file,
    peer_frames,
    proxy,
    rules,
    tls_answers,
    tls_records,
    tls_sealed,
    tokens,
    topics,
    upgrades,
    websocket_answers,
    websocket_frames,
)

TARGETS = {
    module.TARGET.name: module.TARGET
    for module in (
        connection,
        decoders,
        codec,
        topics,
        first_bytes,
        openings,
        configuration,
        tls_sealed,
        websocket_frames,
        upgrades,
        proxy,
        tls_records,
        websocket_answers,
        tls_answers,
        password_file,
        control_requests,
        tokens,
        acl_file,
        http_answers,
        rules,
        peer_frames,
    )
}
