"""What can be set: every setting's name, default, range and meaning. broker.config reads and checks them."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from broker.config.authenticator import Authenticator
from broker.config.authorizer import Authorizer
from broker.config.http import Http
from broker.config.limit import Limit
from broker.config.listener import Listener


class Mqtt(Struct, frozen=True, kw_only=True):
    """What is negotiated with a client, and what is kept for one."""

    max_packet_size_bytes: Annotated[
        int, Meta(ge=20, le=268_435_460, description="Largest packet that a client may send; 5.0 clients are told.")
    ] = 2_097_152
    payload_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            le=268_435_455,
            description="Largest payload that a client may publish; a message with a larger one is dropped, which 5.0 "
            "clients are told (0x97). 0 for any that its packet may have.",
        ),
    ] = 0
    receive_maximum: Annotated[
        int, Meta(ge=1, le=65_535, description="QoS 1 and 2 messages that a client may have unanswered towards us.")
    ] = 1024
    receive_maximum_exceeded: Annotated[
        Literal["disconnect", "wait"],
        Meta(
            description="What becomes of a 5.0 client that sends more than that. disconnect: it is disconnected (0x93, "
            "receive maximum exceeded), as the standard has it. wait: it is not read from until what it has sent is "
            "acknowledged, as 3.x clients always are."
        ),
    ] = "disconnect"
    topic_alias_maximum: Annotated[
        int, Meta(ge=0, le=65_535, description="Topic aliases that a 5.0 client may set on its connection.")
    ] = 64
    topic_alias_maximum_out: Annotated[
        int, Meta(ge=0, le=65_535, description="Topic aliases that we set towards a 5.0 client, if it allows as many.")
    ] = 64
    inflight_max: Annotated[
        int,
        Meta(
            ge=1,
            le=65_535,
            description="QoS 1 and 2 messages unanswered by a client; a 5.0 client's Receive Maximum may lower it.",
        ),
    ] = 1000
    session_expiry_interval_max_s: Annotated[
        int,
        Meta(
            ge=0,
            le=4_294_967_295,
            description="Longest session expiry interval granted to a client; 4294967295 never expires.",
        ),
    ] = 4_294_967_295
    keep_alive_max_s: Annotated[
        int,
        Meta(
            ge=0,
            le=65_535,
            description="Longest keep alive of a client. One that asks for more, or for none, is told this one (5.0) "
            "or refused (3.x, 0x02). 0 leaves each client its own.",
        ),
    ] = 0
    maximum_qos: Annotated[
        int,
        Meta(
            ge=0,
            le=2,
            description="Highest QoS that a client may publish with; subscriptions are granted no more either.",
        ),
    ] = 2
    retain_available: Annotated[bool, Meta(description="Whether clients may publish retained messages.")] = True
    wildcard_subscriptions_available: Annotated[
        bool, Meta(description="Whether topic filters may contain + and #.")
    ] = True
    subscription_identifiers_available: Annotated[
        bool, Meta(description="Whether 5.0 clients may give their subscriptions an identifier.")
    ] = True
    shared_subscriptions_available: Annotated[
        bool, Meta(description="Whether topic filters may begin with $share.")
    ] = True
    empty_client_identifier: Annotated[
        bool, Meta(description="Whether a client may leave it to the broker to assign its client identifier.")
    ] = True
    client_identifier_3_1_max: Annotated[
        int,
        Meta(
            ge=23,
            le=65_535,
            description="Characters in the client identifier of an MQTT 3.1 client; MQTT 3.1 itself allows 23.",
        ),
    ] = 65_535
    auto_id_prefix: Annotated[
        str, Meta(max_length=1024, description="What the client identifiers begin with that the broker assigns.")
    ] = "auto-"
    response_information: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Response Information for 5.0 clients that ask for it; {client_identifier} stands for theirs.",
            examples=["answers/{client_identifier}"],
        ),
    ] = None
    explain_to_clients: Annotated[
        bool,
        Meta(
            description="Whether the Reason String of a refused SUBSCRIBE or PUBLISH tells a 5.0 client what in the "
            "access rules decided against it."
        ),
    ] = False
    server_reference: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Another server that 5.0 clients are told to use: HOST or HOST:PORT, several with blanks.",
            examples=["mqtt.example.org:1883"],
        ),
    ] = None
    server_reference_use: Annotated[
        Literal["full", "always", "moved"],
        Meta(
            description="Who is sent to server_reference: at full those beyond connections_max, at always every client "
            "(0x9C, use another server), at moved every client for good (0x9D)."
        ),
    ] = "full"
    queue_qos0: Annotated[
        bool, Meta(description="Whether QoS 0 messages wait for a client that is away, as QoS 1 and 2 messages do.")
    ] = False
    queue_messages_max: Annotated[
        int, Meta(ge=1, le=10_000_000, description="Messages that wait for one session at most.")
    ] = 10_000
    queue_bytes_max: Annotated[
        int, Meta(ge=1024, le=1 << 40, description="Bytes of messages that wait for one session at most.")
    ] = 16_777_216
    queue_overflow: Annotated[
        Literal["drop_newest", "drop_oldest", "disconnect", "push_back"],
        Meta(
            description="What becomes of a message that a session's queue has no room for. "
            "drop_newest: it is dropped. drop_oldest: it waits, and what has waited longest is dropped. "
            "disconnect: it is dropped, and its receiver is disconnected (0x97, quota exceeded). "
            "push_back: it waits, and its publisher is not read from until there is room or queue_push_back_s have "
            "passed, then as drop_oldest. "
            "For a client that is away, disconnect means drop_newest and push_back drop_oldest."
        ),
    ] = "drop_newest"
    queue_rules: Annotated[
        tuple[str, ...],
        Meta(
            description="queue_overflow for some topics: a topic filter, a colon and the word. The first whose filter "
            "matches the topic name of the message that comes counts.",
            examples=[["alarms/#: push_back", "telemetry/#: drop_oldest"]],
        ),
    ] = ()
    queue_push_back_s: Annotated[
        float, Meta(ge=0.25, le=3600, description="Time that a publisher is not read from at most, at push_back.")
    ] = 5.0
    shared_subscription_strategy: Annotated[
        Literal["round_robin", "random", "sticky", "hash_client", "hash_topic"],
        Meta(description="How a shared subscription picks the member that gets a message."),
    ] = "round_robin"
    sys_interval_s: Annotated[
        float, Meta(ge=0, le=86_400, description="How often the topics under $SYS are renewed; 0 leaves them out.")
    ] = 10.0


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds that keep one client, or a crowd of them, from hurting the others."""

    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000_000,
            description="Connections open at once, of all workers together. A process's limit on open files may lower "
            "what a worker has of them.",
        ),
    ] = 1_000_000
    sessions_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000_000,
            description="Sessions of all workers together, with a connection or without one. Beyond it only clients "
            "that have a session are let in (close reason sessions_max).",
        ),
    ] = 1_000_000
    connect_timeout_s: Annotated[
        float,
        Meta(
            ge=0.25,
            le=3600,
            description="Time from accepting a connection to the end of its authentication, and for the answer to a "
            "later challenge.",
        ),
    ] = 10.0
    connect_bytes_max: Annotated[
        int,
        Meta(ge=256, le=268_435_460, description="Largest packet that a client may send before it is authenticated."),
    ] = 65_536
    control_packet_bytes_max: Annotated[
        int,
        Meta(
            ge=256,
            le=268_435_460,
            description="Largest packet, but PUBLISH, that a client may send once it is authenticated: a SUBSCRIBE of "
            "many topic filters, above all.",
        ),
    ] = 524_288
    connects_per_second_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="CONNECTs accepted in a second, after a burst of twice as many; 0 for any number.",
        ),
    ] = 10_000
    login_delay_max_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="Longest time that a user has to wait after failed logins from one address; it doubles from a "
            "second on. 0 for none.",
        ),
    ] = 60.0
    reconnects_per_minute_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="CONNECTs of one client identifier in a minute, from one address; beyond it, it has to wait a "
            "minute, then two, up to an hour. 0 for any number.",
        ),
    ] = 0
    packet_timeout_s: Annotated[
        float, Meta(ge=1, le=86_400, description="Time from the first byte of a packet to its last.")
    ] = 60.0
    tcp_keepalive_s: Annotated[
        int,
        Meta(
            ge=0,
            le=32_767,
            description="Silence after which TCP probes a client that has no keep alive of its own; 0 never does.",
        ),
    ] = 60
    pending_connects_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="CONNECTs that the authenticator has at once; then accepting pauses.")
    ] = 1000
    pending_handshakes_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="TLS, WebSocket and proxy handshakes that a worker has under way at once; then accepting "
            "pauses, and clients that say nothing for 2 s are sent away.",
        ),
    ] = 1000
    pending_bytes_max: Annotated[
        int,
        Meta(ge=1024, le=1 << 30, description="Bytes kept unparsed behind a CONNECT that waits; then reading pauses."),
    ] = 65_536
    output_buffer_bytes_max: Annotated[
        int,
        Meta(
            ge=4096,
            le=1 << 40,
            description="Bytes unsent to one connection, beyond which QoS 0 messages to it are dropped and counted.",
        ),
    ] = 1_048_576
    subscriptions_per_client_max: Annotated[
        int, Meta(ge=1, le=10_000_000, description="Subscriptions that one session may have.")
    ] = 10_000
    topic_levels_max: Annotated[
        int, Meta(ge=1, le=65_536, description="Levels that a topic name or a topic filter may have.")
    ] = 200
    wildcard_levels_max: Annotated[
        int,
        Meta(
            ge=1,
            le=65_536,
            description="Levels that a topic filter with + may have. All such filters together have a new topic name "
            "looked for in up to 2 to the power of this plus one places, whoever subscribes to what.",
        ),
    ] = 14
    topic_bytes_max: Annotated[int, Meta(ge=16, le=65_535, description="Length of a topic name or a topic filter.")] = (
        65_535
    )
    retained_messages_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000_000,
            description="Topics that may have a retained message. Those that are there when it is lowered stay.",
        ),
    ] = 1_000_000
    retained_bytes_max: Annotated[
        int, Meta(ge=0, le=1 << 40, description="Topic names, properties and payloads of all retained messages.")
    ] = 268_435_456
    messages_per_second_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000_000,
            description="Messages that one client may publish in a second; beyond it, it is not read from for a "
            "while. 0 for any number.",
        ),
    ] = 0
    bytes_per_second_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="Bytes that one client may send in a second; beyond it, it is not read from for a while. "
            "0 for any number.",
        ),
    ] = 0
    memory_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 50,
            description="Memory of a worker beyond which nothing more is queued, retained or connected; 0 for three "
            "quarters of what the machine or its control group has.",
        ),
    ] = 0
    route_cache_max: Annotated[
        int, Meta(ge=8, le=100_000_000, description="Topic names whose receivers are remembered between messages.")
    ] = 65_536
    route_cache_bytes_max: Annotated[
        int,
        Meta(
            ge=65_536,
            le=1 << 40,
            description="Memory that these may take; a sixteenth of it while the worker is at its limit of memory.",
        ),
    ] = 67_108_864
    alias_bytes_max: Annotated[
        int,
        Meta(
            ge=65_535,
            le=1 << 31,
            description="Length of all topic names behind the topic aliases of one connection, each way. A client that "
            "goes beyond it is disconnected; towards a client, topic names are sent without one then.",
        ),
    ] = 131_072
    sockets_per_turn_max: Annotated[
        int, Meta(ge=1, le=512, description="Ready sockets that one turn of the reactor serves at most.")
    ] = 512
    bytes_per_read_max: Annotated[
        int, Meta(ge=4096, le=1 << 26, description="Bytes that one turn of the reactor reads from one socket at most.")
    ] = 131_072


class Archive(Struct, frozen=True, kw_only=True):
    """What is logged whether or not a session wants it, so that it can be replayed, and for how long it is kept."""

    topic_filters: Annotated[
        tuple[str, ...],
        Meta(description="Messages on these topics are kept for $replay, at any QoS and with subscribers or without."),
    ] = ()
    retention_age_s: Annotated[
        float,
        Meta(ge=0, le=10_000_000_000, description="Time after which archived messages may be removed; 0 for never."),
    ] = 0.0
    retention_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 60,
            description="Size of each worker's archive beyond which its oldest messages are removed; 0 for any size.",
        ),
    ] = 0


class Replay(Struct, frozen=True, kw_only=True):
    """Who may have stored messages again, by $replay."""

    allow_anonymous: Annotated[
        bool, Meta(description="Whether clients without a user name may, as far as the ACL lets them subscribe.")
    ] = True


class Log(Struct, frozen=True, kw_only=True):
    """Where log lines go and how many may wait to be written."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severe lines that are written.")
    ] = "info"
    connections: Annotated[
        bool, Meta(description="Whether a client that connects has a line, and one that goes with a DISCONNECT.")
    ] = True
    file: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="File to append to, reopened on SIGHUP; without it, standard error.", examples=["shoal.log"]),
    ] = None
    format: Annotated[
        Literal["auto", "console", "json"],
        Meta(description="Form of a line; auto is console on a terminal and JSON elsewhere."),
    ] = "auto"
    queue_max: Annotated[
        int, Meta(ge=1, le=10_000_000, description="Lines that wait for the log writer; beyond it dropped and counted.")
    ] = 10_000


class Storage(Struct, frozen=True, kw_only=True):
    """The commit log: what is kept of sessions, queues and retained messages, and how safely."""

    durability: Annotated[
        Literal["fsync", "os", "none"],
        Meta(
            description="When a message counts as kept: fsync: synced to the disk; os: given to the operating system, "
            "so it survives a killed broker but not a loss of power; none: not even that."
        ),
    ] = "fsync"
    segment_bytes_max: Annotated[int, Meta(ge=1_048_576, le=1 << 32, description="Size of one file of the log.")] = (
        67_108_864
    )
    compact_bytes: Annotated[
        int,
        Meta(
            ge=1_048_576,
            le=1 << 40,
            description="Bytes of log after which what is no longer needed of it is removed; a restart reads at most "
            "about twice as many.",
        ),
    ] = 268_435_456


class Mesh(Struct, frozen=True, kw_only=True):
    """Links between workers."""

    interest_timeout_s: Annotated[
        float,
        Meta(ge=0.01, le=3600, description="Time that a SUBACK waits for the other workers to know what is wanted."),
    ] = 2.0
    silence_s: Annotated[
        float,
        Meta(
            ge=1,
            le=3600,
            description="Time without an answer after which another worker is left alone: what it is owed waits in the "
            "log until it answers again.",
        ),
    ] = 3.0
    window_bytes: Annotated[
        int, Meta(ge=1_048_576, le=1 << 32, description="Bytes on their way to one other worker at most.")
    ] = 8_388_608
    owed_bytes_max: Annotated[
        int, Meta(ge=1_048_576, le=1 << 50, description="Bytes of messages that wait for one other worker at most.")
    ] = 1 << 34
    absent_peer_age_s: Annotated[
        float,
        Meta(
            ge=60,
            le=31_536_000,
            description="Time that another worker may be away; then what it is owed is dropped (reason peer_gone).",
        ),
    ] = 86_400.0


class Shutdown(Struct, frozen=True, kw_only=True):
    """How a worker ends."""

    drain_s: Annotated[
        float, Meta(ge=0, le=3600, description="Time that unsent bytes get to leave after clients were told to go.")
    ] = 1.5
    wait_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="Time that the broker goes on as before when it is asked to end, and is not ready: until load "
            "balancers have found that out.",
        ),
    ] = 0.0
    clients_per_second: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000_000,
            description="Clients told to go in a second, of all workers together: so they do not all come to another "
            "server at once. 0 for all at once.",
        ),
    ] = 0
    server_reference: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Another server that 5.0 clients are told to use then (0x9C); without it they are told that "
            "this one is shutting down (0x8B).",
            examples=["mqtt.example.org:1883"],
        ),
    ] = None


class Processes(Struct, frozen=True, kw_only=True):
    """How the supervisor looks after the workers of a broker; with one worker there is no supervisor."""

    home_wait_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=600_000,
            description="Time that a client waits for the worker that has its session, if that is away; then it is "
            "told that the server is unavailable.",
        ),
    ] = 5000
    stall_s: Annotated[
        float, Meta(ge=1, le=86_400, description="Time after which a worker that gives no sign of life is killed.")
    ] = 120.0
    restarts_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Restarts of one worker within restarts_within_s; if it ends once more, the broker ends.",
        ),
    ] = 10
    restarts_within_s: Annotated[
        float, Meta(ge=1, le=86_400, description="Time in which the restarts of a worker are counted.")
    ] = 60.0


class Config(Struct, frozen=True, kw_only=True):
    """One broker's settings. `load` is the way to a checked one."""

    workers: Annotated[
        int, Meta(ge=0, le=1024, description="Worker processes; with 0 one for each core that the broker may use.")
    ] = 0
    listen: Annotated[
        tuple[str, ...],
        Meta(
            description="Addresses to listen on: tcp://HOST:PORT, IPv6 in brackets, port 0 takes any free port; "
            "ws:// likewise, unix://PATH. What has rules of its own, or TLS, is a [[listener]]."
        ),
    ] = ("tcp://127.0.0.1:1883",)
    data_dir: Annotated[
        str, Meta(min_length=1, description="Folder that one broker locks for itself and keeps its data in.")
    ] = "shoal-data"
    allow_anonymous: Annotated[
        bool | None,
        Meta(
            description="Whether clients need no authentication: true on every address, false nowhere, "
            "unset on loopback addresses only, and nowhere if there is an [[authenticator]].",
            examples=[True],
        ),
    ] = None
    listener: Annotated[
        tuple[Listener, ...], Meta(description="More addresses to listen on, each with rules of its own.")
    ] = ()
    authenticator: Annotated[
        tuple[Authenticator, ...], Meta(description="Who is asked, in this order, who a client is.")
    ] = ()
    authorizer: Annotated[
        tuple[Authorizer, ...], Meta(description="Who is asked, in this order, what a client may do.")
    ] = ()
    limit: Annotated[
        tuple[Limit, ...], Meta(description="What some clients may have more or less of than others.")
    ] = ()
    mqtt: Annotated[Mqtt, Meta(description="What is negotiated with a client, and what is kept for one.")] = Mqtt()
    limits: Annotated[
        Limits, Meta(description="Bounds that keep one client, or a crowd of them, from hurting the others.")
    ] = Limits()
    storage: Annotated[
        Storage,
        Meta(description="The commit log: what is kept of sessions, queues and retained messages, and how safely."),
    ] = Storage()
    archive: Annotated[
        Archive,
        Meta(description="What is logged for replays, whether or not a session wants it, and for how long it is kept."),
    ] = Archive()
    replay: Annotated[Replay, Meta(description="Who may have stored messages again, by $replay.")] = Replay()
    mesh: Annotated[Mesh, Meta(description="Links between workers.")] = Mesh()
    log: Annotated[Log, Meta(description="Where log lines go and how many may wait to be written.")] = Log()
    http: Annotated[Http, Meta(description="Health, metrics and an API over HTTP.")] = Http()
    shutdown: Annotated[Shutdown, Meta(description="How a worker ends.")] = Shutdown()
    processes: Annotated[
        Processes,
        Meta(description="How the supervisor looks after the workers; with one worker there is no supervisor."),
    ] = Processes()

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """All listeners, in the order of their numbers: those of `listen` first."""
        return (*(Listener(address=address) for address in self.listen), *self.listener)


RENAMED: dict[str, str] = {
    "mqtt.server_keep_alive_s": "mqtt.keep_alive_max_s, which changes only a keep alive that is longer, or none"
}
"""Settings that earlier versions had, and what stands in their place."""
