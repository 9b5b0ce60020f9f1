"""The rules of one file, or of one token, compact and compiled."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t

cdef enum:
    ALLOWS = 0x01                # in Entry.flags
    ANY_QOS = 0x07               # in Entry.fits
    ANY_RETAIN = 0x18

cdef struct Asker:
    # Whom is decided about, for one decision.
    const uint8_t* user          # NULL: no user name
    Py_ssize_t user_length
    const uint8_t* identifier
    Py_ssize_t identifier_length
    bint user_fits               # may stand in a rule's topic filter: not empty, without / + #
    bint identifier_fits
    bint is_dangerous            # there is a + or a # in one of the two

cdef struct Entry:
    # One rule.
    uint32_t order               # the lowest decides
    uint32_t line
    uint32_t text                # where its topic filter begins in RuleSet.texts
    uint16_t length              # of its topic filter
    uint16_t condition           # number of its condition, 0: none
    uint8_t flags
    uint8_t actions              # PUBLISH and so on, as in broker.auth.rule
    uint8_t fits                 # bits 0 to 2: those QoS; bit 3: RETAIN 0, bit 4: RETAIN 1

cdef struct User:
    uint32_t name                # where it begins in RuleSet.texts
    uint32_t name_length
    uint32_t first               # of its entries
    uint32_t count               # of its entries

cdef int ask_for(object principal, Asker* asker) except -1       # the pointers live as long as the principal


cdef class RuleSet:
    cdef Entry* entries          # those of users, then of clients without a user name, then of everybody
    cdef uint32_t entry_count
    cdef uint32_t nameless       # first entry of clients without a user name
    cdef uint32_t common         # first entry of everybody
    cdef User* users
    cdef uint32_t user_count
    cdef uint32_t* slots         # open addressing, 1 + number of a user, 0: free; at most half are taken
    cdef uint32_t slot_mask
    cdef uint8_t* texts          # topic filters and names, each once
    cdef uint32_t text_bytes
    cdef tuple conditions        # of the entries, from 1
    cdef readonly object source
    cdef readonly bint looks_at_publish          # a rule asks for a QoS, or RETAIN, of a PUBLISH
    cdef readonly bint looks_at_subscribe        # a rule asks for a QoS of a SUBSCRIBE
    cdef uint32_t fill(self, uint32_t at, list held, bytearray texts, dict offsets, dict conditions) except? 0
    cdef object holder(self, uint32_t number)
    cdef int add_slot(self, uint32_t number, bytes name) except -1
    cdef bint range_of(self, const Asker* asker, uint32_t* first, uint32_t* end) noexcept
    cdef bint is_for(self, const Entry* entry, const Asker* asker, int action, uint8_t qos_bits,
                     uint8_t retain_bits) noexcept
    cdef bint is_about(self, const Entry* entry, const Asker* asker, const uint8_t* topic, Py_ssize_t length) noexcept
    cdef bint holds(self, const Entry* entry, object principal) except -1
    cdef Entry* next_of(self, uint32_t* own, uint32_t own_end, uint32_t* common) noexcept
    # The rule that decides about a topic name, NULL: none. qos_bits, retain_bits, as in Entry.fits: what may be; a rule
    # that allows has to fit all of them, one that does not any.
    cdef Entry* find(self, object principal, const Asker* asker, int action, const uint8_t* topic, Py_ssize_t length,
                     uint8_t qos_bits, uint8_t retain_bits) except? NULL
    # Appends (topic filter or None, allows, is exact, self, number) of each rule about such a client, in their order.
    cdef int gather(self, object principal, const Asker* asker, int action, bytes topic_filter, uint8_t qos_bits,
                    list rules) except -1
