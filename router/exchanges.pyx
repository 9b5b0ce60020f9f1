"""The exchanges of packets that QoS 1 and 2 consist of (4.3), with the client of one session.

The verbs are in the .pxd; here is what most packets do not come to, and what waits for a record.
"""

from router.sessions.ledger cimport DROP_LOG_UNAVAILABLE, DROP_NOT_AUTHORIZED, DROP_REFUSED, DROP_RETAINED_FULL
from router.sessions.sink cimport NOT_AUTHORIZED, QUOTA_EXCEEDED, count_drop


cdef class Exchanges(Publishing):
    """The verbs of a client's PUBLISH and of its acknowledgements."""

    cdef PublishVerdict meet_known(self, Session session, Sink sink, Message message,
                                   Publication* publication) except? PUBLISH_UNLOGGED:
        cdef uint16_t packet_identifier = publication.packet_identifier
        cdef int known = session.incoming_state(packet_identifier)
        cdef bint is_new
        if message.qos == 1:
            is_new = session.incoming_doubtful(packet_identifier)
        else:
            is_new = known == 2 and session.incoming_is_new(packet_identifier, publication.dup, message)
        if is_new:
            # A log that was not synced has lost the PUBREL of the one before.
            self.release(session, packet_identifier)
            return PUBLISH_ROUTED
        if message.qos == 1:
            return PUBLISH_IDENTIFIER_IN_USE
        # The same message again [MQTT-4.3.3-10]: no second delivery; no answer before the first has settled. That one's
        # answer is for the connection that it came on, which may be another.
        if known == 2:
            sink.acknowledge(PUBREC, packet_identifier, 0)
        else:
            self.answer(session, sink, PUBREC, packet_identifier, 0, False)
        return PUBLISH_REPEATED

    cdef PublishVerdict refuse(self, Session session, Sink sink, Message message, Route route,
                               Publication* publication) except? PUBLISH_UNLOGGED:
        cdef int drop = publication.refusal
        cdef uint8_t reason
        if drop == NOT_REFUSED:
            if message.retain and not self.retaining.may_retain(message):
                drop = DROP_RETAINED_FULL
            elif not self.accepting and self.rests_on_record(session, message, route):
                drop = DROP_LOG_UNAVAILABLE
            else:
                return PUBLISH_ROUTED
        count_drop(self.ledger, sink, drop)
        if drop == DROP_LOG_UNAVAILABLE and message.qos and not sink.tells_refusals:
            return PUBLISH_UNLOGGED
        if self.ledger.refusals is not None:
            self.ledger.refusals.refused(session.client_identifier, message.topic_name, message.qos, drop)
        # PUBACK and PUBREC know no 0x95, Packet too large (tables 3-4 and 3-5).
        reason = NOT_AUTHORIZED if drop == DROP_NOT_AUTHORIZED else QUOTA_EXCEEDED
        if message.qos == 1:
            sink.acknowledge(PUBACK, publication.packet_identifier, reason)
        elif message.qos == 2:
            if not sink.tells_refusals:      # to its client it was taken
                session.incoming_add(publication.packet_identifier, True)
            sink.acknowledge(PUBREC, publication.packet_identifier, reason)
        return PUBLISH_REFUSED

    cdef PublishVerdict begin_request(self, Session session, Sink sink, Message message, uint16_t packet_identifier,
                                      bint dup) except? PUBLISH_UNLOGGED:
        cdef Publication publication
        cdef PublishVerdict verdict = PUBLISH_ROUTED
        publication.packet_identifier = packet_identifier
        publication.dup = dup
        if session.incoming_count and session.incoming_state(packet_identifier):
            verdict = self.meet_known(session, sink, message, &publication)
        if verdict == PUBLISH_ROUTED and session.incoming_count + session.waiting_answers >= session.incoming_max:
            return PUBLISH_TOO_MANY
        return verdict

    cdef int end_request(self, Session session, Sink sink, uint8_t qos, uint16_t packet_identifier,
                         uint8_t reason) except -1:
        if qos == 2 and (reason < REFUSALS or not sink.tells_refusals):
            session.incoming_add(packet_identifier, session.held_first == NULL)
        if qos:
            self.answer(session, sink, PUBACK if qos == 1 else PUBREC, packet_identifier, reason, False)
        return 0

    cdef int answer(self, Session session, Sink sink, uint8_t packet_type, uint16_t packet_identifier, uint8_t reason,
                    bint recorded) except -1:
        if self.effects.awaited_count or (session.held_first != NULL and packet_type != PUBREL):
            self.effects.hold_back(session, sink, packet_type, packet_identifier, reason, recorded)
        elif recorded or session.waiting_records:
            self.effects.acknowledge(session, sink, packet_type, packet_identifier, reason)
        else:
            sink.acknowledge(packet_type, packet_identifier, reason)
        return 0

    cdef int count_refused(self, Sink sink) noexcept:
        return count_drop(self.ledger, sink, DROP_REFUSED)
