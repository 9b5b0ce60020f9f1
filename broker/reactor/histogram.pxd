"""Durations counted by powers of two, and the clock that they are read from."""

from libc.stdint cimport int64_t, uint64_t

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec* time)
    int CLOCK_MONOTONIC
    int CLOCK_REALTIME

cdef extern from *:
    int leading_zeros "__builtin_clzll"(unsigned long long) noexcept nogil     # of a number that is not 0

cdef enum:
    BUCKETS = 24                 # bucket i: 2^i to 2^(i+1) microseconds, bucket 0 all shorter ones, the last all longer

cdef struct Durations:           # all zero at the start
    uint64_t count
    uint64_t total_us
    uint64_t max_us
    uint64_t[BUCKETS] buckets


cdef inline int64_t monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef inline int64_t realtime_us() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * 1000000 + now.tv_nsec // 1000


cdef inline void note_duration(Durations* durations, int64_t spent_us) noexcept nogil:
    cdef uint64_t us = <uint64_t>spent_us if spent_us > 0 else 0
    cdef int bucket = 63 - leading_zeros(us | 1)
    durations.count += 1
    durations.total_us += us
    if us > durations.max_us:
        durations.max_us = us
    durations.buckets[bucket if bucket < BUCKETS else BUCKETS - 1] += 1


cdef tuple durations_of(const Durations* durations)      # (count, total_us, max_us, [count per bucket])
