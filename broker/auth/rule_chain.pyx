"""The ACL of rule sets, and of others, asked one after the other: what a client's token says, then each member.

Others than rule sets know an answer, or have to be asked for it first, which takes its time: missing() says so. What is
not known is refused.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t

from broker.auth.coverage cimport ALL, NOTHING, SOMETHING, left_of
from broker.auth.rule_set cimport ALLOWS, ANY_QOS, ANY_RETAIN, Asker, Entry, RuleSet, ask_for

from broker.auth import rule as actions
from broker.auth.acl import Decision, Grant
from broker.auth.token_rules import TokenRules

cdef enum:
    PUBLISH = 1                  # as in broker.auth.rule
    READ = 2
    SHARE = 4
    REPLAY = 8
    UNPACKED_MAX = 1024          # clients whose rules are kept as they were made of what the log has
    ANY = -1                     # in place of a QoS or RETAIN
    AS_GRANTED = -2              # in place of RETAIN: others than rule sets have granted it before
    IGNORED = -1                 # answers of others, as broker.auth.http_authorizer has them, beside 1 and 0
    UNKNOWN = -2

assert (PUBLISH, READ, SHARE, REPLAY) == (actions.PUBLISH, actions.READ, actions.SHARE, actions.REPLAY)

NO_AUTHORIZERS = "there are no authorizers"

cdef object REFUSED = Grant.REFUSED
cdef object NARROWED = Grant.NARROWED
cdef object WHOLE = Grant.WHOLE


@cython.final
cdef class RuleChain:
    """An Acl: the first rule of the first rule set that fits decides; where none does, the answer is no.

    Rules that a client's principal brings, of its token, come before all others.

    Args:
        members: rule sets and others, in their order.
        is_strict: who may not be sent all that a topic filter matches is not granted it.
        is_open: where no member is asked, who brings no rules may do everything.
        listeners: by number of a listener, the numbers of the members that are asked about its clients, and whether
            these are strict; None, or a number beyond: all are asked.
        decides_by_qos: rules may ask for the QoS or RETAIN of a PUBLISH, now, after a reload or in a principal.
    """

    def __init__(self, members: object, *, is_strict: bool = False, is_open: bool = False,
                 decides_by_qos: bool = False, listeners: object = ()) -> None:
        self.is_strict = is_strict
        self.is_open = is_open
        self.decides_by_qos = decides_by_qos
        self.changed = None
        self.shadow = None
        self.unpacked = {}
        self.listeners = tuple(listeners)
        self.use(members)

    def use(self, members: object) -> None:
        """From now on, decide by these; say that answers may be others."""
        members = tuple(members)
        rule_sets = tuple([member for member in members if isinstance(member, RuleSet)])
        for rule_set in rule_sets:
            assert self.decides_by_qos or not rule_set.looks_at_publish, rule_set.source
        self.waits = len(rule_sets) < len(members)
        assert self.decides_by_qos or not self.waits, members
        self.members, self.rule_sets = members, rule_sets
        self.by_listener = tuple(
            [members if one is None else tuple([members[number] for number in one[0]]) for one in self.listeners])
        if self.changed is not None:
            self.changed()

    def may_publish(self, principal not None, bytes topic_name not None, int qos, bint retain) -> bool:
        """Return whether a client may publish to a topic name."""
        cdef bint allowed = self.decided(principal, PUBLISH, topic_name, qos, retain) > 0
        if self.shadow is not None:
            self.shadow.published(principal, topic_name, qos, bool(retain), bool(allowed))
        return allowed

    def may_leave_will(self, principal not None, bytes topic_name not None, int qos, bint retain) -> bool:
        """Return whether a will may be published, about which others than rule sets were asked at its CONNECT."""
        cdef bint allowed = self.decided(principal, PUBLISH, topic_name, qos, AS_GRANTED - retain) > 0
        if self.shadow is not None:
            self.shadow.published(principal, topic_name, qos, bool(retain), bool(allowed))
        return allowed

    def may_read(self, principal not None, bytes topic_name not None) -> bool:
        """Return whether a client may be sent what is published to a topic name, whatever QoS it has asked for."""
        cdef bint allowed = self.decided(principal, READ, topic_name, ANY, ANY) > 0
        if self.shadow is not None:
            self.shadow.read(principal, topic_name, bool(allowed))
        return allowed

    def may_subscribe(self, principal not None, bytes topic_filter not None, int qos) -> Grant:
        """Return what a client is granted of a topic filter, which is without $share and $replay."""
        granted = self.granted(principal, self.left(principal, READ, topic_filter, qos, None))
        if self.shadow is not None:
            self.shadow.subscribed(principal, topic_filter, qos, granted)
        return granted

    def may_use(self, principal not None, bytes topic_filter not None) -> bool:
        """Return whether a client may use a shared subscription or a replay at all, whose topic filter this is.

        Asked beside may_subscribe(), which is about the topic filter in it.
        """
        cdef list parts = topic_filter.split(b"/", 2)
        cdef bint allowed
        if len(parts) < 3 or parts[0] not in (b"$share", b"$replay"):
            return True
        allowed = self.may_besides(principal, SHARE if parts[0] == b"$share" else REPLAY, parts[2])
        if self.shadow is not None:
            self.shadow.used(principal, topic_filter, bool(allowed))
        return allowed

    cdef tuple asked(self, object principal):
        """Return the members that are asked about a client: by which listener it came says which."""
        cdef Py_ssize_t listener
        if not self.by_listener:
            return self.members
        listener = principal.listener
        return <tuple>self.by_listener[listener] if 0 <= listener < len(self.by_listener) else self.members

    cdef bint strict(self, object principal) except -1:
        """Return whether a client is granted a topic filter as a whole or not at all."""
        cdef Py_ssize_t listener
        if self.listeners:
            listener = principal.listener
            if 0 <= listener < len(self.listeners) and self.listeners[listener] is not None:
                return self.listeners[listener][1]
        return self.is_strict

    cdef int decided(self, object principal, int action, bytes topic_name, int qos, int retain) except -2:
        """Return 1 or 0 as a member decides about a topic name, -1: none does.

        Args:
            qos, retain: of a PUBLISH; ANY. With AS_GRANTED, or 1 below that for RETAIN 1, others than rule sets are
                not asked, and allow it.
        """
        cdef Asker asker
        cdef const Entry* entry
        cdef RuleSet rule_set
        cdef RuleSet own = self.rules_of(principal)
        cdef tuple asked = self.asked(principal)
        cdef uint8_t qos_bits = ANY_QOS if qos == ANY else <uint8_t>(1 << qos)
        cdef uint8_t retain_bits = 0 if retain == ANY else 0x08 if retain == 0 or retain == AS_GRANTED else 0x10
        cdef int answer
        ask_for(principal, &asker)
        if own is not None:
            entry = own.find(
                principal, &asker, action, <const uint8_t*>PyBytes_AS_STRING(topic_name), PyBytes_GET_SIZE(topic_name),
                qos_bits, retain_bits)
            if entry != NULL:
                return entry.flags & ALLOWS != 0
        elif self.is_open and not asked:
            return 1
        for member in asked:
            if not isinstance(member, RuleSet):
                if retain <= AS_GRANTED:
                    return 1
                if action == PUBLISH:
                    answer = member.known(principal, "publish", topic_name, qos, retain == 1)
                else:
                    answer = 1 if member.may_read(principal, topic_name) else IGNORED
                if answer != IGNORED:
                    return answer == 1
                continue
            rule_set = <RuleSet>member
            entry = rule_set.find(
                principal, &asker, action, <const uint8_t*>PyBytes_AS_STRING(topic_name), PyBytes_GET_SIZE(topic_name),
                qos_bits, retain_bits)
            if entry != NULL:
                return entry.flags & ALLOWS != 0
        return -1

    def missing(self, principal not None, str action not None, bytes name not None, int qos,
                bint retain) -> tuple[object, bool] | None:
        """Return the member that has to be asked before a wish can be decided on; None: all that counts is known.

        With it comes whether it has been asked just now, and does not answer.

        Args:
            action: publish, read or subscribe.
            name: a topic name; of subscribe, a topic filter without $share and $replay.
        """
        cdef Asker asker
        cdef RuleSet own
        cdef list found = []
        cdef int answer
        cdef int qos_bits = 1 << qos, retain_bits = 0x10 if retain else 0x08
        if not self.waits or action == "read":
            return None
        own = self.rules_of(principal)
        ask_for(principal, &asker)
        for member in self.asked(principal) if own is None else (own, *self.asked(principal)):
            if isinstance(member, RuleSet):
                if action == "subscribe":
                    (<RuleSet>member).gather(principal, &asker, READ, name, <uint8_t>qos_bits, found)
                elif (<RuleSet>member).find(
                        principal, &asker, PUBLISH, <const uint8_t*>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name),
                        <uint8_t>qos_bits, <uint8_t>retain_bits) != NULL:
                    return None
                continue
            if action == "subscribe" and not leaves_open(name, found):
                return None
            answer = member.known(principal, action, name, qos, retain)
            if answer == 0 or answer == 1:
                return None
            if answer != IGNORED:
                return member, answer != UNKNOWN
        return None

    cdef bint is_free(self, object principal) except -1:
        """Return whether a client may do everything, because no member is asked about it."""
        return self.is_open and principal.rules is None and not self.asked(principal)

    cdef RuleSet rules_of(self, object principal):
        """Return the rules that a client has brought; None: it has none. Raises for what is no rules."""
        cdef object rules = principal.rules
        if rules is None:
            return None
        if not isinstance(rules, TokenRules):
            # As the log has kept them; its client has not been back since the start.
            rules = self.unpacked.get(id(rules), (None, None))
            if rules[0] is not principal.rules:
                if len(self.unpacked) >= UNPACKED_MAX:
                    self.unpacked.clear()
                rules = self.unpacked[id(principal.rules)] = principal.rules, TokenRules(principal.rules)
            rules = rules[1]
        return <RuleSet?>rules.rule_set

    cdef list gathered(self, object principal, const Asker* asker, int action, bytes topic_filter, int qos_bits,
                       int qos):
        """Return the rules about a client and an action, in their order; see RuleSet.gather().

        An answer of others is a rule about all of the topic filter. SHARE and REPLAY they leave to who decides on READ.
        """
        cdef list found = []
        cdef int answer
        cdef RuleSet own = self.rules_of(principal)
        if own is not None:
            own.gather(principal, asker, action, topic_filter, <uint8_t>qos_bits, found)
        for member in self.asked(principal):
            if isinstance(member, RuleSet):
                (<RuleSet>member).gather(principal, asker, action, topic_filter, <uint8_t>qos_bits, found)
                continue
            answer = 1 if qos == ANY else member.known(principal, "subscribe", topic_filter, qos, False)
            if answer != IGNORED:
                found.append((None, answer == 1, False, member, answer))
        return found

    cdef int left(self, object principal, int action, bytes topic_filter, int qos, list deciding) except -1:
        """Return what the rules leave of a topic filter; add the rules that decide about parts of it to a list.

        What a client is sent is judged whatever QoS it has asked for. So a topic that it may have with some QoS only
        comes where a topic filter is left as a whole for that QoS, and counts as refused where it is not. What others
        than rule sets allow, they allow of the topic filter as a whole, and cannot be asked about its topics: so that is
        not left in part.
        """
        cdef Asker asker
        cdef list found
        cdef Py_ssize_t allowing = -1, refusing = -1
        cdef int answer
        if self.is_free(principal):
            return ALL
        ask_for(principal, &asker)
        found = self.gathered(principal, &asker, action, topic_filter, 1 << qos, qos)
        answer = left_by(topic_filter, found, &allowing, &refusing)
        if answer != ALL and self.looks_at_subscribe(principal):
            found = self.gathered(principal, &asker, action, topic_filter, ANY_QOS, qos)
            answer = left_by(topic_filter, found, &allowing, &refusing)
        if answer == SOMETHING and self.waits and is_granted_as_a_whole(topic_filter, found):
            answer = NOTHING
        if deciding is not None:
            if answer != NOTHING and allowing >= 0:
                deciding.append(found[allowing])
            if answer != ALL:
                deciding.append(found[refusing] if 0 <= refusing < len(found) else None)
        return answer

    cdef bint looks_at_subscribe(self, object principal) except -1:
        """Return whether a rule asks for the QoS of a SUBSCRIBE."""
        cdef RuleSet own = self.rules_of(principal)
        if own is not None and own.looks_at_subscribe:
            return True
        for member in self.asked(principal):
            if isinstance(member, RuleSet) and (<RuleSet>member).looks_at_subscribe:
                return True
        return False

    cdef bint may_besides(self, object principal, int action, bytes topic_filter) except -1:
        """Return whether a client has a right that stands beside READ, for all of a topic filter that it may read."""
        cdef Asker asker
        cdef Py_ssize_t allowing, refusing
        cdef list found
        ask_for(principal, &asker)
        found = self.gathered(principal, &asker, action, topic_filter, ANY_QOS, ANY)
        if found == self.gathered(principal, &asker, READ, topic_filter, ANY_QOS, ANY):
            return True          # the same rules give both, as those of mosquitto do
        return left_by(topic_filter, found, &allowing, &refusing) == ALL

    def explain(self, principal not None, str action not None, bytes name not None, int qos, bint retain) -> Decision:
        """Return what is decided, and the rules that do it.

        Args:
            action: publish, read or subscribe.
            name: a topic name; of subscribe, a topic filter without $share and $replay.
            qos: of a PUBLISH or SUBSCRIBE.
            retain: of a PUBLISH.
        """
        cdef list deciding = []
        cdef int answer
        if action == "subscribe" and name.startswith((b"$share/", b"$replay/")):
            # It is the use of it that is asked about.
            used = self.may_use(principal, name)
            return Decision(WHOLE if used else REFUSED, "" if used else f"no right to {name[1:].split(b'/')[0].decode()}")
        if action == "subscribe":
            answer = self.left(principal, READ, name, qos, deciding)
            by = ", ".join(self.described(one, principal) for one in deciding)
            if not deciding:
                by = NO_AUTHORIZERS
            if answer == SOMETHING and self.strict(principal):
                by += ", and it is granted as a whole or not at all"
            return Decision(self.granted(principal, answer), by)
        if self.is_free(principal):
            return Decision(WHOLE, NO_AUTHORIZERS)
        rule = self.deciding(principal, action, name, qos, retain)
        allowed = rule is not None and rule[0].allows(rule[1])
        return Decision(WHOLE if allowed else REFUSED, self.described(rule, principal))

    def deciding(self, principal not None, str action not None, bytes topic_name not None, int qos,
                 bint retain) -> tuple[object, int] | None:
        """Return the rule set and the number of the rule that decides about a topic name, or another member and its
        answer; None: none does.
        """
        cdef Asker asker
        cdef const Entry* entry
        cdef RuleSet own = self.rules_of(principal)
        cdef tuple asked = self.asked(principal) if own is None else (own, *self.asked(principal))
        cdef int qos_bits = 1 << qos, retain_bits = 0x10 if retain else 0x08
        cdef int what = PUBLISH, answer
        assert action in ("publish", "read"), action
        if action == "read":
            what, qos_bits, retain_bits = READ, ANY_QOS, 0
        ask_for(principal, &asker)
        for member in asked:
            if not isinstance(member, RuleSet):
                if what == PUBLISH:
                    answer = member.known(principal, "publish", topic_name, qos, retain)
                else:
                    answer = 1 if member.may_read(principal, topic_name) else IGNORED
                if answer != IGNORED:
                    return member, answer
                continue
            entry = (<RuleSet>member).find(
                principal, &asker, what, <const uint8_t*>PyBytes_AS_STRING(topic_name), PyBytes_GET_SIZE(topic_name),
                <uint8_t>qos_bits, <uint8_t>retain_bits)
            if entry != NULL:
                return member, entry - (<RuleSet>member).entries
        return None

    def about(self, principal not None, int action, bytes topic_filter not None) -> list:
        """Return (topic filter or None: all, allows, is exact, rule set, number) of each rule about a client, in their order.

        Args:
            action: one of broker.auth.rule, or some.
            topic_filter: of a SUBSCRIBE, without $share and $replay.
        """
        cdef Asker asker
        ask_for(principal, &asker)
        return self.gathered(principal, &asker, action, topic_filter, ANY_QOS, ANY)

    def described(self, rule, principal) -> str:
        """Return a rule about a client in words, (rule set, number) or what gathered() gave; None: none fits."""
        if rule is None:
            named = [] if self.rules_of(principal) is None else ["the client's own"]
            named += [str(one.source if isinstance(one, RuleSet) else one) for one in self.asked(principal)]
            return "no rule of " + ", ".join(named) if named else "there are no rules"
        *_, member, number = rule
        return member.described(number)

    cdef object granted(self, object principal, int answer):
        if answer == ALL:
            return WHOLE
        return NARROWED if answer == SOMETHING and not self.strict(principal) else REFUSED


cdef int left_by(bytes topic_filter, list found, Py_ssize_t* allowing, Py_ssize_t* refusing) except -1:
    """Return what rules leave of a topic filter, those about exactly it included; take out those that do not count."""
    cdef Py_ssize_t number = 0
    cdef int answer
    while number < len(found):
        if not (<tuple>found[number])[2]:
            number += 1
            continue
        allows = (<tuple>found[number])[1]
        answer = left_of(topic_filter, found[:number] + [(None, allows)], allowing, refusing)
        if allows and answer == ALL:
            return ALL
        if not allows:
            return ALL if answer == ALL else NOTHING
        # Something of it was refused before: topic by topic, what this rule says is never heard.
        del found[number]
    return left_of(topic_filter, found, allowing, refusing)


cdef bint leaves_open(bytes topic_filter, list found) except -1:
    """Return whether rules leave something of a topic filter undecided."""
    cdef Py_ssize_t allowing = -1, refusing = -1
    cdef list refused = [(rule[0], False, *rule[2:]) for rule in found]
    return left_by(topic_filter, refused + [(None, True, False)], &allowing, &refusing) != NOTHING


cdef bint is_granted_as_a_whole(bytes topic_filter, list found) except -1:
    """Return whether another member than a rule set allows what rules before it have left open of a topic filter."""
    cdef Py_ssize_t number
    for number in range(len(found)):
        if not isinstance((<tuple>found[number])[3], RuleSet):
            return (<tuple>found[number])[1] and leaves_open(topic_filter, found[:number])
    return False
