from gavel.llm.cassette import Entry, Question, SqliteStorage
from gavel.llm.types import Reply
from gavel.reports.viewer.group_view import CASSETTE, cassette_of, read_vote
from gavel.scenarios.judgement import Vote

QUESTION = Question(
    "openai/x",
    {"temperature": 0},
    {"type": "object"},
    [{"role": "system", "content": "Judge."}, {"role": "user", "content": [{"type": "text", "text": "<a>"}]}],
)


def kept(path, *texts):
    storage = SqliteStorage(path)
    storage.keep([Entry(QUESTION, Reply(text, 1, 1, None, "stop", "x")) for text in texts])
    storage.close()


def test_a_vote_leads_to_what_its_judge_was_asked_and_said(tmp_path):
    kept(tmp_path / CASSETTE, '{"bad"', '{"scores": {"A": 0.5}}')
    found = read_vote(
        tmp_path / CASSETTE, Vote(score=0.5, position=0, order=0, model="openai/x", reply_key=QUESTION.key)
    )
    assert found is not None
    assert (found.model, found.messages) == ("openai/x", [("system", "Judge."), ("user", "<a>")])
    assert found.replies == ['{"bad"', '{"scores": {"A": 0.5}}']
    assert '"temperature": 0' in found.parameters
    assert read_vote(tmp_path / CASSETTE, Vote(score=0.5, position=0, order=0, model="x", reply_key="other")) is None


def test_the_nearest_cassette_is_taken_and_none_outside_of_the_root(tmp_path):
    root = tmp_path / "runs"
    path = "desk/clerk/trajectories/train/000001.jsonl.zst"
    (root / path).parent.mkdir(parents=True)
    kept(tmp_path / CASSETTE, "outside")
    assert cassette_of(root, path) is None
    kept(root / CASSETTE, "above")
    assert cassette_of(root, path) == root / CASSETTE
    kept(root / "desk" / "clerk" / CASSETTE, "of the run")
    assert cassette_of(root, path) == root / "desk" / "clerk" / CASSETTE
