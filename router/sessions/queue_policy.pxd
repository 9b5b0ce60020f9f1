"""What becomes of a message for which a session's queue has no room."""

from libc.stdint cimport uint8_t, uint32_t
from router.matching.filter_trie cimport FilterTree

cdef enum Overflow:              # names in overflow.POLICIES, in this order
    DROP_NEWEST = 0              # it is dropped
    DROP_OLDEST = 1              # what has waited longest is dropped, and it waits
    DISCONNECT = 2               # it is dropped, and the receiver's connection is closed
    PUSH_BACK = 3                # it waits, and its publisher is not read from for a while; then as DROP_OLDEST


cdef class OverflowRules:
    cdef FilterTree tree
    cdef uint8_t* policies               # of each rule, in their order, then the one of all other topics
    cdef readonly uint32_t count         # of rules
    cdef readonly bint pushes_back       # one of the policies is PUSH_BACK
    cdef int policy_of(self, const uint8_t* topic, uint32_t topic_length) except -1      # an Overflow
