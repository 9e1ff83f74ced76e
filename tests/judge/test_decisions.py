"""The mode "decisions", through the real LiteLLM, against fakes of four providers' wires."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.judge.reply.distribution import read_decisions, read_moments
from gavel.judge.rubric import Criterion, Rubric
from gavel.llm.cassette import Cassette
from tests.decisions import DecisionServer
from tests.judge.groups import qualities

WIRES = ("openai", "hosted_vllm", "openrouter", "cloudflare")


@pytest.fixture(params=WIRES)
def server(request: pytest.FixtureRequest) -> Iterator[DecisionServer]:
    fake = DecisionServer(request.param)
    yield fake
    fake.close()


@pytest.fixture
def openai_server() -> Iterator[DecisionServer]:
    fake = DecisionServer("openai")
    yield fake
    fake.close()


def judge(fake: DecisionServer, **options: Any) -> Judge:
    return Judge([Juror(fake.model, params=fake.params)], mode="decisions", **options)


async def test_every_wire_gives_the_mean_of_the_distribution_and_its_spread(server: DecisionServer):
    judged = await judge(server, orders=1, rubric="Be good.").score(qualities(2, 7, 4))
    whole = judged.judgement
    assert [t.reward for t in judged] == pytest.approx([2 / 9, 7 / 9, 4 / 9])
    assert [t.judgement.standard_error for t in judged if t.judgement] == pytest.approx([math.sqrt(0.5) / 9] * 3)
    assert (whole.status, whole.mode, whole.calls) == ("scored", "decisions", 1)
    assert (whole.prompt_tokens, whole.completion_tokens) == (900, 3)
    ((path, body, headers),) = server.requests
    assert path == server.path
    assert headers["authorization"] == "Bearer none"
    assert len(body["questions"]) == 3
    assert "Be good." in server.shown(body)
    assert "from 0 (worst) to 9 (best)" in server.shown(body)
    assert '"scores"' not in server.shown(body)


async def test_a_refused_question_leaves_its_member_alone_without_a_score(server: DecisionServer):
    server.spoil = lambda label, p: None if p[7] == 0.5 else p
    judged = await judge(server, orders=2).score(qualities(2, 7, 4))
    assert [t.reward is None for t in judged] == [False, True, False]
    assert judged.trajectories[1].judgement.reason == "no vote: the model gave no answer"
    assert judged.judgement.status == "partial"


async def test_each_criterion_is_a_question_of_its_own(openai_server: DecisionServer):
    rubric = Rubric("", [Criterion("right", "Is right.", 3), Criterion("short", "Is short.")])
    judged = await judge(openai_server, orders=1, rubric=rubric).score(qualities(2, 7))
    ((_, body, _),) = openai_server.requests
    assert len(body["questions"]) == 4
    assert sum("criterion a (right) alone" in question["instructions"] for question in body["questions"]) == 2
    assert judged.trajectories[1].judgement.criteria == pytest.approx({"right": 7 / 9, "short": 7 / 9})


async def test_transport_failures_are_retried_and_replies_are_kept(openai_server: DecisionServer, tmp_path):
    openai_server.failures = [(503, {"error": {"message": "busy"}}), (429, {"error": {"message": "slow down"}})]
    tape = Cassette(tmp_path / "tape.sqlite")
    first = await judge(openai_server, orders=2, cassette=tape).score(qualities(2, 7))
    asked = len(openai_server.requests)
    again = await judge(openai_server, orders=2, cassette=tape).score(qualities(2, 7))
    assert asked == 4
    assert len(openai_server.requests) == asked
    assert [t.reward for t in again] == [t.reward for t in first] == pytest.approx([2 / 9, 7 / 9])
    assert again.judgement.cached_calls == 2


@pytest.mark.parametrize("jury", [False, True])
async def test_a_provider_without_decisions_is_an_error_at_once(openai_server: DecisionServer, jury: bool):
    other = Juror("anthropic/claude", params={"api_key": "none"})
    jurors = [Juror(openai_server.model, params=openai_server.params), other] if jury else [other]
    with pytest.raises(JudgeError, match="anthropic/claude") as error:
        await Judge(jurors, mode="decisions").score(qualities(2, 7))
    assert error.value.remedy


WEIGHTS = st.lists(st.floats(0, 1), min_size=2, max_size=10).filter(lambda weights: sum(weights) > 0.1)


@given(WEIGHTS, st.sampled_from([0.5, 0.9, 1.1, 2.0, -1.0]))
def test_what_does_not_sum_to_one_is_no_distribution(weights, factor):
    probabilities = [factor * weight / math.fsum(weights) for weight in weights]
    assert isinstance(read_moments(probabilities, len(weights)), str)


def test_two_answers_to_one_question_are_none():
    answers = [
        {"name": name, "probabilities": shares} for name, shares in (("X", [0, 1]), ("X", [1, 0]), ("Y", [0, 1]))
    ]
    verdict = read_decisions(json.dumps({"answers": answers}), Rubric("Be good."), ["X", "Y"], 2)
    assert verdict.unread == {"X": "its question has two answers"}
