"""What every wing needs: errors, extras, secrets, text, files, addresses, and plain functions beside the event loop."""

import asyncio
import contextvars
import gc
import importlib
import json
import os
import pickle
import pkgutil
import re
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gavel
from gavel.base import extras
from gavel.base.errors import GavelError
from gavel.base.files import new_folder, replacing, write_atomically
from gavel.base.network import is_loopback, is_on_this_machine, past_proxies
from gavel.base.plain_calls import PlainCalls
from gavel.base.secrets import HIDDEN, hide_secrets, without_secrets
from gavel.llm.client import Client
from gavel.llm.errors import LlmError
from tests.endpoint import limit_attempts, says
from tests.limits import HANG_SECONDS


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


WHEEL = "gavel_rl-0.1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (None, "pip install 'gavel-rl[train]'"),
        ({"url": "file:///src/gavel", "dir_info": {"editable": True}}, "pip install -e '/src/gavel[train]'"),
        ({"url": f"file:///dist/{WHEEL}", "archive_info": {}}, f"pip install '/dist/{WHEEL}[train]'"),
        (
            {"url": f"https://host/{WHEEL}", "archive_info": {}},
            f"pip install 'gavel-rl[train] @ https://host/{WHEEL}'",
        ),
    ],
)
def test_the_line_works_from_where_gavel_was_installed(monkeypatch, origin, line):
    monkeypatch.setattr(extras, "_direct_url", lambda: json.dumps(origin) if origin else None)
    assert extras.install_line("train") == line


SECRETS = {"MY_API_KEY": "a-value-of-mine", "HF_TOKEN": "a-value-of-mine-too", "AWS_ACCESS_KEY_ID": "AKIA00000000"}
ENVIRONMENT = SECRETS | {"LOCAL_KEY": "none", "KEYBOARD": "a-keyboard"}


@pytest.mark.parametrize(
    ("words", "secret"),
    [
        *((f"the key '{key}' is wrong", key) for key in SECRETS.values()),
        *((f"the key '{key}' is wrong", key) for key in ("sk-proj-0123456789abcdef", "hf_0123456789abcdef")),
        ("http://me:planted@store:9000/b is away", "me:planted"),
        ("PUT https://s/o?part=1&X-Amz-Signature=planted&x=1", "planted"),
        *((words, "\0") for words in ("none of this is a-keyboard", "task-0123456789abcdef", "sk-short", "")),
        ("http://a/b?size=3", "\0"),
    ],
)
def test_a_key_or_what_opens_an_address_is_hidden_and_other_words_stay(words: str, secret: str) -> None:
    assert without_secrets(words, ENVIRONMENT) == words.replace(secret, HIDDEN)


def test_a_traceback_shows_no_key_of_what_led_to_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "planted-secret")
    first, second = ValueError("401 planted-secret", 7), KeyError("planted-secret")
    second.__cause__ = first
    hide_secrets(second)
    assert (first.args, second.args) == ((f"401 {HIDDEN}", 7), (HIDDEN,))


@pytest.mark.parametrize("durable", [False, True])
def test_a_write_replaces_the_whole_file_and_a_failed_one_leaves_the_old(tmp_path: Path, durable: bool):
    path = tmp_path / "run.json"
    write_atomically(path, "a longer text")
    with pytest.raises(ZeroDivisionError), replacing(path) as unfinished:  # noqa: PT012 - a part was written
        unfinished.write_text("half")
        raise ZeroDivisionError
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]
    assert path.read_text() == "a longer text"
    write_atomically(path, b"\xff", durable=durable)
    assert path.read_bytes() == b"\xff"


def test_a_file_of_secrets_is_never_readable_by_others(tmp_path: Path):
    before = os.umask(0)
    try:
        write_atomically(tmp_path / "keys", "secret", mode=0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o600


def test_a_folder_appears_whole_and_what_a_killed_writer_left_of_it_is_removed(tmp_path: Path):
    path, left = tmp_path / "deep" / "model[1]", tmp_path / "deep" / ".model[1].0123.unfinished"
    left.mkdir(parents=True)
    with new_folder(path, durable=True) as unfinished:
        (unfinished / "weights").write_text("half")
        with pytest.raises(BlockingIOError), new_folder(path):
            pass
        assert not path.exists()
    assert [each.name for each in path.parent.iterdir()] == ["model[1]"]
    assert (path / "weights").read_text() == "half"


NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def proxy(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, NOBODY)
        monkeypatch.setenv(name.lower(), NOBODY)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "internal.example")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
@pytest.mark.parametrize("model", ["openai/judge", "hosted_vllm/judge"])
async def test_a_judge_on_this_machine_is_asked_past_a_proxy(endpoint, proxy, host, model) -> None:
    endpoint.script = [lambda _: says("{}")]
    params = endpoint.params | {"api_base": endpoint.params["api_base"].replace("127.0.0.1", host)}
    reply = await Client(model, params).ask([{"role": "user", "content": "Hello"}], {"type": "object"})
    assert (reply.text, len(endpoint.requests)) == ("{}", 1)
    assert os.environ["NO_PROXY"].startswith("internal.example,")


@pytest.mark.parametrize(
    ("model", "address", "named"),
    [
        ("ollama_chat/m", NOBODY, None),
        ("hosted_vllm/m", f"{NOBODY}/v1", None),
        ("ollama_chat/m", "http://judge.invalid", "HTTP_PROXY"),
        ("openai/m", "https://judge.invalid/v1", "HTTPS_PROXY"),
    ],
)
async def test_an_error_names_the_proxy_only_where_one_is_asked(model, address, named, proxy, monkeypatch) -> None:
    limit_attempts(monkeypatch, 1)
    monkeypatch.setenv("OLLAMA_API_BASE", address)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    params = {} if model.startswith("ollama") else {"api_base": address}
    with pytest.raises(LlmError) as error:
        await Client(model, params).ask([{"role": "user", "content": "Hello"}], {"type": "object"})
    assert re.findall(r"\w+_PROXY", error.value.remedy) == ([named, "NO_PROXY"] if named else [])


@pytest.mark.parametrize(
    ("given", "extended"),
    [
        ({}, "localhost,127.0.0.1,::1"),
        ({"NO_PROXY": "a, 127.0.0.1", "no_proxy": "b"}, "b,a,127.0.0.1,localhost,::1"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_what_is_set_stays(given, extended) -> None:
    assert past_proxies(given) == {"NO_PROXY": extended, "no_proxy": extended}
    assert past_proxies(past_proxies(given)) == past_proxies(given)


@pytest.mark.parametrize(
    ("host", "loops", "is_here"),
    [
        *((host, True, True) for host in ("localhost", "LOCALHOST.", "127.0.0.1", "127.8.9.1", "::1")),
        *((host, False, True) for host in ("0.0.0.0", socket.gethostname())),  # open to others
        *((host, False, False) for host in ("", "gpu-box", "10.0.0.1", "localhost.example.com", "127.0.0.1.a.com")),
    ],
)
def test_which_hosts_are_this_machine(host: str, loops: bool, is_here: bool) -> None:
    assert is_loopback(host) == loops
    assert is_on_this_machine(f"http://[{host}]:80/v1" if ":" in host else f"https://{host}:80/v1") == is_here
    assert not is_on_this_machine(f"http://[{host}")


NAME = contextvars.ContextVar("name", default="")


@pytest.fixture
def calls():
    made = PlainCalls()
    yield made
    made.close()


async def test_calls_share_one_thread_and_see_the_callers_context(calls):
    NAME.set("mine")
    found = [await calls.run(lambda: (threading.get_ident(), NAME.get())) for _ in range(3)]
    assert {name for _, name in found} == {"mine"}
    assert {ident for ident, _ in found} ^ {threading.get_ident()} == {found[0][0], threading.get_ident()}


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
async def test_what_a_function_raises_is_raised_where_it_is_awaited(calls, error):
    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        await calls.run(fail)
    assert await calls.run(lambda: 1) == 1


async def test_what_is_given_up_holds_up_no_other_and_is_not_begun_later(calls):
    release, begun = threading.Event(), []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await calls.run(lambda: release.wait(HANG_SECONDS))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await calls.run(lambda: begun.append(1))
    release.set()
    assert await calls.run(lambda: "goes on") == "goes on"
    assert begun == []


MESSAGES: Any = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]


def double(number: int) -> int:
    """Doubles a number."""
    return 2 * number


class Backend:
    async def train(self, model: object, *rest: object) -> list[object]:
        return list(rest)


MODEL = gavel.TrainableModel(name="model", project="tests", base_model="embedded/returns-desk")
MODEL._backend = Backend()  # type: ignore[assignment]  # pyright: ignore[reportPrivateUsage]
TOOLS = gavel.Toolbox([double])
ONE = gavel.Trajectory(messages_and_choices=MESSAGES)
GROUP = gavel.TrajectoryGroup([ONE, ONE])

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: gavel.Trajectory(rewards=1), "rewards"),  # type: ignore[call-arg]
    (lambda: gavel.Trajectory(messages_and_choices="hello"), "'hello'"),  # type: ignore[arg-type]
    (lambda: gavel.Trajectory(status="done"), "'done'"),  # type: ignore[arg-type]
    (lambda: gavel.Trajectory(metadata={"seen": {1, 2}}), "metadata.seen"),  # type: ignore[dict-item]
    (lambda: gavel.Trajectory(step_rewards=[1.0, None]), "step_rewards.1"),  # type: ignore[list-item]
    (lambda: gavel.Trajectory(step_rewards=0.5), "step_rewards"),  # type: ignore[arg-type]
    (lambda: gavel.Task(prompt="2 + 2?"), "prompt"),  # type: ignore[call-arg]
    (lambda: gavel.Task(user="2 + 2?", criteria="right"), "criteria"),  # type: ignore[arg-type]
    (lambda: gavel.TrainConfig(learning_rat=1), "learning_rate"),  # type: ignore[call-arg]
    (lambda: gavel.TrainConfig(learning_rate=-1), "learning_rate is -1"),
    (lambda: gavel.TrajectoryGroup([MESSAGES]), "list"),  # type: ignore[list-item]
    (lambda: gavel.Judge(3), "3"),  # type: ignore[arg-type]
    (lambda: MODEL.train([ONE]), ""),  # type: ignore[list-item]
    (lambda: TOOLS.answer(None), ""),
    (lambda: gavel.ruler_score_group([ONE, ONE], "stand-in"), ""),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "named"), REFUSED)
async def test_what_cannot_be_made_or_done_is_refused_with_a_remedy(make: Callable[[], Any], named: str) -> None:
    with pytest.raises(GavelError) as raised:
        await make()
    assert named in str(raised.value)
    assert raised.value.remedy
    assert "\n" not in raised.value.message
    gc.collect()  # a coroutine that is still to run would warn, which fails here


async def test_settings_in_a_dict_are_a_config() -> None:
    assert await MODEL.train(GROUP, {"beta": 0.1}) == [[GROUP], gavel.TrainConfig(beta=0.1), None]
    with pytest.raises(GavelError, match="bta"):
        await MODEL.train(GROUP, {"bta": 0.1})


def test_values_of_numpy_are_plain_in_metadata() -> None:
    given = {"score": np.float32(0.5), "ids": np.arange(3), "pair": (1, {"sure": np.bool_(True)})}
    made = gavel.Trajectory(metadata=given)  # type: ignore[arg-type]
    assert made.metadata == {"score": 0.5, "ids": [0, 1, 2], "pair": [1, {"sure": True}]}
    assert gavel.Trajectory.from_json(made.to_json()) == made


async def test_arguments_of_a_call_may_be_an_object() -> None:
    call = {"id": "1", "function": {"name": "double", "arguments": {"number": 21}}}
    assert await TOOLS.answer(call) == {"role": "tool", "tool_call_id": "1", "content": "42"}


def test_fields_that_a_later_version_stored_are_left_out() -> None:
    assert gavel.Trajectory.from_json('{"reward": 1.0, "of_later": true}').reward == 1.0
    assert len(gavel.TrajectoryGroup.from_json('{"trajectories": [{}, {}], "format": 9}')) == 2
