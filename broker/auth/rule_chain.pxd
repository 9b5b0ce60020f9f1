"""The ACL of rule sets, asked one after the other: what a client's token says, then each file."""

from broker.auth.rule_set cimport Asker, RuleSet

cdef class RuleChain:
    cdef readonly tuple rule_sets        # in their order
    cdef readonly bint is_strict         # a subscription is granted as a whole or not at all
    cdef readonly bint is_open           # who brings no rules may do everything, where no rule sets are asked
    cdef tuple listeners                 # by number: None, or numbers of rule sets and whether these are strict
    cdef tuple by_listener               # by number: the rule sets that are asked; beyond its end all are
    cdef readonly bint decides_by_qos    # answers for publishing depend on QoS or RETAIN
    cdef public object shadow            # broker.auth.shadow.Shadow, which is told each answer; None: none is on trial
    cdef public object changed           # is called when answers may be others now; None: there is no worker yet
    cdef dict unpacked                   # id of plain rules: those, and what was made of them; bounded
    cdef int decided(self, object principal, int action, bytes topic_name, int qos_bits, int retain_bits) except -2
    cdef list gathered(self, object principal, const Asker* asker, int action, bytes topic_filter, int qos_bits)
    cdef int left(self, object principal, int action, bytes topic_filter, int qos, list deciding) except -1
    cdef bint looks_at_subscribe(self, object principal) except -1
    cdef bint may_besides(self, object principal, int action, bytes topic_filter) except -1
    cdef RuleSet rules_of(self, object principal)
    cdef object granted(self, object principal, int answer)
    cdef tuple asked(self, object principal)
    cdef bint strict(self, object principal) except -1
    cdef bint is_free(self, object principal) except -1
