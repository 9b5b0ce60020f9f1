"""The router: what one worker owes its clients."""

from router.exchanges cimport Exchanges
from router.matching.ended_subscriptions cimport EndedSubscriptions
from router.session_end cimport Ending
from router.sessions.deadlines cimport Deadlines
from router.sessions.session cimport Session


cdef class Router(Exchanges):
    cdef readonly dict sessions          # client identifier (bytes) -> Session
    cdef public object interest          # hears what is wanted here, for peers (mesh.interest.Interest); None: no mesh
    cdef public object sys_topics        # the broker's own topics, $SYS: match(), message_of(), bring_up_to_date(); or None
    cdef Deadlines _deadlines            # of sessions without a connection
    cdef readonly EndedSubscriptions ended   # of receivers that had many: what is left to be done about them
    cdef readonly Ending ending          # has the client identifiers whose session's end is not durable yet

    # What has fallen due for a session is done, though its turn has not come. None: that was its end, or there is none.
    cdef Session _fall_due(self, Session session)
