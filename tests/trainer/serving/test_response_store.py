"""The memory of responses."""

import pytest

from gavel.trainer.serving import responses_api as response_store
from gavel.trainer.serving.errors import BadRequest
from gavel.trainer.serving.responses_api import ResponseStore

USER = {"role": "user", "content": "Hello"}
ITEM = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}


def test_what_is_not_stored_is_refused_by_name():
    store = ResponseStore()
    with pytest.raises(BadRequest, match="resp_9"):
        store.conversation("resp_9")
    with pytest.raises(BadRequest, match="msg_9"):
        store.resolved([{"type": "item_reference", "id": "msg_9"}])


def test_the_longest_unused_response_is_forgotten_first_with_its_items(monkeypatch):
    monkeypatch.setattr(response_store, "_STORED", 2)
    store = ResponseStore()
    for number in (1, 2):
        store.add(f"resp_{number}", [USER], [ITEM | {"id": f"msg_{number}"}])
    store.conversation("resp_1")
    store.add("resp_3", [USER], [ITEM | {"id": "msg_3"}])
    assert store.conversation("resp_1")
    assert store.resolved([{"type": "item_reference", "id": "msg_1"}])
    with pytest.raises(BadRequest):
        store.conversation("resp_2")
    with pytest.raises(BadRequest):
        store.resolved([{"type": "item_reference", "id": "msg_2"}])
