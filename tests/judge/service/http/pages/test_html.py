"""How pages are rendered."""

from starlette.requests import Request

from gavel.judge.service.http.pages.routes import page


def test_what_cannot_be_encoded_is_shown_as_a_mark():
    request = Request({"type": "http", "headers": []})
    problem = {"title": "Not Found", "detail": "there is no \ud800.", "remedy": ""}
    assert "There is no ?." in bytes(page(request, "problem.html.j2", status=404, problem=problem).body).decode()
