import json

import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from tests.endpoint import scores
from tests.judge.groups import Watches, choice, saying

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
DATA_URL = f"data:image/png;base64,{PIXEL}"
PICTURE = {"type": "image_url", "image_url": {"url": DATA_URL}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}


@pytest.mark.parametrize("part", [PICTURE, AUDIO], ids=["image", "audio"])
async def test_a_member_with_content_that_is_not_shown_is_unscored_and_says_what(part):
    watches, group = Watches(), saying("a", "b", "c")
    asked = {"role": "user", "content": [{"type": "text", "text": "And this?"}, part]}
    group.trajectories[-1].messages_and_choices.insert(-1, asked)
    judged = await Judge(watches).score(group)
    assert [t.reward for t in judged] == [0.5, 0.5, None]
    hidden = judged.trajectories[-1].judgement
    assert hidden.reason == f"unseen content: 1 {part['type']}"
    assert hidden.flags == ["unseen content"]
    assert judged.judgement.status == "partial"
    assert "And this?" not in str(watches.prompts)


async def test_a_task_that_is_a_picture_is_not_judged_blind():
    task = {"role": "user", "content": [PICTURE]}
    group = TrajectoryGroup(Trajectory(messages_and_choices=[task, choice(text)]) for text in ("a cat", "a dog"))
    watches = Watches()
    judged = await Judge(watches).score(group)
    assert watches.prompts == []
    assert [t.reward for t in judged] == [None, None]
    assert judged.judgement.status == "unscored"
    assert judged.judgement.reason == "unseen content: 1 image_url"


async def test_pictures_are_sent_once_and_numbered_in_every_order():
    other = {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "R0lGODlhAQABAAAAACw="}}
    task = {"role": "user", "content": [{"type": "text", "text": "Which?"}, PICTURE]}
    made = {"role": "user", "content": [other, PICTURE]}
    members = [[task, choice("a cat")], [task, made, choice("a dog")]]
    group = TrajectoryGroup(Trajectory(messages_and_choices=items) for items in members)
    watches = Watches()
    judged = await Judge(watches, orders=2, config=JudgeConfig(images="send")).score(group)
    assert judged.judgement.status == "scored"
    for system, user in watches.prompts:
        assert 'An "image" line says which picture stood there' in system["content"]
        text, *parts = user["content"]
        code = text["text"].split("\n")[0].split(" ")[0]
        assert [part.get("text") for part in parts[::2]] == [f"{code} image 1", f"{code} image 2"]
        gif = "data:image/gif;base64,R0lGODlhAQABAAAAACw="
        assert [part["image_url"]["url"] for part in parts[1::2]] == [DATA_URL, gif]
        lines = [line.split(" ")[2] for line in text["text"].splitlines() if line.startswith(f"{code} image")]
        assert sorted(lines) == ["1:", "1:", "2:"]


async def test_no_secret_leaves_for_the_judge():
    watches = Watches()
    group = saying("mail bob@example.com", "use sk-proj-abcdefghijklmnop1234567890")
    group.trajectories[0].tools = [{"function": {"name": "f", "description": "for bob@example.com"}}]
    judged = await Judge(watches, config=JudgeConfig(redact="secrets")).score(group)
    assert judged.judgement.status == "scored"
    prompt = json.dumps(watches.prompts)
    found = [text in prompt for text in ("bob@", "sk-proj", "[e-mail address]", "[OpenAI key]")]
    assert found == [False, False, True, True]


async def test_a_redaction_that_fails_sends_nothing():
    def broken(text):
        raise ValueError("no idea")

    watches = Watches()
    with pytest.raises(JudgeError, match="ValueError: no idea"):
        await Judge(watches, config=JudgeConfig(redact=broken)).score(saying("a", "b"))
    with pytest.raises(JudgeError, match="NoneType"):
        await Judge(watches, config=JudgeConfig(redact=lambda text: None)).score(saying("a", "b"))  # type: ignore[arg-type, return-value]
    assert watches.prompts == []


async def test_votes_name_the_model_that_answered_and_a_change_is_told_once(endpoint, caplog):
    def step(request):
        answer = scores(0.2, 0.4)(request)
        answer.body["model"] = served_by
        return answer

    judge, served_by = Judge(Juror("openai/judge", params=endpoint.params), orders=1), "judge-2026-01"
    endpoint.script = [step]
    first = await judge.score(saying("a", "b"))
    assert first.trajectories[0].judgement.votes[0].served_by == "judge-2026-01"
    assert first.judgement.warnings == []
    served_by = "judge-2026-02"
    second = await judge.score(saying("c", "d"))
    assert second.judgement.warnings == [
        "openai/judge is now served by judge-2026-02, before by judge-2026-01: scores may shift"
    ]
    assert "judge-2026-02" in caplog.text
    assert (await judge.score(saying("e", "f"))).judgement.warnings == []
