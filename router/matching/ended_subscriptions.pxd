"""Subscriptions that have ended, many at once, and what is left to be done about them."""

from libc.stdint cimport uint8_t, uint32_t
from router.core.receiver cimport Receiver
from router.matching.filter_trie cimport Node
from router.matching.subscription_tree cimport SubscriptionTree

cdef struct Ended:
    Node* node                   # held until this is done with
    uint8_t options              # of the subscription
    uint8_t durable              # its receiver was
    uint8_t counts               # peers were told of it: not of a shared one, whose end they hear of at once


cdef class EndedSubscriptions:
    cdef SubscriptionTree tree
    cdef Ended* items            # a stack
    cdef readonly uint32_t count
    cdef uint32_t capacity
    # All of a receiver's. Interest: mesh.interest.Interest, None where there are no peers.
    cdef int end(self, Receiver receiver, interest) except -1
    cdef int push(self, Node* node, uint8_t options, bint durable, interest) except -1
    cdef int go_on(self, interest, int work_max) except -1          # some of them; 0: all
