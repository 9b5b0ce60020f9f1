"""The ACL of rule sets, and of others, asked one after the other: what a client's token says, then each member."""

from broker.auth.rule_set cimport Asker, RuleSet

cdef class RuleChain:
    cdef readonly tuple members          # RuleSet, or broker.auth.http_authorizer.HttpAuthorizer, in their order
    cdef readonly tuple rule_sets        # those that are among them
    cdef readonly bint waits             # there are others than rule sets, whose answers may have to be waited for
    cdef readonly bint is_strict         # a subscription is granted as a whole or not at all
    cdef readonly bint is_open           # who brings no rules may do everything, where no rule sets are asked
    cdef tuple listeners                 # by number: None, or numbers of members and whether these are strict
    cdef tuple by_listener               # by number: the members that are asked; beyond its end all are
    cdef readonly bint decides_by_qos    # answers for publishing depend on QoS or RETAIN
    cdef public object shadow            # broker.auth.shadow.Shadow, which is told each answer; None: none is on trial
    cdef public object changed           # is called when answers may be others now; None: there is no worker yet
    cdef dict unpacked                   # id of plain rules: those, and what was made of them; bounded
    cdef int decided(self, object principal, int action, bytes topic_name, int qos, int retain) except -2
    cdef list gathered(self, object principal, const Asker* asker, int action, bytes topic_filter, int qos_bits, int qos)
    cdef int left(self, object principal, int action, bytes topic_filter, int qos, list deciding) except -1
    cdef bint looks_at_subscribe(self, object principal) except -1
    cdef bint may_besides(self, object principal, int action, bytes topic_filter) except -1
    cdef RuleSet rules_of(self, object principal)
    cdef object granted(self, object principal, int answer)
    cdef tuple asked(self, object principal)
    cdef bint strict(self, object principal) except -1
    cdef bint is_free(self, object principal) except -1
