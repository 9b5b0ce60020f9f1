"""One connection's half of the conversation: bytes in, calls out; pure."""

from broker.wire.output_buffer cimport Output, PointerList
from broker.reactor.mount_point cimport MountPoint
from broker.reactor.topic_aliases cimport TopicAliases
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from router.core.message cimport Message
from router.exchanges cimport PublishVerdict
from router.sessions.outgoing cimport Outgoing
from router.core.receiver cimport Receiver
from router.router cimport Router
from router.sessions.session cimport Session
from router.sessions.sink cimport Sink, SinkResult
from router.matching.route_cache cimport Route

cdef enum ProtocolState:
    AWAITING_CONNECT = 0
    CONNECTING = 1               # CONNECT is being decided: nothing behind it is parsed, AUTH excepted
    OPEN = 2
    RELAYED = 3                  # nothing is parsed here: another worker serves the client, see Connection.partner
    # From here on the end has been decided, and nothing more is parsed.
    CLOSING = 4                  # the controller is to deal with it
    ENDED = 5                    # it has
    LINGERING = 6                # the peer has LINGER_MS to read our last packet
    LINGERED = 7                 # it has read it, or has had that time
    CLOSED = 8                   # the socket is closed

cdef enum Pause:                 # why a connection is not read, parsed or sent to; their names: PAUSES
    PAUSE_PARKED = 0x01          # a control packet waits for Python
    PAUSE_UNSETTLED = 0x02       # as many of its messages as its Receive Maximum are not acknowledged
    PAUSE_PUSHED_BACK = 0x04     # a queue has no room for what it publishes: see Protocol.waits_for
    PAUSE_CUT = 0x08             # it has had its share of the turn: in turn.cut
    PAUSE_THROTTLED = 0x10       # it is over its rate: in turn.throttled
    PAUSE_OUTPUT_FULL = 0x20     # its output is over the limit, until that has left
    PAUSE_INPUT_ENDED = 0x40     # its peer sends no more; what came before waits to be dealt with, then it ends
    PAUSE_UNREAD = 0x80          # its socket is ready, and the turn has used up its budget: in turn.unread
    PAUSE_BLOCKED = 0x100        # its socket takes no more output: until EPOLLOUT
    NOT_PARSED = 0x0F            # with any of these what comes is kept and not parsed
    NOT_RECEIVED = 0x70          # with any of these nothing is received

cdef enum:
    VERDICTS = 65536             # remembered answers of the ACL, a power of two
    POISON = 0xDD                # what the checked build leaves in the receive buffer
    # What a turn does is counted in units of some 50 ns. A connection's share at a time, and a turn, are bounded by them.
    BYTES_PER_WORK = 8           # parsed, with what becomes of messages to few
    WORK_READ = 40               # a system call
    WORK_SEND = 300              # the same, with 64 KiB to send
    LARGE_FRAME = 256            # bytes from which copying counts: a unit for each 256 and receiver
    WIDE_TARGETS = 256           # receivers of a message from which its output may wait behind everybody else's

cdef struct Turn:
    # What all connections of a worker share: the turn's time, its lists of things to do, the terms every client gets.
    # Whoever is in a list is held by the hub until the turn has ended.
    int64_t now_ms               # monotonic
    PointerList dirty            # Protocol with output
    PointerList parked           # Protocol with a control packet to be handled in Python
    PointerList closing          # Protocol to be closed
    PointerList waiting          # Protocol that can take up again what it held back
    PointerList later            # Protocol with much to read from the disk: a few in a turn, whoever waits longest
    # What a turn leaves for the next, in order; see Shares.
    PointerList cut              # Connection that has had its share and has more to parse
    PointerList unread           # Connection whose socket is ready and was not read
    PointerList wide             # Protocol with output of messages to many: sent some at a time, behind the others
    PointerList* touched         # where output is listed now: dirty or wide
    uint32_t work                # done in this turn
    const uint64_t* visited      # by the router's subscription tree: nodes, since the start
    uint32_t share               # of one connection at a time
    uint32_t share_used          # by the one that is parsed, in work when it has been; or since then, by what is sent
    uint32_t share_bytes         # ... or when so many bytes have been parsed
    uint64_t* verdicts           # VERDICTS entries: hash of (salt, topic name), low bit: allowed
    uint32_t rights              # rises when other verdicts may hold
    uint32_t packet_bytes_max    # Maximum Packet Size that we accept
    uint32_t payload_bytes_max   # of a PUBLISH; a message with a larger payload is dropped
    uint32_t control_bytes_max   # largest packet but PUBLISH
    uint32_t receive_maximum     # Receive Maximum that we accept
    uint8_t receive_maximum_from # protocol level from which more than that is an error; whoever is below it waits
    uint32_t alias_max           # Topic Alias Maximum that we accept
    uint32_t alias_bytes_max     # of the topic names behind one connection's aliases, each way
    uint32_t connect_bytes_max   # largest packet before authentication has succeeded
    uint32_t topic_levels_max
    uint32_t topic_bytes_max
    uint8_t maximum_qos
    bint retain_available
    uint32_t packet_timeout_ms   # from a packet's first byte to its last
    bint pushes_back             # there are topics for which a queue without room makes publishers wait
    uint64_t throttled_count     # how often a connection was paused so; the others are of every day
    uint64_t pushed_back_count
    uint64_t unsettled_count
    uint64_t output_full_count
    PointerList throttled        # Protocol that is not read from until its rate has come down
    PointerList pushed_back      # Protocol that is not read from until a queue has room, for a while
    uint32_t pending_bytes_max   # kept unparsed behind a packet that waits for an answer; then reading stops
    uint64_t output_bytes_max    # per connection; over it QoS 0 is dropped and QoS 1/2 waits
    # Counters of the worker, since it started.
    uint64_t[3] publishes_in     # PUBLISH packets by QoS
    uint64_t[3] publishes_out
    uint64_t payload_bytes_in    # of PUBLISH packets
    uint64_t payload_bytes_out
    uint64_t[16] packets_in      # other packets, by packet type
    uint64_t[16] packets_out
    uint64_t bytes_in            # received from and taken by sockets
    uint64_t bytes_out
    int64_t receive_ns           # spent in recv() during sampled turns
    bint sampled                 # this turn is one of them
    bint turning                 # a turn is under way: what is listed now is dealt with before it ends
    int wake_fd                  # eventfd that makes the reactor turn; -1 without a reactor
    bint in_router               # an exception now is the router's: it ends the worker

cdef int call_for_turn(Turn* turn) except -1     # something was listed: if no turn is under way, have one


cdef class Protocol(TopicAliases):
    cdef Output out
    cdef Turn* turn
    cdef Router router
    cdef Message message                  # the worker's one borrowed message, refilled by every PUBLISH
    cdef readonly Session session         # None before CONNACK and after the end
    cdef Route route                      # of the topic published last; None before the first
    cdef readonly MountPoint mount_point  # its listener's; None: names are the broker's
    cdef object acl                       # None: everything is allowed
    cdef dict requests                    # topic name that its client asks the broker by -> whether the ACL says if; None: none
    cdef public object principal          # whom the ACL is asked about (broker.auth.principal.Principal); None before CONNACK
    cdef readonly bytes parked_body       # of the control packet that waits for Python
    cdef public object backlog            # retained messages still to be sent (broker.control.retained_backlog.Backlog), or None
    cdef public object slices             # of a control packet that takes several turns (broker.control.subscribe), or None
    cdef public bint replays_wait         # replays that go on when it takes more
    cdef uint64_t salt                    # of this connection's verdicts
    cdef uint64_t messages_in, messages_out, bytes_in, bytes_out
    cdef readonly uint32_t packet_bytes_max   # the client's Maximum Packet Size
    cdef uint32_t packet_bytes_in_max     # Maximum Packet Size that we accept of it
    cdef uint32_t checked_bytes           # that, or what a packet but PUBLISH may have: larger ones are looked at closely
    cdef readonly uint8_t maximum_qos     # that it may publish with, and is granted
    # Of PUBLISH's first byte: RETAIN, QoS 1 or QoS 2 if they are not available; MOUNTED_IN, which is in every one's, and there if names are
    # mounted or the ACL decides by QoS.
    cdef uint8_t publish_bits_refused
    cdef uint16_t made_anew               # that, and 1 for who has a mount point; 0: a PUBLISH may go out as it came
    cdef readonly uint8_t parked_first    # first byte of the parked packet's fixed header
    cdef readonly uint8_t version         # 0 before CONNECT; 3, 4 or 5
    cdef public bint unexplained          # 5.0: Request Problem Information is 0 [MQTT-3.1.2-29]
    cdef uint8_t state                    # ProtocolState
    cdef uint16_t pauses                  # bits of Pause
    cdef bint dirty                       # in turn.dirty
    cdef bint later                       # in turn.later
    cdef int64_t gathered_ms              # since when slices of what it reads are kept back; 0: none is
    cdef Outgoing waits_for               # whose queue has no room for what the client publishes; None: it is not pushed back
    cdef int64_t waits_until_ms
    cdef bint route_allowed               # the ACL's answer for `route`
    cdef bint decides_by_qos              # ... which depends on QoS and RETAIN
    cdef uint8_t route_kind               # QoS and RETAIN that it was asked about
    cdef uint32_t route_rights            # turn.rights when it was
    cdef dict explanations                # packet identifier of a refused PUBLISH -> why; None: its client is told nothing

    # Parse and act on every whole packet in data[0:length]; returns how many bytes were used up. ClientError: theirs.
    cdef Py_ssize_t receive(self, uint8_t* data, size_t length) except -1
    cdef int on_publish(self, Session session, Message message, const uint8_t* frame, uint32_t header_length,
                        uint32_t body_length) except -1
    cdef int find_route(self, Message message) except -1      # 1: the ACL has to be asked first, and it is parked
    cdef int explain(self, Message message, uint16_t packet_identifier) except -1
    cdef int acknowledge_explained(self, uint8_t packet_type, uint16_t packet_identifier, uint8_t reason) except -1
    cdef int ask_acl(self, object acl, uint64_t salt) except -1
    cdef int before_route(self, Message message) except -1
    cdef int check_length(self, uint8_t packet_type, uint32_t packet_length) except -1
    # What the router did not acknowledge (PublishVerdict).
    cdef int not_acknowledged(self, PublishVerdict verdict, uint16_t packet_identifier) except -1
    cdef int on_acknowledgement(self, Session session, uint8_t first, const uint8_t* body, uint32_t length) except -1
    cdef int cut_off(self) except -1
    cdef int park(self, uint8_t first, const uint8_t* body, uint32_t length) except -1
    cdef int keep_parked(self, uint8_t first, bytes body) except -1
    cdef bint is_request(self, Message message) except -1
    cdef int begin_request(self, Message message, uint8_t first, uint16_t packet_identifier) except -1
    cdef int touch(self) except -1                    # there is output
    cdef int flush(self) except -1                    # send what is pending if that is possible here
    cdef int flush_full(self) except -1
    cdef int append(self, bytes data) except -1       # to the output, whatever it is
    cdef int write(self, bytes data) except -1        # whole packets, counted
    cdef uint32_t put_together(self, Message message, uint16_t packet_identifier, uint8_t qos, bint retain, bint dup,
                               const uint8_t* ids, uint32_t ids_length) except? 0
    cdef int take_up(self) except -1
    cdef int wait_for_room(self, Outgoing full) except -1
    cdef bint still_waits(self) noexcept
    cdef bint has_settled(self) noexcept              # fewer of its messages than its Receive Maximum wait
    cdef bint end_pauses(self) noexcept               # those whose reason has gone; returns whether it is parsed on
