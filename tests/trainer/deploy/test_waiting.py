import pytest

from gavel.trainer.deploy.host import until


async def test_it_waits_until_there_is_a_result_and_tells_each_state_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "PAUSE", 0.0)
    looks = iter([(None, "pending"), (None, "pending"), (None, "starting"), ("here", "running")])
    told: list[str] = []

    async def look() -> tuple[str | None, str]:
        return next(looks)

    assert await until(look, "the endpoint", told.append) == "here"
    assert told == ["waiting for the endpoint: pending", "waiting for the endpoint: starting"]
