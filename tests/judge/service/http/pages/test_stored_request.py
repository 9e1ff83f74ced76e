"""What pages know of a stored request."""

from gavel.judge.service.http.pages.views import StoredRequest
from gavel.judge.service.schemas.bodies import ScoreRequest
from gavel.judge.service.store.tables import compress


def test_it_has_names_and_options_and_no_transcript():
    messages = [{"role": "user", "content": "secret words"}]
    trajectories = [{"id": "a", "messages": messages}, {"messages": messages}]
    criteria = ["Is short.", {"name": "kind", "text": "Is kind.", "weight": 2}]
    request = ScoreRequest.model_validate({"trajectories": trajectories, "rubric": "Be good.", "criteria": criteria})
    read = StoredRequest.read(compress(request.model_dump_json(exclude_defaults=True).encode()))
    assert read is not None
    assert (read.ids, read.rubric) == (["a", "1"], "Be good.")
    assert read.listed_criteria == [("criterion 1", "Is short.", 1.0), ("kind", "Is kind.", 2.0)]
    assert "secret" not in read.model_dump_json()


def test_what_this_version_cannot_read_is_none():
    assert StoredRequest.read(compress(b'{"trajectories": 5}')) is None
