import httpx
import pytest

from gavel.base.secrets import HIDDEN
from gavel.trainer.deploy.host import HostRefusal, json_request, refused, repeated
from tests.fake_server import Answer, Call, FakeServer


class Host(FakeServer):
    def __init__(self, *answers: Answer) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked = 0

    def respond(self, call: Call) -> Answer:
        self.asked += 1
        return self.answers.pop(0) if self.answers else Answer({"ok": True})


BUSY = Answer({"error": {"message": "slow down"}}, 429, {"Retry-After": "0"})
BROKEN = Answer({"error": "oh"}, 500)


async def ask(host: Host, **given: object) -> object:
    async with httpx.AsyncClient(base_url=host.url) as client:
        return await repeated(lambda: json_request(client, "POST", "/x", {}), **given)  # type: ignore[arg-type]


async def test_a_busy_or_broken_host_is_asked_again() -> None:
    host = Host(BUSY, BROKEN)
    assert await ask(host) == {"ok": True}
    assert host.asked == 3
    host.close()


async def test_a_creation_is_not_repeated_after_a_500() -> None:
    host = Host(BUSY, BROKEN)
    with pytest.raises(HostRefusal) as refusal:
        await ask(host, creates=True)
    assert (refusal.value.status, host.asked) == (500, 2)
    host.close()


async def test_a_creation_is_looked_up_after_a_500_before_it_is_repeated() -> None:
    host, found = Host(BROKEN), [None, {"ok": "found"}]

    async def find() -> object:
        return found.pop()

    assert await ask(host, creates=True, find=find) == {"ok": "found"}
    assert host.asked == 1
    host.close()


async def test_a_refusal_is_not_repeated_and_says_what_to_do() -> None:
    host = Host(Answer({"error": {"message": "bad key"}}, 401))
    with pytest.raises(HostRefusal) as refusal:
        await ask(host)
    error = refused("the model cannot be made", refusal.value)
    assert host.asked == 1
    assert "401 bad key" in error.message
    assert "API key" in error.remedy
    host.close()


async def test_patience_ends() -> None:
    host = Host(*[BROKEN] * 50)
    with pytest.raises(HostRefusal):
        await ask(host, patience=0.2)
    assert host.asked < 50
    host.close()


def test_a_key_that_a_host_repeats_is_hidden_and_its_own_words_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class SdkError(Exception):
        status_code = 401
        body = {"error": {"message": "no such key: a-key-of-the-tests", "type": "x"}}  # noqa: RUF012

    monkeypatch.setenv("SOME_API_KEY", "a-key-of-the-tests")
    for error in (SdkError("Error code: 401 - {…}"), HostRefusal(401, "no such key: a-key-of-the-tests")):
        told = refused("it cannot be read", error)
        assert told.message == f"it cannot be read: 401 no such key: {HIDDEN}"
        assert told.remedy


def test_a_line_that_is_cut_names_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    assert "proxy" not in refused("it does not answer", HostRefusal(0, "ConnectError")).remedy
    monkeypatch.setenv("HTTPS_PROXY", "http://user:PLANTED@127.0.0.1:1")
    remedy = refused("it does not answer", HostRefusal(0, "ConnectError")).remedy
    assert "HTTPS_PROXY" in remedy
    assert "PLANTED" not in remedy
