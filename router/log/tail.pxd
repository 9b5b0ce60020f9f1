"""Reading one log from a place on, while it grows: the messages that a topic filter matches."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from router.log.record_cursor cimport Cursor, MessageFields

cdef enum:
    WINDOW_BYTES_MIN = 16384
    WINDOW_BYTES_MAX = 262144

cdef enum TailStep:              # what a step came to
    TAIL_MESSAGE = 0             # a message that matches: `fields`, `number`, `time_us`
    TAIL_END = 1                 # all that is durable has been read
    TAIL_BUDGET = 2              # the bytes that it was allowed are used up


cdef class LogTail:
    cdef readonly object windows         # LogWindows
    cdef readonly uint32_t worker        # whose log it is
    cdef bint held                       # of MergedTail: the message that it stands at has not been given yet
    cdef bint ended                      # of MergedTail: there was no more when it was asked last
    cdef readonly bytes topic_filter
    cdef const uint8_t* filter
    cdef size_t filter_length
    cdef object header                   # of the segment that it stands in; None: to be found by `number` or `since_us`
    cdef Cursor cursor                   # over a window of it; None: none is held
    cdef uint64_t offset                 # in the segment's file, behind the record `number`
    cdef readonly uint64_t number        # of the record it came to last; whatever follows is still to be read
    cdef readonly int64_t time_us        # of that record
    cdef uint64_t trusted                # the window's records are what they will be up to this number
    cdef uint64_t skip_number            # records up to here are passed over
    cdef int64_t since_us                # records before this time are passed over, until the first that is not
    cdef bint waits_for_time
    cdef uint32_t window_bytes           # of the next window
    cdef readonly uint64_t missing_first # first record known to be missing since take_gap(); 0: none is
    cdef readonly uint64_t missing_count
    cdef readonly uint64_t scanned_bytes
    cdef MessageFields fields            # pointers into the window: valid until the next step

    cdef TailStep step(self, int64_t* budget) except? TAIL_END   # to the next message; the budget is what may be scanned
    cdef bint walk(self, int64_t* budget) noexcept
    cdef bint place(self) except -1
    cdef bint next_window(self, int64_t* budget) except -1
    cdef bint next_segment(self, object headers) except -1
    cdef bint resynchronize(self, object headers, int64_t* budget) except -1
    cdef int miss(self, uint64_t through) except -1
    cdef int put_back(self) noexcept
    cdef uint64_t passed(self) noexcept  # the number up to which nothing is still to come


cdef class MergedTail:
    cdef readonly list tails             # LogTail, by worker
    cdef readonly LogTail current        # the one whose message step() came to
    cdef readonly bint missing           # some tail has a gap to tell of

    cdef TailStep step(self, int64_t* budget) except? TAIL_END
    cdef int begin(self) noexcept        # what had ended may have grown
    cdef uint64_t progress(self) noexcept
