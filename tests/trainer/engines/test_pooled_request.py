"""A request's attempts, without any sampler: what is heard is heard once, and what is told is what was heard."""

from concurrent.futures import Future
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.engines.engine_pool import PooledRequest
from gavel.trainer.engines.protocol import EngineError, Grammar, Sampled, SamplingRequest, Shaping

STOP = 9
REQUEST = SamplingRequest([1, 2], frozenset({STOP}), max_tokens=8, temperature=1.0, seed=5)
tokens = st.lists(st.integers(0, 3), min_size=1, max_size=8)


def piece(token_ids: list[int], version: int = 3) -> Sampled:
    tops = [[(token, -1.0)] for token in token_ids]
    return Sampled(list(token_ids), [-token / 10 for token in token_ids], "stop", version, tops)


def listening(**changes: object) -> tuple[PooledRequest, list[Sampled]]:
    heard: list[Sampled] = []
    asked = replace(REQUEST, on_tokens=heard.append, **changes)  # type: ignore[arg-type]
    return PooledRequest(asked, Future()), heard


def say(asked: SamplingRequest, token_ids: list[int]) -> None:
    assert asked.on_tokens is not None
    asked.on_tokens(piece(token_ids))


def heard_ids(heard: list[Sampled]) -> list[int]:
    return [token for each in heard for token in each.token_ids]


@given(tokens, st.integers(0, 8), st.lists(st.integers(1, 3), max_size=8))
def test_an_attempt_that_draws_the_same_is_heard_from_where_the_lost_one_stopped(
    reply: list[int], lost_at: int, sizes: list[int]
) -> None:
    pooled, heard = listening()
    first = pooled.attempt()
    for token in reply[:lost_at]:
        say(first, [token])
    second = pooled.attempt()
    assert (list(second.prompt_ids), second.seed, second.max_tokens) == ([1, 2], 5, 8)
    say(first, [0])  # late news of the lost one
    at = 0
    for size in [*sizes, len(reply)]:
        if reply[at : at + size]:
            say(second, reply[at : at + size])
        at += size
    assert heard_ids(heard) == reply
    assert all(each.logprobs == piece(each.token_ids).logprobs for each in heard)
    assert all(each.top_logprobs == piece(each.token_ids).top_logprobs for each in heard)
    assert pooled.whole(piece(reply)) == piece(reply)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.data())
def test_an_attempt_that_draws_otherwise_is_ended_and_goes_on_behind_what_was_heard(
    reply: list[int], data: st.DataObject
) -> None:
    pooled, heard = listening()
    say(pooled.attempt(), reply)
    at = data.draw(st.integers(0, len(reply) - 1))
    again = pooled.attempt()
    running: Future[Sampled] = Future()
    pooled.runs(running)
    say(again, [*reply[:at], 4])
    assert running.cancelled()
    assert pooled.strayed
    behind = pooled.attempt()
    assert list(behind.prompt_ids) == [1, 2, *reply]
    assert (behind.max_tokens, behind.adapter_version) == (8 - len(reply), 3)
    assert behind.seed != REQUEST.seed, "the random numbers of the first tokens are not drawn twice"
    say(behind, [6, STOP])
    whole = pooled.whole(piece([6, STOP]))
    assert heard_ids(heard) == whole.token_ids == [*reply, 6, STOP]
    assert whole.logprobs == piece(whole.token_ids).logprobs
    assert whole.top_logprobs == piece(whole.token_ids).top_logprobs


@pytest.mark.parametrize(("reply", "reason"), [([4, STOP], "stop"), ([4] * 8, "length")])
def test_a_reply_that_was_heard_to_its_end_needs_no_further_attempt(reply: list[int], reason: str) -> None:
    pooled, _ = listening()
    assert pooled.heard_to_its_end() is None
    say(pooled.attempt(), reply[:1])
    assert pooled.heard_to_its_end() is None
    pooled, _ = listening()
    say(pooled.attempt(), reply)
    assert pooled.heard_to_its_end() == replace(piece(reply), finish_reason=reason)


@pytest.mark.parametrize("changes", [{"grammar": Grammar("{}")}, {"shaping": Shaping(presence_penalty=1.0)}])
def test_a_reply_that_is_drawn_by_looking_back_does_not_go_on_from_a_half(changes: dict[str, object]) -> None:
    pooled, _ = listening(**changes)
    say(pooled.attempt(), [4])
    say(pooled.attempt(), [5])
    with pytest.raises(EngineError, match="streamed"):
        pooled.attempt()


def test_a_tail_that_is_cut_off_needs_no_look_back() -> None:
    pooled, _ = listening(shaping=Shaping(top_p=0.9))
    say(pooled.attempt(), [4])
    say(pooled.attempt(), [5])
    assert list(pooled.attempt().prompt_ids) == [1, 2, 4]


def test_an_attempt_of_a_request_that_was_cancelled_is_cancelled_too() -> None:
    pooled, _ = listening()
    pooled.attempt()
    running: Future[Sampled] = Future()
    pooled.future.cancel()
    pooled.runs(running)
    assert running.cancelled()
