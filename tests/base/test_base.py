import importlib
import json
import pickle
import pkgutil

import pytest

import gavel
from gavel.base import extras
from gavel.base.errors import GavelError
from gavel.base.secrets import HIDDEN, hide_secrets, without_secrets
from gavel.base.text import counted


@pytest.mark.parametrize(
    ("number", "noun", "words"),
    [
        (1, "group", "1 group"),
        (0, "group", "0 groups"),
        (1600, "call", "1,600 calls"),
        (1, "reply", "1 reply"),
        (2, "reply", "2 replies"),
        (2, "trajectory", "2 trajectories"),
        (2, "day", "2 days"),
    ],
)
def test_what_is_counted_has_its_number(number: int, noun: str, words: str) -> None:
    assert counted(number, noun) == words


def every_kind() -> list[type[GavelError]]:
    for module in pkgutil.walk_packages(gavel.__path__, "gavel."):
        if module.name.rpartition(".")[2] in ("errors", "exchange", "prompt_cut"):
            importlib.import_module(module.name)
    found: list[type[GavelError]] = [GavelError]
    for kind in found:
        found += kind.__subclasses__()
    return found


@pytest.mark.parametrize("kind", every_kind(), ids=lambda kind: kind.__qualname__)
def test_an_error_of_every_kind_is_the_same_in_another_process(kind: type[GavelError]):
    error = kind.__new__(kind, "what")
    GavelError.__init__(error, "what", "what to do")
    error.__dict__["kind"] = "group-full"
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is kind
    assert (str(found), vars(found)) == (str(error), vars(error))


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (None, "pip install 'gavel-rl[train]'"),
        ({"url": "file:///src/gavel", "dir_info": {"editable": True}}, "pip install -e '/src/gavel[train]'"),
        ({"url": "file:///src/my%20gavel", "dir_info": {}}, "pip install '/src/my gavel[train]'"),
        (
            {"url": "file:///dist/gavel_rl-0.1.0-py3-none-any.whl", "archive_info": {}},
            "pip install '/dist/gavel_rl-0.1.0-py3-none-any.whl[train]'",
        ),
        (
            {"url": "https://host/gavel.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'gavel-rl[train] @ git+https://host/gavel.git@abc'",
        ),
        (
            {"url": "https://host/gavel_rl-0.1.0-py3-none-any.whl", "archive_info": {}},
            "pip install 'gavel-rl[train] @ https://host/gavel_rl-0.1.0-py3-none-any.whl'",
        ),
    ],
)
def test_the_line_works_from_where_gavel_was_installed(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None, line: str
) -> None:
    monkeypatch.setattr(extras, "_direct_url", lambda: json.dumps(origin) if origin else None)
    assert extras.install_line("train") == line


ENVIRONMENT = {
    "MY_API_KEY": "a-value-of-mine",
    "HF_TOKEN": "a-value-of-mine-and-longer",
    "AWS_ACCESS_KEY_ID": "AKIA00000000",
    "LOCAL_KEY": "none",
    "KEYBOARD": "a-keyboard",
}


@pytest.mark.parametrize("secret", [*list(ENVIRONMENT.values())[:3], "sk-proj-0123456789abcdef", "hf_0123456789abcdef"])
def test_a_key_is_hidden(secret: str) -> None:
    assert without_secrets(f"the key '{secret}' is wrong", ENVIRONMENT) == f"the key '{HIDDEN}' is wrong"


@pytest.mark.parametrize(
    "words", ["none of this is a-keyboard", "task-0123456789abcdef", "sk-short", "", "http://a/b?size=3"]
)
def test_other_words_stay(words: str) -> None:
    assert without_secrets(words, ENVIRONMENT) == words


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("http://me:planted@store:9000/b is away", f"http://{HIDDEN}@store:9000/b is away"),
        ("PUT https://s/o?part=1&X-Amz-Signature=planted&x=1", f"PUT https://s/o?part=1&X-Amz-Signature={HIDDEN}&x=1"),
    ],
)
def test_what_opens_an_address_is_hidden(words: str, shown: str) -> None:
    assert without_secrets(words, {}) == shown


def test_a_traceback_shows_no_key_of_what_led_to_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "planted-secret")
    first, second = ValueError("401 planted-secret", 7), KeyError("planted-secret")
    second.__cause__ = first
    hide_secrets(second)
    assert (first.args, second.args) == ((f"401 {HIDDEN}", 7), (HIDDEN,))
