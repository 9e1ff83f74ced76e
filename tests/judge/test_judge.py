import itertools
import json
import re

import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.judge.ruler import ruler, ruler_score_group
from gavel.llm.errors import PermanentError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from tests.endpoint import Endpoint, fails, labels_in, says, scores
from tests.judge.groups import OPENING, TOOLS, broken, by_length, desk, never, prefers_length, saying


def judge_of(endpoint: Endpoint, **options) -> Judge:
    return Judge(Juror("openai/judge", params=endpoint.params), **options)


async def test_a_judge_that_favours_the_first_place_favours_nobody_over_two_orders():
    async def favours_the_first(messages, schema):
        labels = re.findall(r"trajectory (\w+)\n", messages[1]["content"])
        return json.dumps({label: 1 - place / 10 for place, label in enumerate(labels)})

    judged = await Judge(favours_the_first, orders=2).score(saying("a", "b", "c", "d"))
    assert {trajectory.reward for trajectory in judged} == {0.85}
    # What positions do cancels out of the mean; that nothing else moves the votes is not sure after two orders.
    assert all(t.judgement and 0 < (t.judgement.standard_error or 0) < 0.05 for t in judged)
    assert judged.judgement
    assert [warning for warning in judged.judgement.warnings if "contradict each other" in warning]


async def test_identical_members_are_shown_once_and_share_the_score():
    judged = await Judge(prefers_length).score(saying("aa", "b", "aa"))
    assert [trajectory.reward for trajectory in judged] == [0.2, 0.1, 0.2]
    assert judged.trajectories[0].judgement == judged.trajectories[2].judgement


@pytest.mark.parametrize(
    ("texts", "reason"),
    [(("a", "a", "a"), "identical to every other member"), (("a",), "there is no other trajectory to compare it with")],
)
async def test_a_group_without_a_difference_asks_nobody_and_scores_nobody(texts, reason):
    judged = await Judge(never).score(saying(*texts))
    assert (judged.judgement.status, judged.judgement.reason, judged.judgement.calls) == ("degenerate", reason, 0)
    assert all(t.reward is None and t.judgement and t.judgement.reason == reason for t in judged)


async def test_failed_rollouts_are_not_judged():
    group = saying("a", "bb", "ccc")
    group.trajectories[1].status, group.trajectories[1].status_reason = "failed", "out of memory"
    judged = await Judge(prefers_length).score(group)
    assert [trajectory.reward for trajectory in judged] == [0.1, None, 0.3]
    assert judged.trajectories[1].judgement.reason == "the rollout failed: out of memory"
    assert judged.judgement.status == "partial"
    assert "1 of 3" in (judged.judgement.reason or "")
    silent = Trajectory(status="failed", status_reason="no server")
    judged = await Judge(prefers_length).score(TrajectoryGroup([*saying("a"), silent, *saying("bb")]))
    assert [trajectory.reward for trajectory in judged] == [0.1, None, 0.2]
    group.trajectories[2].status = "failed"
    alone = await Judge("constant", orders=1, alone="scored").score(group)
    assert ([each.reward for each in alone], alone.judgement.status) == ([0.5, None, None], "partial")
    lost = await Judge(broken, orders=1, alone="scored").score(group)
    assert "compare" not in (lost.judgement.reason or "compare")


async def test_the_group_that_came_in_stays_as_it_was_and_nothing_of_it_is_lost():
    group = saying("a", "bb", metadata={"task": {"id": 7}}, metrics={"m": 1}, logs=["l"], exceptions=[ValueError("x")])
    first = group.trajectories[0]
    first.reward, first.policy_version, first.metadata, first.logs = 0.25, 3, {"k": [1]}, ["hello"]
    before = group.to_json()
    judged = await Judge(prefers_length).score(group)
    judged.metadata["task"]["id"] = 8  # type: ignore[index,call-overload]
    judged.trajectories[0].logs.append("more")
    judged.trajectories[0].messages_and_choices.pop()
    assert group.to_json() == before
    assert [e.message for e in judged.exceptions] == ["x"]
    assert (judged.metrics, judged.logs) == ({"m": 1}, ["l"])
    one = judged.trajectories[0]
    assert (one.policy_version, one.metadata, one.reward) == (3, {"k": [1]}, 0.1)
    assert one.metrics == {"independent_reward": 0.25}
    assert "independent_reward" not in judged.trajectories[1].metrics


async def test_without_a_quorum_nobody_gets_a_number():
    jurors = [Juror(prefers_length, weight=1.0), Juror(broken, weight=2.0)]
    judged = await Judge(jurors, config=JudgeConfig(quorum=0.5)).score(saying("a", "bb"))
    assert judged.judgement.status == "unscored"
    assert "33% of the jury voted, not 50%" in (judged.judgement.reason or "")
    assert "no idea" in (judged.judgement.reason or "")
    assert all(t.reward is None and t.judgement and len(t.judgement.votes) == 2 for t in judged)
    enough = await Judge(jurors, config=JudgeConfig(quorum=1 / 3)).score(saying("a", "bb"))
    assert [trajectory.reward for trajectory in enough] == [0.1, 0.2]


async def test_a_large_group_is_shown_in_blocks_and_scored_on_one_scale():
    sizes: list[int] = []

    async def best_of_its_prompt_gets_one(messages, schema):
        scored = by_length(messages)
        sizes.append(len(scored))
        return json.dumps({label: 1 + score / 4 - max(scored.values()) / 4 for label, score in scored.items()})

    group = saying(*("x" * length for length in range(1, 21)))
    judge = Judge(best_of_its_prompt_gets_one, orders=2)
    judged = await judge.score(group)
    rewards = [trajectory.reward or 0.0 for trajectory in judged]
    assert sizes == [7, 7, 6] * 2
    assert [after - before for before, after in itertools.pairwise(rewards)] == pytest.approx([0.025] * 19)
    assert set(judge.position_bias) == {6, 7}


async def test_a_refusal_is_answered_with_what_is_missing(endpoint):
    endpoint.script = [lambda _: says("I'm sorry, I can't."), scores(0.5)]
    judged = await judge_of(endpoint, orders=1).score(saying("a", "b"))
    assert [trajectory.reward for trajectory in judged] == [0.5, 0.5]
    first, second = endpoint.requests
    *same, refusal, repair = second["messages"]
    assert same == first["messages"]
    assert refusal == {"role": "assistant", "content": "I'm sorry, I can't."}
    assert all(label in repair["content"] for label in labels_in(first))
    assert judged.judgement.calls == 2


async def test_a_reply_that_is_cut_off_is_never_scored_in_part_and_is_told_so(endpoint):
    def first_half(request):
        answer = scores(0.75, 0.25)(request)
        (choice,) = answer.body["choices"]
        choice["finish_reason"], choice["message"]["content"] = (
            "length",
            re.sub("}.*", "}", choice["message"]["content"]),
        )
        return answer

    endpoint.script = [first_half, scores(0.75)]
    judged = await judge_of(endpoint, orders=1).score(saying("a", "b"))
    assert "it was cut off at the token limit" in endpoint.requests[1]["messages"][-1]["content"]
    assert [trajectory.reward for trajectory in judged] == [0.75, 0.75]
    endpoint.script = [first_half]
    judged = await judge_of(endpoint, orders=1).score(saying("a", "b"))
    assert [trajectory.reward for trajectory in judged] == [None, None]
    assert "cut off at the token limit" in (judged.judgement.reason or "")


async def test_a_wrong_key_is_an_error_of_the_first_group_and_no_other_is_asked(endpoint):
    endpoint.script = [fails(401, "bad key")]
    judge = judge_of(endpoint, orders=1)
    assert judge.stopped is None
    for _ in range(3):
        with pytest.raises(JudgeError, match="bad key") as error:
            await judge.score(saying("a", "b"))
        assert "Check the API key" in error.value.remedy
        assert isinstance(error.value.__cause__, PermanentError)
    assert len(endpoint.requests) == 1
    assert judge.stopped is not None
    assert "bad key" in judge.stopped.message


async def test_a_probe_asks_every_model_once_and_names_the_fallback_that_fails(endpoint):
    endpoint.script = [lambda r: fails(404, "gone")(r) if r["model"] == "lost" else says('{"ready": true}')]
    jurors = [
        Juror(["openai/judge", "openai/lost"], params=endpoint.params),
        Juror("openai/judge", 2, 3, endpoint.params),
    ]
    probes = await Judge([*jurors, "stand-in"]).probe()
    found = [(probe.model, "gone" in probe.problem) for probe in probes]
    assert found == [("openai/judge", False), ("openai/lost", True)]
    assert len(endpoint.requests) == 2
    with pytest.raises(JudgeError, match="gone"):
        await Judge([jurors[0], Juror("openai/lost", params=endpoint.params)]).probe()


def of(role: str, text: str = "bb", **metadata) -> Trajectory:
    return Trajectory(
        messages_and_choices=[{"role": "user", "content": "Hi"}, {"role": role, "content": text}], metadata=metadata
    )


def with_item(item) -> TrajectoryGroup:
    group = saying("a", "b")
    group.trajectories[1].messages_and_choices.append(item)
    return group


@pytest.mark.parametrize(
    ("group", "told"),
    [
        (TrajectoryGroup([*saying("a"), Trajectory(), *saying("bb")]), "trajectory 1 "),
        (TrajectoryGroup([]), "Give gavel"),
        (TrajectoryGroup(exceptions=[OSError()]), "Mend what"),
        (TrajectoryGroup([of("assistant"), of("asistant")]), "1 .*user, asistant.*Rename asistant to assistant"),
        (TrajectoryGroup(of("assistant", n, task={"user": "?", "reference": n}) for n in "ab"), "not comparable"),
        *(
            (with_item(item), r"trajectory 1 .* which is no message.*await tools\.answer\(call\)")
            for item in ("On Friday.", None, [{"role": "assistant", "content": "On Friday."}], {"x": 1})
        ),
    ],
)
async def test_a_group_that_cannot_be_judged_is_an_error_that_names_the_trajectory_and_what_to_do(group, told):
    with pytest.raises(JudgeError, match=f"(?s){told}"):
        await Judge(never).score(group)


async def test_an_answer_may_have_another_role_of_an_agent():
    judged = await Judge(prefers_length).score(TrajectoryGroup([of("bot"), of("ai", "a")]))
    assert [trajectory.reward for trajectory in judged] == [0.2, 0.1]


@pytest.mark.parametrize(
    "options",
    [
        {"orders": 0},
        {"mode": "best"},
        {"alone": "maybe"},
        {"rubric": " "},
        {"concurrency": 0},
        {"temperature": 0.1},
        {"config": JudgeConfig(rubric="@nowhere.md")},
        {"config": JudgeConfig(caps={"no such flag": 0.5})},
    ],
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(JudgeError):
        Judge("stand-in", **options)


class OneTooMany:
    def __call__(self, messages, schema, model):
        return "hi"


@pytest.mark.parametrize("model", [lambda messages: "hi", OneTooMany()], ids=["too few", "too many"])
def test_a_callable_that_does_not_take_messages_and_schema_is_refused(model):
    Judge(lambda *both: "hi")
    for models in (model, ["stand-in", model]):
        with pytest.raises(JudgeError, match=r"judge\(messages, schema\)"):
            Judge(models)


async def test_keywords_stand_above_the_settings_and_what_neither_names_has_its_default(tmp_path):
    rubric = tmp_path / "rubric.md"
    rubric.write_text("Be brief.")
    config = JudgeConfig(
        models="stand-in,constant", rubric=f"@{rubric}", orders=3, seed=5, quorum=0.5, max_tokens=9, params={"top_p": 1}
    )
    judge = Judge(orders=4, seed=0, config=config)
    assert [(juror.model, juror.params) for juror in judge.jurors] == [
        (m, {"top_p": 1}) for m in ("stand-in", "constant")
    ]
    assert (judge.orders, judge.rubric.text, judge.budget.max_tokens) == (4, "Be brief.", 9)
    expected = {"orders": [4, 4], "seed": 0, "quorum": 0.5, "mode": "groupwise", "alone": "unscored"}
    assert judge.settings.items() >= expected.items()
    assert Judge("constant", rubric="Be long.", config=config).rubric.text == "Be long."
    moved = {"top_p": 1, "api_base": "http://127.0.0.1:1/v1", "api_key": "sk-1"}
    assert config.model_copy(update={"params": moved}).build().settings == config.build().settings
    assert judge.settings == {**config.build().settings, "orders": [4, 4], "seed": 0}
    assert Judge("constant", rubric="Be long.", config={"orders": 2}).orders == 2
    with pytest.raises(JudgeError, match="Did you mean orders"):
        Judge("constant", rubric="Be long.", config={"order": 2})


RULES = "- ends with a message"


async def test_one_line_scores_a_group(endpoint):
    endpoint.script = [scores(0.5)]
    judged = await ruler_score_group(
        saying("a", "b"),
        "openai/judge",
        extra_litellm_params={**endpoint.params, "temperature": 0.25},
        rubric="Be kind.",
        swallow_exceptions=True,
    )
    assert [trajectory.reward for trajectory in judged] == [0.5, 0.5]
    assert all(request["temperature"] == 0.25 for request in endpoint.requests)


async def test_a_judge_that_fails_raises_unless_told_otherwise():
    with pytest.raises(JudgeError, match="no idea"):
        await ruler_score_group(saying("a", "b"), broken)
    judged = await ruler_score_group(saying("a", "b"), broken, swallow_exceptions=True)
    assert all(t.reward is None and t.judgement and "no idea" in (t.judgement.reason or "") for t in judged)


async def test_debug_prints_the_votes_and_writes_them_to_the_logs(capsys):
    group = TrajectoryGroup([desk("refund"), desk("deny")])
    judged = await ruler_score_group(group, "stand-in", rubric=RULES, debug=True)
    printed = capsys.readouterr().out.splitlines()
    for number, trajectory in enumerate(judged, start=1):
        votes = [line for line in trajectory.logs if ", order " in line]
        assert len(votes) == 2
        own = [line for line in printed if f"trajectory {number}:" in line]
        assert own == [f"[RULER] trajectory {number}: {line}" for line in [*votes, f"{trajectory.reward:g}"]]


async def test_without_a_model_the_default_is_asked(monkeypatch):
    with pytest.raises(JudgeError, match="OPENAI_API_KEY"):
        await ruler_score_group(saying("a", "b"))
    with pytest.raises(JudgeError, match="GAVEL_JUDGE_MODEL"):
        Judge()
    monkeypatch.setenv("GAVEL_JUDGE_MODEL", "constant")
    assert [trajectory.reward for trajectory in await ruler_score_group(saying("a", "b"))] == [0.5, 0.5]
    assert Judge().names == ["gavel/constant"]


async def test_bare_message_lists_are_scored_in_order_and_nothing_to_score_is_no_error():
    assert await ruler([]) == []
    assert (await ruler_score_group(TrajectoryGroup([], metadata={"task": 1}))).metadata == {"task": 1}
    lists = [[*OPENING, {"role": "assistant", "content": text}] for text in ("Done.", "")]
    good, bad = await ruler(lists, "stand-in", rubric=RULES, tools=TOOLS, orders=1)
    assert good.score > bad.score
    assert good.explanation
