"""What a judge is shown: prompts that fit its context, no secret, and nobody whom it cannot see whole."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.errors import ContextTooSmallError, JudgeError
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.judge.prompt.fenced_transcript import read_transcripts
from gavel.judge.prompt.truncate import count_tokens
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from tests.endpoint import fails, says, scores
from tests.fake_server import Answer, Call, FakeServer
from tests.judge.groups import Watches, choice, saying


class Reads:
    """A judge that scores by what a member says first, and remembers what it was shown."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.shown: list[int] = []

    async def __call__(self, messages, schema):
        self.prompts.append("".join(message["content"] for message in messages))
        attempts = read_transcripts(messages[1]["content"])
        self.shown.append(len(attempts))
        return json.dumps({label: float(one[0].events[-1].text.split()[0]) for label, one in attempts.items()})


def long_group(members: int, words: int):
    return saying(*(f"{n / 100} says {'word ' * (words + n)}" for n in range(members)))


@pytest.mark.parametrize("context", [2_000, 4_000, 16_000])
async def test_no_prompt_is_longer_than_the_context_less_the_reply(context):
    reads = Reads()
    judged = await Judge(Juror(reads, context=context), orders=2).score(long_group(8, 3_000))
    assert judged.judgement.status == "scored"
    reply = min(1000 + 200 * min(reads.shown), context // 2)
    assert max(map(count_tokens, reads.prompts)) <= (context - reply) / 1.2
    assert "were shortened to fit" in judged.judgement.warnings[0]


async def test_a_context_too_small_for_two_members_is_an_error_that_says_so():
    reads = Reads()
    with pytest.raises(ContextTooSmallError):
        await Judge(Juror(reads, context=400)).score(long_group(3, 50))
    assert reads.prompts == []


def refuses_above(limit: int, words: str):
    """A server whose context is `limit` tokens, and which says so in these words or not at all."""

    def step(request):
        tokens = sum(count_tokens(message["content"]) for message in request["messages"])
        return (fails(400, words) if tokens > limit else scores(0.2, 0.4, 0.6))(request)

    return step


@pytest.mark.parametrize("words", ["maximum context length is 6000 tokens", "the prompt is too long"])
async def test_a_server_that_has_less_room_than_was_thought_is_asked_again_with_less(endpoint, words):
    endpoint.script = [refuses_above(6000, words)]
    judge = Judge(Juror("openai/of-unknown-context", params=endpoint.params), orders=2)
    judged = await judge.score(long_group(3, 6_000))
    assert judged.judgement.status == "scored"
    assert judged.judgement.calls == 2, "what was refused is no call that was answered"
    refused = len(endpoint.requests)
    again = await judge.score(long_group(3, 5_000))
    assert again.judgement.status == "scored"
    assert len(endpoint.requests) == refused + 2, "what the server has room for is remembered"


def verdict(text: str) -> str:
    """Scores for all members that the request at the end of the prompt names."""
    labels = re.findall(r"trajectories: ([\w, ]+)\.", text)[-1].split(", ")
    return json.dumps({"scores": [{"trajectory_id": n, "explanation": "", "score": 0.5} for n in labels]})


class Ollama(FakeServer):
    """Speaks Ollama's own chat API and the OpenAI-compatible one: of a prompt beyond its context it reads the end."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.read: list[int] = []
        super().__init__()

    def respond(self, call: Call) -> Answer:
        if call.path == "/api/show":
            info = {"general.architecture": "qwen3", "qwen3.context_length": 32_768}
            return Answer({"model_info": info, "template": "{{ .Prompt }}", "capabilities": ["completion"]})
        self.requests.append(request := call.json)
        context = min(request.get("options", {}).get("num_ctx", 4096), 32_768)
        text = "\n".join(message["content"] for message in request["messages"])
        tokens = count_tokens(text)
        if tokens > context:
            text = text[:16] + text[len(text) - int(len(text) * context / tokens) :]
            tokens = context
        self.read.append(tokens)
        if call.path == "/api/chat":
            message = {"role": "assistant", "content": verdict(text)}
            counts = {"prompt_eval_count": tokens, "eval_count": 20}
            return Answer({"model": request["model"], "message": message, "done": True, **counts})
        return says(verdict(text), {"prompt_tokens": tokens, "completion_tokens": 20, "total_tokens": tokens + 20})


@pytest.fixture
def ollama(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ollama]:
    server = Ollama()
    monkeypatch.setenv("OLLAMA_API_BASE", server.url)
    yield server
    server.close()


def group_of(words: int):
    return saying(*(f"{n} " + "a word or two more " * (words // 5) for n in range(4)))


async def test_ollama_is_told_how_long_the_prompt_is(ollama):
    judged = await Judge(Juror("ollama_chat/judge", context=32_768), orders=2).score(group_of(2_500))
    assert judged.judgement.status == "scored"
    assert judged.judgement.warnings == []
    assert {request["options"]["num_ctx"] for request in ollama.requests} <= {24_576, 32_768}
    assert min(ollama.read) > 10_000, "it has read all"


@pytest.mark.parametrize("words", [2_500, 1_000], ids=["far too long", "a little too long"])
async def test_a_prompt_that_a_server_cuts_is_shortened_and_asked_again(ollama, words):
    params = {"api_base": f"{ollama.url}/v1", "api_key": "none"}
    judge = Judge(Juror(f"openai/cut-{words}", params=params), orders=2)
    judged = await judge.score(group_of(words))
    assert judged.judgement.status == "scored"
    assert "were shortened to fit" in judged.judgement.warnings[0]
    whole = [tokens for tokens in ollama.read if tokens < 4_096]  # the second order may be asked after the first answer
    assert len(whole) == 2, "it has read all of the prompts that gave the scores"
    assert len(ollama.read) <= 4
    assert judged.judgement.calls == len(ollama.requests), "what was cut is paid for"
    before = len(ollama.requests)
    assert (await judge.score(group_of(words - 5))).judgement.status == "scored"
    assert len(ollama.requests) == before + 2, "what the server has room for is remembered"


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
