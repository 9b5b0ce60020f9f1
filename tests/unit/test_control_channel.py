"""Both ends of a control channel in one program."""

import socket
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from broker.processes import control_channel
from broker.processes.control_channel import ChannelClosedError, ControlChannel, ControlError, pack, receive_now


@asynccontextmanager
async def channels():
    ends = socket.socketpair()
    here, there = ControlChannel(ends[0], "worker"), ControlChannel(ends[1], "supervisor")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.run)
        nursery.start_soon(there.run)
        yield here, there
        nursery.cancel_scope.cancel()


async def test_a_question_is_answered_with_what_the_handler_returns() -> None:
    async with channels() as (here, there):
        there.handle("double", lambda number: number * 2)
        assert await here.ask("double", 21) == 42
        assert await here.ask("double", b"ab") == b"abab"


async def test_both_ends_ask_and_slow_answers_do_not_hold_up_quick_ones() -> None:
    async with channels() as (here, there):
        free = trio.Event()

        async def slow(_payload):
            await free.wait()
            return await there.ask("from here", 1)

        there.handle("slow", slow)
        there.handle("quick", lambda _payload: "quick")
        here.handle("from here", lambda number: number + 1)
        found = []
        async with trio.open_nursery() as nursery:

            async def ask_slow():
                found.append(await here.ask("slow"))

            nursery.start_soon(ask_slow)
            await trio.testing.wait_all_tasks_blocked()
            assert await here.ask("quick") == "quick"
            assert found == []
            free.set()
        assert found == [2]


async def test_what_a_handler_raises_is_its_askers_and_the_channel_goes_on() -> None:
    async with channels() as (here, there):

        def refuse(_payload):
            raise ControlError("There is no such client.")

        there.handle("refuse", refuse)
        there.handle("break", lambda payload: payload["missing"])
        there.handle("unpackable", lambda _payload: object())
        for kind, text in (
            ("refuse", "There is no such client."),
            ("break", "KeyError: 'missing'"),
            ("unknown", "Nobody here knows what 'unknown' is."),
            ("unpackable", "TypeError"),
        ):
            with pytest.raises(ControlError, match=text):
                await here.ask(kind, {})


async def test_an_answer_that_is_too_large_is_an_error_of_its_question(monkeypatch) -> None:
    monkeypatch.setattr(control_channel, "MESSAGE_BYTES_MAX", 1000)
    async with channels() as (here, there):
        there.handle("much", lambda count: b"x" * count)
        assert len(await here.ask("much", 900)) == 900
        with pytest.raises(ControlError, match=r"A message of 1,\d{3} bytes, 1,000 are allowed"):
            await here.ask("much", 1001)
        with pytest.raises(ControlError, match="1,000 are allowed"):
            await here.ask("much", b"x" * 1001)


async def test_who_waits_for_an_answer_is_told_when_the_other_end_is_gone() -> None:
    ends = socket.socketpair()
    here = ControlChannel(ends[0], "worker")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.run)

        async def hang_up():
            await trio.testing.wait_all_tasks_blocked()
            ends[1].close()

        nursery.start_soon(hang_up)
        with pytest.raises(ChannelClosedError):
            await here.ask("anything")
    assert here.closed
    assert not here.tell("anything")
    with pytest.raises(ChannelClosedError):
        await here.ask("anything")


async def test_more_questions_than_are_dealt_with_at_once_are_refused() -> None:
    async with channels() as (here, there):
        free = trio.Event()

        async def wait(_payload):
            await free.wait()

        there.handle("wait", wait)
        async with trio.open_nursery() as nursery:
            for _ in range(control_channel.ASKED_MAX):
                nursery.start_soon(here.ask, "wait")
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(ControlError, match="busy"):
                await here.ask("wait")
            free.set()
        assert await here.ask("wait") is None


async def test_what_is_told_to_one_that_does_not_read_is_left_out_in_the_end() -> None:
    ends = socket.socketpair()
    here = ControlChannel(ends[0], "worker")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.run)
        await trio.testing.wait_all_tasks_blocked()
        told = 0
        while here.tell("event", b"x" * 65_536):
            told += 1
            assert told < 100
            await trio.lowlevel.checkpoint()
        assert told >= control_channel.TOLD_BYTES_MAX // 65_536
        nursery.cancel_scope.cancel()
    ends[1].close()


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\2\0\0\0\xc1\xc1", b"\1\0\0\0\5"])
async def test_bytes_that_are_no_message_end_the_channel(data) -> None:
    ends = socket.socketpair()
    here = ControlChannel(ends[0], "worker")
    with ends[1]:
        ends[1].sendall(data)
        await here.run()
    assert here.closed


def test_the_first_message_is_read_without_trio_and_without_touching_the_next() -> None:
    ends = socket.socketpair()
    with ends[0], ends[1]:
        ends[0].sendall(pack(0, "start", {"worker": 3}) + pack(0, "next", None))
        assert receive_now(ends[1]) == (0, "start", {"worker": 3})
        assert receive_now(ends[1]) == (0, "next", None)
        ends[0].close()
        with pytest.raises(ChannelClosedError):
            receive_now(ends[1])
