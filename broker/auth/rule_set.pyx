"""The rules of one file, or of one token, compact and compiled."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_AsStringAndSize, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy
from posix.unistd cimport usleep
from router.matching.topic_names cimport filter_matches
from router.matching.trie_levels cimport hash_level

from broker.auth.rule import CLIENT_IDENTIFIER, USER_NAME, Holders, Rule

cdef enum:
    IS_TEMPLATE = 0x02           # what the client has is put into its topic filter
    IS_EXACT = 0x04              # it is about a SUBSCRIBE to its topic filter, which has wildcards
    IS_EVERY = 0x08              # it is about every topic
    IS_DANGEROUS = 0x10          # it is about dangerous clients
    SPECIAL = IS_TEMPLATE | IS_EXACT | IS_EVERY | IS_DANGEROUS
    USER_MARK = 0xFE             # USER_NAME in a topic filter
    IDENTIFIER_MARK = 0xFF       # CLIENT_IDENTIFIER
    CONDITIONS_MAX = 0xFFFF
    RULES_AT_ONCE = 256          # some 1 ms

cdef uint64_t SEED = 0x6A09E667F3BCC909          # operators choose the names in the table


cdef int ask_for(object principal, Asker* asker) except -1:
    cdef object user_name = principal.user_name
    cdef char* identifier
    PyBytes_AsStringAndSize(principal.client_identifier, &identifier, &asker.identifier_length)
    asker.identifier = <const uint8_t*>identifier
    asker.user = NULL
    asker.user_length = 0
    if user_name:                # an empty one is none, as mosquitto has it
        # The text keeps its UTF-8.
        asker.user = <const uint8_t*>PyUnicode_AsUTF8AndSize(user_name, &asker.user_length)
    asker.is_dangerous = False
    asker.user_fits = look_at(asker.user, asker.user_length, &asker.is_dangerous)
    asker.identifier_fits = look_at(asker.identifier, asker.identifier_length, &asker.is_dangerous)
    return 0


cdef bint look_at(const uint8_t* text, Py_ssize_t length, bint* is_dangerous) noexcept nogil:
    """Return whether a text may stand in a rule's topic filter; say whether there is a wildcard in it."""
    cdef Py_ssize_t at
    cdef bint has_separator = False
    for at in range(length):
        if text[at] == 0x2B or text[at] == 0x23:
            is_dangerous[0] = True
            return False
        if text[at] == 0x2F:
            has_separator = True
    return length > 0 and not has_separator


cdef bint template_matches(const uint8_t* text, Py_ssize_t length, const Asker* asker, const uint8_t* topic,
                           Py_ssize_t topic_length) noexcept nogil:
    """Return whether a rule's topic filter matches a topic name, with what a client has put into it."""
    cdef Py_ssize_t at = 0, here = 0, size
    cdef const uint8_t* value
    if topic[0] == 0x24 and (text[0] == 0x2B or text[0] == 0x23):
        return False                                             # [MQTT-4.7.2-1]
    while at < length:
        if text[at] == IDENTIFIER_MARK or text[at] == USER_MARK:
            value = asker.identifier if text[at] == IDENTIFIER_MARK else asker.user
            size = asker.identifier_length if text[at] == IDENTIFIER_MARK else asker.user_length
            if topic_length - here < size or memcmp(topic + here, value, size) != 0:
                return False
            here += size
            at += 1
        elif text[at] == 0x23:
            return True
        elif text[at] == 0x2B:
            while here < topic_length and topic[here] != 0x2F:
                here += 1
            at += 1
        elif here == topic_length:
            # "sport/#" also matches "sport" (section 4.7.1.2).
            return length - at == 2 and text[at] == 0x2F and text[at + 1] == 0x23
        elif text[at] != topic[here]:
            return False
        else:
            at += 1
            here += 1
    return here == topic_length


@cython.final
cdef class RuleSet:
    """Rules, of which the first that fits decides; users' own are found by their name.

    Args:
        rules: `Rule`s in their order.
        source: what they come from; it says in words what a rule is.

    Memory for each user: 23 bytes, the name, and for each rule 24 and the topic filter, if no other rule has the same.
    Cost of a decision: some 50 ns, and 5 to 10 for each rule of the user and each of everybody's.
    """

    def __cinit__(self):
        self.entries = NULL
        self.users = NULL
        self.slots = NULL
        self.texts = NULL

    def __init__(self, rules, source: object = None):
        cdef dict of_users = {}
        cdef list nameless = [], common = []
        cdef dict offsets = {}
        cdef bytearray texts = bytearray()
        cdef dict conditions = {}
        cdef uint32_t order = 0, at = 0, number = 0
        cdef uint32_t slots
        assert self.entries == NULL, "made once"
        self.source = source
        for rule in rules:
            if rule.holder is Holders.EVERYBODY:
                common.append((order, rule))
            elif rule.holder is Holders.NO_NAME:
                nameless.append((order, rule))
            else:
                of_users.setdefault(rule.holder, []).append((order, rule))
            order += 1
        self.entry_count = order
        self.user_count = <uint32_t>len(of_users)
        self.entries = <Entry*>malloc(max(1, order) * sizeof(Entry))
        self.users = <User*>malloc(max(1, self.user_count) * sizeof(User))
        slots = 2
        while slots < 2 * self.user_count:
            slots *= 2
        self.slots = <uint32_t*>calloc(slots, sizeof(uint32_t))
        if self.entries == NULL or self.users == NULL or self.slots == NULL:
            raise MemoryError()
        self.slot_mask = slots - 1
        for name, held in of_users.items():
            self.users[number].name = text_at(texts, offsets, name.encode())
            self.users[number].name_length = <uint32_t>len(name.encode())
            self.users[number].first = at
            self.users[number].count = <uint32_t>len(held)
            self.add_slot(number, name.encode())
            number += 1
            at = self.fill(at, held, texts, offsets, conditions)
        self.nameless = at
        at = self.fill(at, nameless, texts, offsets, conditions)
        self.common = at
        at = self.fill(at, common, texts, offsets, conditions)
        assert at == self.entry_count, at
        assert len(conditions) <= CONDITIONS_MAX, len(conditions)
        self.conditions = tuple(conditions)
        self.text_bytes = <uint32_t>len(texts)
        self.texts = <uint8_t*>malloc(max(1, self.text_bytes))
        if self.texts == NULL:
            raise MemoryError()
        memcpy(self.texts, PyBytes_AS_STRING(bytes(texts)), self.text_bytes)

    def __dealloc__(self):
        free(self.entries)
        free(self.users)
        free(self.slots)
        free(self.texts)

    cdef uint32_t fill(self, uint32_t at, list held, bytearray texts, dict offsets, dict conditions) except? 0:
        """Write the entries of (order, rule) pairs from number `at` on; return the number behind the last."""
        cdef Entry* entry
        for order, rule in held:
            if at % RULES_AT_ONCE == 0:
                with nogil:
                    usleep(0)        # it takes long enough for the reactor to want a turn
            entry = &self.entries[at]
            text = rule.topic_filter or b""
            entry.order = order
            entry.line = rule.line
            entry.text = text_at(texts, offsets, text)
            entry.length = <uint16_t>len(text)
            entry.condition = 0
            if rule.condition is not None:
                entry.condition = <uint16_t>conditions.setdefault(rule.condition, len(conditions) + 1)
            entry.actions = rule.actions
            entry.flags = ALLOWS if rule.allow else 0
            if CLIENT_IDENTIFIER in text or USER_NAME in text:
                entry.flags |= IS_TEMPLATE
            if rule.exact and (b"+" in text or b"#" in text):
                entry.flags |= IS_EXACT
            if rule.topic_filter is None:
                entry.flags |= IS_EVERY
            if rule.dangerous:
                entry.flags |= IS_DANGEROUS
            entry.fits = 0
            for qos in rule.qos:
                entry.fits |= <uint8_t>(1 << qos)
            entry.fits |= ANY_RETAIN if rule.retain is None else 0x10 if rule.retain else 0x08
            if entry.fits != ANY_QOS | ANY_RETAIN:
                self.looks_at_publish = self.looks_at_publish or entry.actions & 1
                self.looks_at_subscribe = self.looks_at_subscribe or (
                    entry.actions & 2 and entry.fits & ANY_QOS != ANY_QOS)
            at += 1
        return at

    cdef int add_slot(self, uint32_t number, bytes name) except -1:
        cdef uint32_t slot = <uint32_t>hash_level(
            SEED, <const uint8_t*>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)) & self.slot_mask
        while self.slots[slot]:
            slot = (slot + 1) & self.slot_mask
        self.slots[slot] = number + 1
        return 0

    cdef bint range_of(self, const Asker* asker, uint32_t* first, uint32_t* end) noexcept:
        """Say which entries are of a client alone, or of clients without a user name."""
        cdef uint32_t slot
        cdef User* user
        first[0] = self.nameless
        end[0] = self.common
        if asker.user == NULL:
            return True
        first[0] = end[0] = 0
        slot = <uint32_t>hash_level(SEED, asker.user, asker.user_length) & self.slot_mask
        while self.slots[slot]:
            user = &self.users[self.slots[slot] - 1]
            if user.name_length == asker.user_length and memcmp(
                    self.texts + user.name, asker.user, asker.user_length) == 0:
                first[0] = user.first
                end[0] = user.first + user.count
                return True
            slot = (slot + 1) & self.slot_mask
        return False

    cdef bint is_for(self, const Entry* entry, const Asker* asker, int action, uint8_t qos_bits,
                     uint8_t retain_bits) noexcept:
        """Return whether a rule is about such a client and what it does, whatever the topic and its condition."""
        cdef Py_ssize_t at
        if not entry.actions & action:
            return False
        if entry.flags & ALLOWS:
            if entry.fits & qos_bits != qos_bits or entry.fits & retain_bits != retain_bits:
                return False
        elif not entry.fits & qos_bits or (retain_bits and not entry.fits & retain_bits):
            return False
        if entry.flags & IS_TEMPLATE:
            for at in range(entry.length):
                if self.texts[entry.text + at] == IDENTIFIER_MARK and not asker.identifier_fits:
                    return False
                if self.texts[entry.text + at] == USER_MARK and not asker.user_fits:
                    return False
        return asker.is_dangerous or not entry.flags & IS_DANGEROUS

    cdef bint is_about(self, const Entry* entry, const Asker* asker, const uint8_t* topic, Py_ssize_t length) noexcept:
        """Return whether a rule is about a topic name."""
        if not entry.flags & SPECIAL:
            return filter_matches(self.texts + entry.text, entry.length, topic, length)
        if entry.flags & IS_EVERY:
            return True
        if entry.flags & IS_EXACT:
            return False
        return template_matches(self.texts + entry.text, entry.length, asker, topic, length)

    cdef bint holds(self, const Entry* entry, object principal) except -1:
        """Return whether a rule's condition holds, if it has one."""
        return entry.condition == 0 or self.conditions[entry.condition - 1].holds(principal)

    cdef Entry* next_of(self, uint32_t* own, uint32_t own_end, uint32_t* common) noexcept:
        """Take the next rule in order, of a client's own and those of all clients; NULL: there is none."""
        cdef Entry* entry
        if own[0] < own_end and (
                common[0] == self.entry_count or self.entries[own[0]].order < self.entries[common[0]].order):
            entry = &self.entries[own[0]]
            own[0] += 1
            return entry
        if common[0] == self.entry_count:
            return NULL
        entry = &self.entries[common[0]]
        common[0] += 1
        return entry

    cdef Entry* find(self, object principal, const Asker* asker, int action, const uint8_t* topic, Py_ssize_t length,
                     uint8_t qos_bits, uint8_t retain_bits) except? NULL:
        cdef uint32_t own, own_end
        cdef uint32_t common = self.common
        cdef Entry* entry
        self.range_of(asker, &own, &own_end)
        while True:
            entry = self.next_of(&own, own_end, &common)
            if entry == NULL:
                return NULL
            if (self.is_for(entry, asker, action, qos_bits, retain_bits) and self.is_about(entry, asker, topic, length)
                    and self.holds(entry, principal)):
                return entry

    cdef int gather(self, object principal, const Asker* asker, int action, bytes topic_filter, uint8_t qos_bits,
                    list rules) except -1:
        cdef uint32_t own, own_end
        cdef uint32_t common = self.common
        cdef Entry* entry
        cdef bytes text
        self.range_of(asker, &own, &own_end)
        while True:
            entry = self.next_of(&own, own_end, &common)
            if entry == NULL:
                return 0
            if not self.is_for(entry, asker, action, qos_bits, 0) or not self.holds(entry, principal):
                continue
            text = None
            if not entry.flags & IS_EVERY:
                text = PyBytes_FromStringAndSize(<const char*>self.texts + entry.text, entry.length)
                if entry.flags & IS_TEMPLATE:
                    text = text.replace(CLIENT_IDENTIFIER, principal.client_identifier)
                    text = text.replace(USER_NAME, (principal.user_name or "").encode())
                if entry.flags & IS_EXACT and text != topic_filter:
                    continue
            rules.append((text, bool(entry.flags & ALLOWS), bool(entry.flags & IS_EXACT), self, entry - self.entries))

    def rule(self, number: int) -> Rule:
        """Return a rule as it was given, by its number among the entries, but for its condition."""
        cdef Entry* entry
        assert 0 <= number < self.entry_count, number
        entry = &self.entries[number]
        text = None if entry.flags & IS_EVERY else (
            PyBytes_FromStringAndSize(<const char*>self.texts + entry.text, entry.length))
        return Rule(
            bool(entry.flags & ALLOWS), entry.actions, text, self.holder(number), entry.line,
            tuple(qos for qos in range(3) if entry.fits >> qos & 1),
            None if entry.fits & ANY_RETAIN == ANY_RETAIN else bool(entry.fits & 0x10),
            bool(entry.flags & IS_EXACT), bool(entry.flags & IS_DANGEROUS))

    cdef object holder(self, uint32_t number):
        """Return whom a rule is about."""
        cdef uint32_t low = 0, high = self.user_count, middle
        if number >= self.common:
            return Holders.EVERYBODY
        if number >= self.nameless:
            return Holders.NO_NAME
        while high - low > 1:
            middle = (low + high) // 2
            if self.users[middle].first <= number:
                low = middle
            else:
                high = middle
        return PyBytes_FromStringAndSize(
            <const char*>self.texts + self.users[low].name, self.users[low].name_length).decode()

    def allows(self, number: int) -> bool:
        """Return what a rule decides."""
        assert 0 <= number < self.entry_count, number
        return self.entries[number].flags & ALLOWS != 0

    def described(self, number: int) -> str:
        """Return what a rule is, in words for an operator."""
        return self.source.described(self.rule(number))

    @property
    def rule_count(self) -> int:
        """How many rules there are."""
        return self.entry_count

    @property
    def users_known(self) -> int:
        """How many users have rules of their own."""
        return self.user_count

    @property
    def bytes_held(self) -> int:
        """Memory of it all, without conditions."""
        return (self.entry_count * sizeof(Entry) + self.user_count * sizeof(User) + self.text_bytes
                + (self.slot_mask + 1) * sizeof(uint32_t))


cdef uint32_t text_at(bytearray texts, dict offsets, bytes text) except? 0:
    """Return where a text begins among all, where it is put if it is not there yet."""
    found = offsets.get(text)
    if found is None:
        found = offsets[text] = len(texts)
        assert found < 1 << 32, found
        texts += text
    return found
