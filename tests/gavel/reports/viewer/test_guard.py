import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from gavel.reports.viewer.guard import COOKIE, Guard

TOKEN = "the-token-of-the-address"


def client(token, host="127.0.0.1:8095"):
    app = Starlette(routes=[Route("/{path:path}", lambda request: PlainTextResponse("shown"), methods=["GET", "POST"])])
    return TestClient(Guard(app, token), base_url=f"http://{host}", follow_redirects=False)


@pytest.mark.parametrize("host", ["evil.example:8095", "127.0.0.1.evil.example", "192.168.0.1:8095"])
def test_another_name_that_leads_here_is_refused(host):
    assert client(None, host).get("/").status_code == 421


def test_a_token_is_needed_once_and_leaves_the_address():
    asked = client(TOKEN, "box.example")
    assert asked.get("/").status_code == 403
    assert asked.get("/?token=wrong").status_code == 403
    answer = asked.get(f"/groups?q=a%26b&token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/groups?q=a%26b")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert asked.get("/groups").text == "shown"
    assert TestClient(asked.app, base_url="http://box", cookies={COOKIE: "wrong"}).get("/").status_code == 403


def test_forms_of_other_sites_are_refused():
    asked = client(None)
    assert asked.post("/x", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert asked.post("/x", headers={"origin": "http://evil.example"}).status_code == 403
    assert asked.post("/x", headers={"origin": "http://127.0.0.1:8095"}).status_code == 200


def test_every_answer_forbids_scripts_of_others():
    for answer in (client(None).get("/"), client(None, "evil").get("/"), client(TOKEN).get("/")):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
