"""What rules about topics, the first that matches deciding, leave of a topic filter: nothing, something or all."""

cdef enum:
    NOTHING = 0
    SOMETHING = 1
    ALL = 2

# rules: tuples (topic filter or None for every topic, whether it allows, ...), in their order; what none of them matches
# is refused.
# Returns what they leave of a topic filter. allowing and refusing get the numbers of two rules that decide about topics
# among those that match, -1 where there is none, len(rules) for a refusal because no rule matches.
cdef int left_of(bytes topic_filter, list rules, Py_ssize_t* allowing, Py_ssize_t* refusing) except -1
