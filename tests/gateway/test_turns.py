"""The queue for the engine: order, bound, cancellation at every moment, refusal."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.turns import QueueFull, Turns


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 10))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_first_come_first_served() -> None:
    async def scenario() -> None:
        turns, order = Turns(10), []

        async def work(number: int) -> None:
            await turns.take()
            order.append(number)
            await asyncio.sleep(0)
            turns.give()

        await asyncio.gather(*(work(number) for number in range(8)))
        assert order == list(range(8))
        assert not turns.held

    run(scenario())


def test_the_bound() -> None:
    async def scenario() -> None:
        turns = Turns(1)
        await turns.take()
        waiter = asyncio.create_task(turns.take())
        await settle()
        with pytest.raises(QueueFull):
            await turns.take()
        turns.give()
        await waiter
        assert turns.held

    run(scenario())


def test_nobody_may_wait_with_a_bound_of_0() -> None:
    async def scenario() -> None:
        turns = Turns(0)
        await turns.take()
        with pytest.raises(QueueFull):
            await turns.take()

    run(scenario())


def test_a_turn_that_comes_together_with_a_cancellation_is_handed_on() -> None:
    async def scenario() -> None:
        turns = Turns(10)
        await turns.take()
        first, second = asyncio.create_task(turns.take()), asyncio.create_task(turns.take())
        await settle()
        turns.give()
        first.cancel()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
        turns.give()
        assert not turns.held
        assert turns.waiting == 0

    run(scenario())


def test_refusal_ends_every_wait_and_leaves_the_holder_alone() -> None:
    async def scenario() -> None:
        turns = Turns(10)
        await turns.take()
        waiters = [asyncio.create_task(turns.take()) for _ in range(3)]
        await settle()
        turns.refuse_all(RuntimeError("closed"))
        results = await asyncio.gather(*waiters, turns.take(), return_exceptions=True)
        assert [str(result) for result in results] == ["closed"] * 4
        turns.give()
        assert not turns.held

    run(scenario())


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "cancel"]), st.integers(0, 9)), max_size=60))
def test_it_is_never_held_twice_nor_lost(steps: list[tuple[str, int]]) -> None:
    async def scenario() -> None:
        turns, tasks, holders = Turns(5), [], []

        async def taker() -> None:
            await turns.take()
            holders.append(asyncio.current_task())

        for verb, which in steps:
            if verb == "take":
                tasks.append(asyncio.create_task(taker()))
            elif verb == "cancel" and tasks:
                tasks[which % len(tasks)].cancel()
            elif verb == "give" and holders:
                holders.pop()
                turns.give()
            if which % 2:
                await settle()
            assert len(holders) <= 1
        await settle()
        while holders:
            holders.pop()
            turns.give()
            await settle()
        assert not turns.held
        assert turns.waiting == 0
        await asyncio.gather(*tasks, return_exceptions=True)

    run(scenario())
