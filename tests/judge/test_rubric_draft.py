import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.errors import JudgeError
from gavel.judge.rubric import Criterion, Rubric
from gavel.judge.rubric_draft import DraftError, draft_prompt, draft_rubric, draft_schema, read_draft
from gavel.llm.cassette import Cassette
from gavel.llm.client import Client
from tests.endpoint import says

TEXT = "- Reads the order first.\n- Tells the customer what was done: name: the amount."
TWO = [{"name": "looks", "text": "Reads the order.", "weight": 2}, {"name": "tells", "text": "Says so.", "weight": 1}]


def test_a_text_is_asked_for_and_read():
    assert '{"text": "<the rubric>"}' in draft_prompt("Refunds.", criteria=False)[0]["content"]
    assert read_draft(json.dumps({"text": TEXT}), criteria=False) == Rubric(TEXT)


def test_criteria_are_asked_for_and_read_with_their_weights():
    words = draft_prompt("Refunds for {{ all }}.", criteria=True)[0]["content"]
    assert "Refunds for {{ all }}." in words
    assert '{"text": "<the rubric>"}' not in words
    read = read_draft(f"```json\n{json.dumps({'criteria': TWO})}\n```", criteria=True)
    assert read.criteria == (Criterion("looks", "Reads the order.", 2), Criterion("tells", "Says so.", 1))


def test_what_was_only_thought_is_no_draft():
    reply = f'<think>{{"text": "a"}}</think>{json.dumps({"text": "b"})}'
    assert read_draft(reply, criteria=False) == Rubric("b")
    with pytest.raises(DraftError):
        read_draft('{"text": "a"}</think>', criteria=False)


@pytest.mark.parametrize(
    ("reply", "criteria", "problem"),
    [
        ("", False, "no JSON object"),
        (TEXT, False, "no JSON object"),
        ('{"text": "Reads the ord', False, "breaks off"),
        ('{"text": " "}', False, "the rubric is empty"),
        ('{"text": "a", "text": "b"}', False, "twice"),
        ('{"rubric": "a"}', False, "rubric: Extra"),
        (json.dumps({"criteria": TWO}), False, "criteria where a text was asked for"),
        (json.dumps({"text": "x" * 5000}), False, "5,000 characters long, and 4,000 are the most"),
        ('{"text": "a"}', True, "it has 0 criteria, not 2 to 10"),
        (json.dumps({"criteria": TWO[:1]}), True, "it has 1 criteria, not 2 to 10"),
        (json.dumps({"criteria": [*TWO, TWO[0]]}), True, "two criteria have the name looks"),
        (json.dumps({"criteria": [{**one, "weight": 0} for one in TWO]}), True, "sum to 0"),
        (json.dumps({"criteria": [{**one, "text": ""} for one in TWO]}), True, "has no text"),
    ],
)
def test_what_is_no_rubric_is_no_draft(reply, criteria, problem):
    with pytest.raises(DraftError, match=problem):
        read_draft(reply, criteria=criteria)


@given(st.text(max_size=40), st.booleans())
def test_any_reply_is_a_usable_rubric_or_a_draft_error(reply, criteria):
    for text in (reply, json.dumps({"text": reply}), json.dumps({"criteria": [*TWO, {**TWO[0], "name": reply}]})):
        try:
            rubric = read_draft(text, criteria=criteria)
        except DraftError:
            continue
        assert bool(rubric.criteria) == criteria
        assert Rubric.of(rubric.dump().encode().decode()) == rubric


async def test_a_draft_that_breaks_the_rules_goes_back_with_the_reason(endpoint):
    endpoint.script = [
        lambda _: says(json.dumps({"criteria": TWO[:1]})),
        lambda _: says(json.dumps({"criteria": TWO})),
    ]
    rubric = await draft_rubric(Client("openai/judge", endpoint.params), "The returns desk.", criteria=True)
    assert [criterion.name for criterion in rubric.criteria] == ["looks", "tells"]
    first, second = endpoint.requests
    assert first["response_format"]["json_schema"]["schema"] == draft_schema(criteria=True)
    assert "The returns desk." in first["messages"][0]["content"]
    assert second["messages"][1] == {"role": "assistant", "content": json.dumps({"criteria": TWO[:1]})}
    assert second["messages"][2]["content"].startswith("That reply cannot be used: it has 1 criteria, not 2 to 10.\n")


async def test_a_model_that_drafts_no_rubric_in_time_is_an_error(endpoint):
    endpoint.script = [lambda _: says("I cannot.")]
    with pytest.raises(DraftError, match="openai/judge drafted no rubric: it holds no JSON object"):
        await draft_rubric(Client("openai/judge", endpoint.params), "The returns desk.", content_retries=1)
    assert len(endpoint.requests) == 2


async def test_a_draft_is_paid_for_once_with_a_cassette(endpoint, tmp_path):
    endpoint.script = [lambda _: says(json.dumps({"text": TEXT}))]
    client = Client("openai/judge", endpoint.params, cassette=Cassette(tmp_path / "c.sqlite"))
    drafts = [await draft_rubric(client, "The returns desk.") for _ in range(2)]
    assert drafts == [Rubric(TEXT)] * 2
    assert len(endpoint.requests) == 1


async def test_who_cannot_draft_is_told_before_anyone_is_asked():
    with pytest.raises(JudgeError, match="gavel/stand-in goes by rules and cannot draft"):
        await draft_rubric(Client("stand-in"), "The returns desk.")
    with pytest.raises(JudgeError):
        await draft_rubric(Client("openai/o3"), "The returns desk.")
    with pytest.raises(JudgeError, match="no description"):
        await draft_rubric(Client("stand-in"), " ")
