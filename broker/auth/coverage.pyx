"""What rules about topics, the first that matches deciding, leave of a topic filter: nothing, something or all.

There are always names that no rule mentions, so a topic filter and a rule are looked at by one topic for each number of
levels: that which has the texts that the two ask for, and at every other level a text that nobody has written. If an
earlier rule matches this topic, then only by wildcards, and so it matches all topics of that length that both match; if it
does not, there is a topic that the rule decides. So the answer is exact.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp

cdef enum:
    WORK_MAX = 1_000_000         # levels compared, some 3 ms; who has so many rules is told SOMETHING

cdef struct Part:
    const uint8_t* text          # of a level; NULL: +
    uint32_t length

cdef struct Shape:
    # A topic filter taken apart.
    Part* parts                  # its levels, without a # at the end
    uint32_t count
    bint is_open                 # there is a # at the end
    bint is_every                # it matches every topic, those that begin with $ too
    bint allows

cdef struct Looked:
    Shape* shapes                # of the rules; behind them that of the topic filter that is asked about
    Py_ssize_t count             # of rules
    uint32_t longest             # levels of the longest of them all
    Part* topic                  # so many and one more
    Py_ssize_t work


cdef inline bint is_dollar(const Part* part) noexcept nogil:
    return part.text != NULL and part.length > 0 and part.text[0] == 0x24


cdef inline bint is_same(const Part* left, const Part* right) noexcept nogil:
    return left.length == right.length and memcmp(left.text, right.text, left.length) == 0


cdef Part* taken_apart(bytes topic_filter, Shape* shape, Part* parts) noexcept:
    """Fill a shape, whose levels go to `parts`; return where there is room behind them."""
    cdef const uint8_t* text = <const uint8_t*>PyBytes_AS_STRING(topic_filter)
    cdef const uint8_t* end = text + PyBytes_GET_SIZE(topic_filter)
    cdef const uint8_t* begin = text
    shape.parts = parts
    shape.count = 0
    shape.is_open = shape.is_every = False
    while True:
        if text == end or text[0] == 0x2F:
            if text - begin == 1 and begin[0] == 0x23:
                shape.is_open = True                             # it is the last level
                break
            parts.length = <uint32_t>(text - begin)
            parts.text = begin
            if parts.length == 1 and begin[0] == 0x2B:
                parts.text = NULL
            parts += 1
            shape.count += 1
            if text == end:
                break
            begin = text + 1
        text += 1
    return parts


cdef bint has_length(const Shape* shape, uint32_t length) noexcept nogil:
    """Return whether a shape matches topics of so many levels, 1 or more."""
    return shape.is_every or shape.count == length or (shape.is_open and shape.count < length)


cdef bint matches_topic(Looked* looked, const Shape* shape, uint32_t length) noexcept nogil:
    """Return whether a shape matches the topic that is looked at; its levels without a text have one of their own."""
    cdef uint32_t at
    if shape.is_every:
        return True
    if not has_length(shape, length):
        return False
    if is_dollar(looked.topic) and (shape.count == 0 or shape.parts[0].text == NULL):
        return False                                             # [MQTT-4.7.2-1]
    for at in range(shape.count):
        looked.work += 1
        if shape.parts[at].text != NULL and (
                looked.topic[at].text == NULL or not is_same(&looked.topic[at], &shape.parts[at])):
            return False
    return True


cdef bint make_topic(Looked* looked, const Shape* asked, const Shape* rule, uint32_t length) noexcept nogil:
    """Make the topic of so many levels that both match; return False if there is none."""
    cdef uint32_t at
    cdef bint is_free
    if not has_length(asked, length) or not has_length(rule, length):
        return False
    for at in range(length):
        looked.work += 1
        looked.topic[at].text = NULL
        looked.topic[at].length = 0
        if at < asked.count:
            looked.topic[at] = asked.parts[at]
        if not rule.is_every and at < rule.count and rule.parts[at].text != NULL:
            if looked.topic[at].text == NULL:
                looked.topic[at] = rule.parts[at]
            elif not is_same(&looked.topic[at], &rule.parts[at]):
                return False
    if is_dollar(looked.topic):
        # A wildcard at the first level does not reach there, neither the client's nor the rule's [MQTT-4.7.2-1].
        is_free = asked.count == 0 or asked.parts[0].text == NULL
        if not rule.is_every:
            is_free = is_free or rule.count == 0 or rule.parts[0].text == NULL
        return not is_free
    return True


cdef bint decides_something(Looked* looked, Py_ssize_t number) noexcept nogil:
    """Return whether rule `number` decides about a topic that the topic filter matches: no other kind comes before.

    The rule behind the last is that which refuses everything.
    """
    cdef const Shape* asked = &looked.shapes[looked.count]
    cdef Shape last
    cdef const Shape* rule
    cdef uint32_t length, shortest, longest
    cdef Py_ssize_t before
    if number == looked.count:
        last.parts = NULL
        last.count = 0
        last.is_open = last.is_every = True
        last.allows = False
        rule = &last
    else:
        rule = &looked.shapes[number]
    shortest = max(1, asked.count, 0 if rule.is_every else rule.count)
    # Beyond the longest rule, all lengths are alike.
    longest = looked.longest + 1 if asked.is_open and (rule.is_every or rule.is_open) else shortest
    for length in range(shortest, longest + 1):
        if looked.work > WORK_MAX or not make_topic(looked, asked, rule, length):
            return False         # of a longer topic the texts are the same
        for before in range(number):
            if looked.shapes[before].allows != rule.allows and matches_topic(looked, &looked.shapes[before], length):
                break
        else:
            return True
    return False


cdef int left_of(bytes topic_filter, list rules, Py_ssize_t* allowing, Py_ssize_t* refusing) except -1:
    cdef Py_ssize_t count = len(rules)
    cdef Py_ssize_t levels = topic_filter.count(b"/") + 1
    cdef Py_ssize_t number
    cdef Looked looked
    cdef Part* parts
    cdef Part* free_parts
    cdef object text
    for rule in rules:
        text = (<tuple>rule)[0]
        if text is not None:
            levels += (<bytes>text).count(b"/") + 1
    looked.shapes = <Shape*>malloc((count + 1) * sizeof(Shape))
    parts = <Part*>malloc(2 * (levels + 1) * sizeof(Part))
    if looked.shapes == NULL or parts == NULL:
        free(looked.shapes)
        free(parts)
        raise MemoryError()
    looked.count = count
    looked.longest = 0
    looked.work = 0
    free_parts = parts
    for number in range(count + 1):
        text = topic_filter if number == count else (<tuple>rules[number])[0]
        if text is None:
            looked.shapes[number].parts = free_parts
            looked.shapes[number].count = 0
            looked.shapes[number].is_open = looked.shapes[number].is_every = True
        else:
            free_parts = taken_apart(<bytes>text, &looked.shapes[number], free_parts)
        looked.shapes[number].allows = number < count and (<tuple>rules[number])[1]
        looked.longest = max(looked.longest, looked.shapes[number].count)
    looked.topic = free_parts
    allowing[0] = refusing[0] = -1
    for number in range(count + 1):
        if number < count and looked.shapes[number].allows:
            if allowing[0] < 0 and decides_something(&looked, number):
                allowing[0] = number
        elif refusing[0] < 0 and decides_something(&looked, number):
            refusing[0] = number
        if allowing[0] >= 0 and refusing[0] >= 0:
            break
    free(looked.shapes)
    free(parts)
    if looked.work > WORK_MAX or (allowing[0] >= 0 and refusing[0] >= 0):
        return SOMETHING
    return ALL if refusing[0] < 0 else NOTHING


def what_is_left(bytes topic_filter not None, list rules not None) -> tuple[int, int, int]:
    """Return what rules leave of a topic filter, 0 nothing, 1 something, 2 all, and the two that decide; see the .pxd.

    Args:
        topic_filter: checked, without $share.
        rules: (topic filter or None, whether it allows), each checked, in their order.

    Cost: some 0.2 us, and for each pair of rules some 10 ns for each level.
    """
    cdef Py_ssize_t allowing, refusing
    cdef int left = left_of(topic_filter, rules, &allowing, &refusing)
    return left, allowing, refusing
