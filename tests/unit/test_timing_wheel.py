"""The timing wheel against a dict of deadlines: never early, at most a tick late."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from broker.reactor.timing_wheel import TimerProbe, TimingWheel, advance

TICK_MS = 250
TURN_MS = 1024 * TICK_MS
START_MS = 10_000_123


class TimingWheelMachine(RuleBasedStateMachine):
    """Timers armed, armed again and cancelled while time moves, by little or by whole turns of the wheel."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = START_MS
        self.wheel = TimingWheel(START_MS)
        self.probes = [TimerProbe(self.wheel) for _ in range(6)]
        self.deadlines: dict[Any, int] = {}
        self.armed_at: dict[Any, int] = {}

    @rule(index=st.integers(0, 5), in_ms=st.one_of(st.integers(-300, 2000), st.integers(0, 3 * TURN_MS)))
    def arm(self, index: int, in_ms: int) -> None:
        probe = self.probes[index]
        probe.arm(self.now_ms + in_ms)
        self.deadlines[probe] = self.now_ms + in_ms
        self.armed_at[probe] = self.now_ms

    @rule(index=st.integers(0, 5))
    def cancel(self, index: int) -> None:
        self.probes[index].cancel()
        self.deadlines.pop(self.probes[index], None)

    @rule(by_ms=st.one_of(st.integers(0, 600), st.integers(0, 2 * TURN_MS)))
    def move(self, by_ms: int) -> None:
        self.now_ms += by_ms
        due = advance(self.wheel, self.now_ms)
        assert len(due) == len(set(due))
        for probe in due:
            assert self.deadlines.pop(probe) <= self.now_ms, "early"
        for probe, deadline_ms in self.deadlines.items():
            latest_ms = max(deadline_ms, self.armed_at[probe]) + TICK_MS
            assert latest_ms > self.now_ms, "more than a tick late"


TestTimingWheel = TimingWheelMachine.TestCase
