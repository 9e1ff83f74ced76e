"""Scores from probabilities, through LiteLLM: "readout" of log-probabilities, and "decisions" on four wires."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.judge.reply.distribution import read_decisions, read_moments
from gavel.judge.reply.readout import LEVELS, MAX_OFF_SCALE, read_readout
from gavel.judge.reply.verdict import VerdictError
from gavel.judge.rubric import Criterion, Rubric
from gavel.llm.cassette import Cassette
from tests.decisions import DecisionServer
from tests.endpoint import Answer, Endpoint, Request, Step, says
from tests.judge.groups import qualities

SURE = {0: 0.5, -1: 0.25, 1: 0.25}
"""Probabilities by difference from the quality."""


def asked(request: Request) -> dict[str, int]:
    """The quality of each id that a prompt asks for, in the order shown."""
    pieces = re.split(r"^¦\w+ trajectory (\w+)$", request["messages"][1]["content"], flags=re.MULTILINE)
    found = zip(pieces[1::2], (re.search(r"quality (\d+)", piece) for piece in pieces[2::2]), strict=True)
    quality = {label: int(match[1]) for label, match in found if match}
    ids = request["response_format"]["json_schema"]["schema"]["required"]
    return {one: next(q for label, q in quality.items() if one.startswith(label)) for one in ids}


def top(*pairs: tuple[str, float]) -> list[dict[str, Any]]:
    return [{"token": token, "logprob": math.log(p), "bytes": None} for token, p in pairs if p]


def token(text: str, *alternatives: tuple[str, float]) -> dict[str, Any]:
    return {"token": text, "logprob": -0.1, "bytes": None, "top_logprobs": top(*alternatives) or top((text, 0.9))}


def answer(tokens: list[dict[str, Any]], text: str | None = None) -> Answer:
    said = says("".join(each["token"] for each in tokens) if text is None else text)
    said.body["choices"][0]["logprobs"] = {"content": tokens}
    return said


def digits(sampled: Any = lambda quality: quality, alternatives: Any = None) -> Step:
    """Answers with one digit for each id: the sampled one, and the likeliest by `SURE`."""

    def usual(quality: int) -> list[tuple[str, float]]:
        shares = [(quality + step, share) for step, share in SURE.items()]
        return [(f" {digit}" if digit == quality else str(digit), share) for digit, share in shares]

    def step(request: Request) -> Answer:
        tokens = [token("{")]
        for number, (one, quality) in enumerate(asked(request).items()):
            tokens += [token(', "' if number else '"'), token(one[:2]), token(one[2:]), token('":')]
            tokens.append(token(f" {sampled(quality)}", *(alternatives or usual)(quality)))
        return answer([*tokens, token("}")])

    return step


def judge(endpoint: Endpoint, **options: Any) -> Judge:
    return Judge([Juror("openai/judge", params=endpoint.params)], mode="readout", **options)


async def test_the_score_is_the_mean_over_the_digits_not_the_sampled_one(endpoint: Endpoint):
    endpoint.script = [digits(sampled=lambda quality: quality + 1)]
    judged = await judge(endpoint, orders=1, rubric="Be good.").score(qualities(2, 7, 4))
    assert [t.reward for t in judged] == pytest.approx([2 / 9, 7 / 9, 4 / 9])
    assert [t.judgement.standard_error for t in judged] == pytest.approx([math.sqrt(0.5) / 9] * 3)
    assert (judged.judgement.status, judged.judgement.mode) == ("scored", "readout")
    (request,) = endpoint.requests
    assert (request["logprobs"], request["top_logprobs"]) == (True, 20)
    digit = {"type": "integer", "enum": list(range(10))}
    assert set(map(str, request["response_format"]["json_schema"]["schema"]["properties"].values())) == {str(digit)}
    assert "from 0 (worst) to 9 (best)" in request["messages"][0]["content"]
    assert "explanation first" not in request["messages"][0]["content"]
    assert "one digit for each id" in request["messages"][1]["content"]


async def test_a_server_without_log_probabilities_scores_nobody_and_a_local_model_is_refused(endpoint: Endpoint):
    def plain(request: Request) -> Answer:
        return says(json.dumps(asked(request)))

    with pytest.raises(JudgeError):
        Judge("constant", mode="readout").check()
    endpoint.script = [plain]
    judged = await judge(endpoint, orders=2).score(qualities(2, 7))
    assert [t.reward for t in judged] == [None, None]
    assert "returned no log-probabilities" in judged.judgement.reason
    assert len(endpoint.requests) == 2


CRITERIA = Rubric("", [Criterion("right", "Is right.", 3), Criterion("short", "Is short.")])


async def test_criteria_have_a_digit_each(endpoint: Endpoint):
    endpoint.script = [digits()]
    judged = await judge(endpoint, orders=1, rubric=CRITERIA).score(qualities(2, 7))
    assert judged.trajectories[1].judgement.criteria == pytest.approx({"right": 7 / 9, "short": 7 / 9})


RUBRIC = Rubric("Be good.")


def reply(*tokens: tuple[str, dict[str, float]], text: str | None = None) -> str:
    """`tokens`: each with the probabilities of what could stand in its place."""
    listed = [[token, [[one, math.log(p)] for one, p in shares.items() if p]] for token, shares in tokens]
    return json.dumps({"text": "".join(token for token, _ in tokens) if text is None else text, "tokens": listed})


@given(
    st.lists(st.floats(0, 1), min_size=LEVELS, max_size=LEVELS).filter(lambda weights: sum(weights) > 0.1),
    st.floats(0, 1),
    st.sampled_from([" ", "\u0120", ":", " = "]),
)
def test_the_mean_is_over_the_digits_and_little_may_be_off_the_scale(weights, off, before):
    shares = {f"{before}{digit}": (1 - off) * w / math.fsum(weights) for digit, w in enumerate(weights)}
    text = reply(("X", {}), (f"{before}5", {**shares, "none": off}))
    if abs(off - MAX_OFF_SCALE) < 1e-6:
        return
    if off > MAX_OFF_SCALE:
        with pytest.raises(VerdictError):
            read_readout(text, RUBRIC, ["X"])
    else:
        mean = math.fsum(digit * w for digit, w in enumerate(weights)) / math.fsum(weights) / (LEVELS - 1)
        assert read_readout(text, RUBRIC, ["X"]).scores["X"].score == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize(
    ("said", "end"),
    [
        ('```json\n{"X": ', "}\n```"),
        ('<think>{"X": 1}</think>{"X": ', "}"),
        ("X: ", ""),
        ("- **X**:", ""),
    ],
)
def test_a_digit_is_found_behind_its_label_in_the_final_answer(said, end):
    text = reply((said, {}), ("7", {"7": 1.0}), (end, {}))
    assert read_readout(text, RUBRIC, ["X"]).scores["X"].score == pytest.approx(7 / 9)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "\nWait, X should be 2."),
        ("", "\nOn reflection swap them."),
        ("", "\n(0 = best, 9 = worst)"),
        ("", '\n```json\n{"X": 2'),
        ('{"X": 2}\nNo. ', ""),
    ],
)
def test_a_digit_that_something_around_it_changes_is_no_score(before, after):
    with pytest.raises(VerdictError):
        read_readout(reply((before + '{"X": ', {}), ("7", {"7": 1.0}), ("}" + after, {})), RUBRIC, ["X"])


@pytest.fixture(params=["openai", "hosted_vllm", "openrouter", "cloudflare"])
def server(request: pytest.FixtureRequest) -> Iterator[DecisionServer]:
    fake = DecisionServer(request.param)
    yield fake
    fake.close()


OPENAI = pytest.mark.parametrize("server", ["openai"], indirect=True)


def decider(fake: DecisionServer, **options: Any) -> Judge:
    return Judge([Juror(fake.model, params=fake.params)], mode="decisions", **options)


async def test_every_wire_gives_the_mean_of_the_distribution_and_its_spread(server: DecisionServer):
    judged = await decider(server, orders=1, rubric="Be good.").score(qualities(2, 7, 4))
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
    judged = await decider(server, orders=2).score(qualities(2, 7, 4))
    assert [t.reward is None for t in judged] == [False, True, False]
    assert judged.trajectories[1].judgement.reason == "no vote: the model gave no answer"
    assert judged.judgement.status == "partial"


@OPENAI
async def test_each_criterion_is_a_question_of_its_own(server: DecisionServer):
    judged = await decider(server, orders=1, rubric=CRITERIA).score(qualities(2, 7))
    ((_, body, _),) = server.requests
    assert len(body["questions"]) == 4
    assert sum("criterion a (right) alone" in question["instructions"] for question in body["questions"]) == 2
    assert judged.trajectories[1].judgement.criteria == pytest.approx({"right": 7 / 9, "short": 7 / 9})


@OPENAI
async def test_transport_failures_are_retried_and_replies_are_kept(server: DecisionServer, tmp_path):
    server.failures = [(503, {"error": {"message": "busy"}}), (429, {"error": {"message": "slow down"}})]
    tape = Cassette(tmp_path / "tape.sqlite")
    first = await decider(server, orders=2, cassette=tape).score(qualities(2, 7))
    asked = len(server.requests)
    again = await decider(server, orders=2, cassette=tape).score(qualities(2, 7))
    assert asked == 4
    assert len(server.requests) == asked
    assert [t.reward for t in again] == [t.reward for t in first] == pytest.approx([2 / 9, 7 / 9])
    assert again.judgement.cached_calls == 2


@OPENAI
@pytest.mark.parametrize("jury", [False, True])
async def test_a_provider_without_decisions_is_an_error_at_once(server: DecisionServer, jury: bool):
    other = Juror("anthropic/claude", params={"api_key": "none"})
    jurors = [Juror(server.model, params=server.params), other] if jury else [other]
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
    verdict = read_decisions(json.dumps({"answers": answers}), RUBRIC, ["X", "Y"], 2)
    assert verdict.unread == {"X": "its question has two answers"}
