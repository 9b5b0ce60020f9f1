"""The ACL of rule sets, asked one after the other: what a client's token says, then each file."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t

from broker.auth.coverage cimport ALL, NOTHING, SOMETHING, left_of
from broker.auth.rule_set cimport ALLOWS, ANY_QOS, ANY_RETAIN, Asker, Entry, RuleSet, ask_for

from broker.auth import rule as actions
from broker.auth.acl import Decision, Grant

cdef enum:
    PUBLISH = 1                  # as in broker.auth.rule
    READ = 2
    SHARE = 4
    REPLAY = 8

assert (PUBLISH, READ, SHARE, REPLAY) == (actions.PUBLISH, actions.READ, actions.SHARE, actions.REPLAY)

cdef object REFUSED = Grant.REFUSED
cdef object NARROWED = Grant.NARROWED
cdef object WHOLE = Grant.WHOLE


@cython.final
cdef class RuleChain:
    """An Acl: the first rule of the first rule set that fits decides; where none does, the answer is no.

    Rules that a client's principal brings, of its token, come before all others.

    Args:
        rule_sets: in their order.
        is_strict: who may not be sent all that a topic filter matches is not granted it.
        decides_by_qos: rules may ask for the QoS or RETAIN of a PUBLISH, now, after a reload or in a principal.
    """

    def __init__(self, rule_sets: object, *, is_strict: bool = False, decides_by_qos: bool = False) -> None:
        self.rule_sets = tuple(rule_sets)
        self.is_strict = is_strict
        self.decides_by_qos = decides_by_qos
        self.changed = None
        for rule_set in self.rule_sets:
            assert isinstance(rule_set, RuleSet), rule_set
            assert decides_by_qos or not rule_set.looks_at_publish, rule_set.source

    def use(self, rule_sets: object) -> None:
        """From now on, decide by these; say that answers may be others."""
        rule_sets = tuple(rule_sets)
        for rule_set in rule_sets:
            assert isinstance(rule_set, RuleSet), rule_set
            assert self.decides_by_qos or not rule_set.looks_at_publish, rule_set.source
        self.rule_sets = rule_sets
        if self.changed is not None:
            self.changed()

    def may_publish(self, principal not None, bytes topic_name not None, int qos, bint retain) -> bool:
        """Return whether a client may publish to a topic name."""
        return self.decided(principal, PUBLISH, topic_name, 1 << qos, 0x10 if retain else 0x08) > 0

    def may_read(self, principal not None, bytes topic_name not None) -> bool:
        """Return whether a client may be sent what is published to a topic name, whatever QoS it has asked for."""
        return self.decided(principal, READ, topic_name, ANY_QOS, 0) > 0

    def may_subscribe(self, principal not None, bytes topic_filter not None, int qos) -> Grant:
        """Return what a client is granted of a topic filter, which is without $share and $replay."""
        return self.granted(self.left(principal, READ, topic_filter, qos, None))

    def may_share(self, principal not None, bytes topic_filter not None, int qos) -> bool:
        """Return whether a client may subscribe to a topic filter by $share, if it may subscribe to it."""
        return self.may_besides(principal, SHARE, topic_filter, qos)

    def may_replay(self, principal not None, bytes topic_filter not None, int qos) -> bool:
        """Return whether a client may ask for the stored messages of a topic filter, if it may subscribe to it."""
        return self.may_besides(principal, REPLAY, topic_filter, qos)

    cdef int decided(self, object principal, int action, bytes topic_name, int qos_bits, int retain_bits) except -2:
        """Return 1 or 0 as a rule decides about a topic name, -1: none does."""
        cdef Asker asker
        cdef const Entry* entry
        cdef RuleSet rule_set
        cdef object rules = principal.rules
        ask_for(principal, &asker)
        if rules is not None:
            entry = (<RuleSet?>rules.rule_set).find(
                principal, &asker, action, <const uint8_t*>PyBytes_AS_STRING(topic_name), PyBytes_GET_SIZE(topic_name),
                <uint8_t>qos_bits, <uint8_t>retain_bits)
            if entry != NULL:
                return entry.flags & ALLOWS != 0
        for rule_set in self.rule_sets:
            entry = rule_set.find(
                principal, &asker, action, <const uint8_t*>PyBytes_AS_STRING(topic_name), PyBytes_GET_SIZE(topic_name),
                <uint8_t>qos_bits, <uint8_t>retain_bits)
            if entry != NULL:
                return entry.flags & ALLOWS != 0
        return -1

    cdef list gathered(self, object principal, const Asker* asker, int action, bytes topic_filter, int qos_bits):
        """Return the rules about a client and an action, in their order; see RuleSet.gather()."""
        cdef RuleSet rule_set
        cdef list found = []
        cdef object rules = principal.rules
        if rules is not None:
            (<RuleSet?>rules.rule_set).gather(principal, asker, action, topic_filter, <uint8_t>qos_bits, found)
        for rule_set in self.rule_sets:
            rule_set.gather(principal, asker, action, topic_filter, <uint8_t>qos_bits, found)
        return found

    cdef int left(self, object principal, int action, bytes topic_filter, int qos, list deciding) except -1:
        """Return what the rules leave of a topic filter; add the rules that decide about parts of it to a list.

        What a client is sent is judged whatever QoS it has asked for. So a topic that it may have with some QoS only
        comes where a topic filter is left as a whole for that QoS, and counts as refused where it is not.
        """
        cdef Asker asker
        cdef list found
        cdef Py_ssize_t allowing = -1, refusing = -1
        cdef int answer
        ask_for(principal, &asker)
        found = self.gathered(principal, &asker, action, topic_filter, 1 << qos)
        answer = left_by(topic_filter, found, &allowing, &refusing)
        if answer != ALL and self.looks_at_subscribe(principal):
            found = self.gathered(principal, &asker, action, topic_filter, ANY_QOS)
            answer = left_by(topic_filter, found, &allowing, &refusing)
        if deciding is not None:
            if answer != NOTHING and allowing >= 0:
                deciding.append(found[allowing])
            if answer != ALL:
                deciding.append(found[refusing] if 0 <= refusing < len(found) else None)
        return answer

    cdef bint looks_at_subscribe(self, object principal) except -1:
        """Return whether a rule asks for the QoS of a SUBSCRIBE."""
        cdef RuleSet rule_set
        cdef object rules = principal.rules
        if rules is not None and (<RuleSet?>rules.rule_set).looks_at_subscribe:
            return True
        for rule_set in self.rule_sets:
            if rule_set.looks_at_subscribe:
                return True
        return False

    cdef bint may_besides(self, object principal, int action, bytes topic_filter, int qos) except -1:
        """Return whether a client has a right that stands beside READ, for all of a topic filter that it may read."""
        cdef Asker asker
        cdef Py_ssize_t allowing, refusing
        cdef list found
        ask_for(principal, &asker)
        found = self.gathered(principal, &asker, action, topic_filter, 1 << qos)
        if found == self.gathered(principal, &asker, READ, topic_filter, 1 << qos):
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
        if action == "subscribe":
            answer = self.left(principal, READ, name, qos, deciding)
            by = ", ".join(self.described(one) for one in deciding)
            if answer == SOMETHING and self.is_strict:
                by += ", and it is granted as a whole or not at all"
            return Decision(self.granted(answer), by)
        rule = self.deciding(principal, action, name, qos, retain)
        allowed = rule is not None and rule[0].allows(rule[1])
        return Decision(WHOLE if allowed else REFUSED, self.described(rule))

    def deciding(self, principal not None, str action not None, bytes topic_name not None, int qos,
                 bint retain) -> tuple[RuleSet, int] | None:
        """Return the rule set and the number of the rule that decides about a topic name; None: none does."""
        cdef Asker asker
        cdef const Entry* entry
        cdef RuleSet rule_set
        cdef object rules = principal.rules
        cdef tuple rule_sets = self.rule_sets if rules is None else (rules.rule_set, *self.rule_sets)
        cdef int qos_bits = 1 << qos, retain_bits = 0x10 if retain else 0x08
        cdef int what = PUBLISH
        assert action in ("publish", "read"), action
        if action == "read":
            what, qos_bits, retain_bits = READ, ANY_QOS, 0
        ask_for(principal, &asker)
        for rule_set in rule_sets:
            entry = rule_set.find(
                principal, &asker, what, <const uint8_t*>PyBytes_AS_STRING(topic_name), PyBytes_GET_SIZE(topic_name),
                <uint8_t>qos_bits, <uint8_t>retain_bits)
            if entry != NULL:
                return rule_set, entry - rule_set.entries
        return None

    def described(self, rule) -> str:
        """Return a rule in words, (rule set, number) or what gathered() gave; None: none fits."""
        if rule is None:
            if not self.rule_sets:
                return "there are no rules"
            return "no rule of " + ", ".join(str(rule_set.source) for rule_set in self.rule_sets)
        *_, rule_set, number = rule
        return rule_set.described(number)

    cdef object granted(self, int answer):
        if answer == ALL:
            return WHOLE
        return NARROWED if answer == SOMETHING and not self.is_strict else REFUSED


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
