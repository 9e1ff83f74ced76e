"""Sessions of the pages."""

import re
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.service.engine.page_session import SECONDS, is_valid, issue, key_id_in
from gavel.judge.service.schemas.records import KeyScope
from gavel.judge.service.store.key_store import Key, token_hash

NOW = time.time()
KEY = Key("4f1c", "a key", token_hash("gavel_4f1c_secret"), KeyScope(), NOW, None, 0.0, 0)


def test_a_session_is_valid_until_its_time_is_over():
    session = issue(KEY, NOW)
    assert key_id_in(session) == KEY.id
    assert [is_valid(KEY, session, NOW + later) for later in (0, SECONDS - 2, SECONDS)] == [True, True, False]


@pytest.mark.parametrize("name", ["4f1c", "settings:a.b-c", "schlüssel", "鍵"])
def test_a_key_of_any_name_has_sessions_that_fit_a_cookie(name: str):
    key = replace(KEY, id=name)
    session = issue(key, NOW)
    assert re.fullmatch(r"[0-9a-f.]+", session)
    assert (key_id_in(session), is_valid(key, session, NOW)) == (name, True)


def test_it_is_one_key_s_alone_and_ends_with_it():
    session = issue(KEY, NOW)
    assert not is_valid(replace(KEY, token_hash=token_hash("other")), session, NOW)
    assert not is_valid(replace(KEY, id="other"), session, NOW)
    assert not is_valid(replace(KEY, revoked_at=NOW), session, NOW)


@given(st.text(max_size=200))
def test_any_other_text_is_none(text: str):
    assert key_id_in(text) != KEY.id
    assert not is_valid(KEY, text, NOW)
    assert not is_valid(KEY, f"{issue(KEY, NOW).partition('.')[0]}.{text}", NOW)
    assert not is_valid(KEY, f"{issue(KEY, NOW)}{text or 'x'}", NOW)
