"""The exchanges of packets that QoS 1 and 2 consist of (4.3), with the client of one session: a verb for each packet.

A verb decides all that follows from its packet: what is recorded, what leaves at once and what waits, and what is
answered. Its verdict is for the connection, which knows what that means in its version of MQTT.
"""

from libc.stdint cimport uint8_t, uint16_t
from router.core.message cimport Message
from router.matching.route_cache cimport Route
from router.publishing cimport NOT_REFUSED, Publication, Publishing
from router.sessions.outgoing cimport ANSWER_FREED, ANSWER_RELEASE, ANSWER_UNKNOWN, Answer
from router.sessions.session cimport Session
from router.sessions.sink cimport (
    NO_MATCHING_SUBSCRIBERS, PACKET_IDENTIFIER_NOT_FOUND, PUBACK, PUBCOMP, PUBREC, PUBREL, Sink,
)

cdef enum PublishVerdict:        # what became of a client's PUBLISH
    PUBLISH_ROUTED = 0           # its receivers have it, or are about to; it is acknowledged, or is going to be
    PUBLISH_REPEATED = 1         # a QoS 2 message that was routed before [MQTT-4.3.3-10]: acknowledged, or going to be
    PUBLISH_REFUSED = 2          # it goes nowhere, and is counted and acknowledged: 5.0 is told why
    PUBLISH_UNLOGGED = 3         # the same, but not acknowledged: a version that cannot be told why is to send it again
    PUBLISH_IDENTIFIER_IN_USE = 4    # QoS 1 under the packet identifier of a QoS 2 message: nothing was done
    PUBLISH_TOO_MANY = 5         # more messages than the Receive Maximum that the client was told: nothing was done

cdef enum:
    REFUSALS = 0x80              # reason codes from here on say that something failed


cdef class Exchanges(Publishing):
    # `sink` is the connection that the packet came on: what it is answered goes there, now or behind what waits before it,
    # or nowhere if the session has another one then. The verbs are inline, for they have one caller, and every message.

    # QoS 0 too. The message is borrowed; `route` is its topic's, fresh. What became of it is in `publication`, besides.
    cdef inline PublishVerdict on_publish(self, Session session, Sink sink, Message message, Route route,
                                          Publication* publication) except? PUBLISH_UNLOGGED:
        cdef PublishVerdict verdict = PUBLISH_ROUTED
        if message.qos:
            if session.incoming_count and session.incoming_state(publication.packet_identifier):
                verdict = self.meet_known(session, sink, message, publication)
                if verdict != PUBLISH_ROUTED:
                    return verdict
            # A QoS 2 message counts once, whether its PUBREC waits for a record or has left.
            if session.incoming_count + session.waiting_answers >= session.incoming_max:
                return PUBLISH_TOO_MANY
        if publication.refusal != NOT_REFUSED or message.retain or not self.accepting:
            verdict = self.refuse(session, sink, message, route, publication)
            if verdict != PUBLISH_ROUTED:
                return verdict
        if publication.can_wait:
            self.push_back(session, message, route, publication)
        publication.reached = self.publish(session, message, route, publication)
        if message.qos == 2:
            session.incoming_add(publication.packet_identifier, not publication.recorded and session.held_first == NULL)
        if message.qos:
            self.answer(session, sink, PUBACK if message.qos == 1 else PUBREC, publication.packet_identifier,
                        0 if publication.reached else NO_MATCHING_SUBSCRIBERS, publication.recorded)
        return PUBLISH_ROUTED

    cdef inline Answer on_puback(self, Session session, Sink sink, uint16_t packet_identifier,
                                 uint8_t reason) except? ANSWER_UNKNOWN:
        cdef Answer result = ANSWER_UNKNOWN
        if session.outgoing is not None:
            result = session.outgoing.on_puback(packet_identifier)
            if result == ANSWER_FREED:
                self.take_note(session, sink, PUBACK, packet_identifier, reason)
                if session.outgoing.waiting():
                    session.drain()
        return result

    cdef inline Answer on_pubrec(self, Session session, Sink sink, uint16_t packet_identifier,
                                 uint8_t reason) except? ANSWER_UNKNOWN:
        cdef Answer result = ANSWER_UNKNOWN
        if session.outgoing is not None:
            result = session.outgoing.on_pubrec(packet_identifier, reason >= REFUSALS)
        if result == ANSWER_RELEASE:
            self.take_note(session, sink, PUBREC, packet_identifier, reason)
            self.answer(session, sink, PUBREL, packet_identifier, 0, self.records_of(session))
        elif result == ANSWER_FREED:
            self.take_note(session, sink, PUBREC, packet_identifier, reason)
            if session.outgoing.waiting():
                session.drain()
        elif result == ANSWER_UNKNOWN and reason < REFUSALS:
            sink.acknowledge(PUBREL, packet_identifier, PACKET_IDENTIFIER_NOT_FOUND)
        return result

    cdef inline Answer on_pubcomp(self, Session session, Sink sink, uint16_t packet_identifier,
                                  uint8_t reason) except? ANSWER_UNKNOWN:
        cdef Answer result = ANSWER_UNKNOWN
        if session.outgoing is not None:
            result = session.outgoing.on_pubcomp(packet_identifier)
            if result == ANSWER_FREED:
                if self.records_of(session):
                    self.ledger.records.acknowledged(
                        self.ledger.now_us, session.client_identifier, PUBCOMP, packet_identifier, reason)
                if session.outgoing.waiting():
                    session.drain()
        return result

    # ANSWER_FREED, or ANSWER_UNKNOWN; there is a PUBCOMP for either [MQTT-4.3.3-11].
    cdef inline Answer on_pubrel(self, Session session, Sink sink, uint16_t packet_identifier) except? ANSWER_UNKNOWN:
        if session.incoming_state(packet_identifier) == 2:
            self.release(session, packet_identifier)
            self.answer(session, sink, PUBCOMP, packet_identifier, 0, self.records_of(session))
            return ANSWER_FREED
        sink.acknowledge(PUBCOMP, packet_identifier, PACKET_IDENTIFIER_NOT_FOUND)
        return ANSWER_UNKNOWN

    # A PUBLISH of QoS 1 or 2 that goes to no receiver, because it is for the broker itself. PUBLISH_ROUTED: it is a new one,
    # to be acknowledged by end_request() when it has been dealt with.
    cdef PublishVerdict begin_request(self, Session session, Sink sink, Message message, uint16_t packet_identifier,
                                      bint dup) except? PUBLISH_UNLOGGED
    cdef int end_request(self, Session session, Sink sink, uint8_t qos, uint16_t packet_identifier,
                         uint8_t reason) except -1

    # A QoS 2 message of the client's is over: what comes under its packet identifier is a new one [MQTT-4.3.3-12].
    cdef inline int release(self, Session session, uint16_t packet_identifier) except -1:
        session.incoming_remove(packet_identifier)
        if self.records_of(session):
            self.ledger.records.released(self.ledger.now_us, session.client_identifier, packet_identifier)
        return 0

    # A client's acknowledgement fits a delivery: what is remembered of it.
    cdef inline int take_note(self, Session session, Sink sink, uint8_t packet_type, uint16_t packet_identifier,
                              uint8_t reason) except -1:
        if self.records_of(session):
            self.ledger.records.acknowledged(
                self.ledger.now_us, session.client_identifier, packet_type, packet_identifier, reason)
        if reason >= REFUSALS:
            self.count_refused(sink)
        return 0

    # A PUBLISH under the packet identifier of a QoS 2 message. PUBLISH_ROUTED: that one is over, this is a new one.
    cdef PublishVerdict meet_known(self, Session session, Sink sink, Message message,
                                   Publication* publication) except? PUBLISH_UNLOGGED
    # PUBLISH_ROUTED: there is nothing against it.
    cdef PublishVerdict refuse(self, Session session, Sink sink, Message message, Route route,
                               Publication* publication) except? PUBLISH_UNLOGGED
    # Now, or when what the answer rests on is durable, in its place behind what waits [MQTT-4.6.0-2]. `recorded`: that is
    # the newest record.
    cdef int answer(self, Session session, Sink sink, uint8_t packet_type, uint16_t packet_identifier, uint8_t reason,
                    bint recorded) except -1
    cdef int count_refused(self, Sink sink) noexcept
