from gavel.reports.message_text import pretty_json, shown_text


def test_contents_of_every_kind_are_text():
    assert shown_text([{"type": "text", "text": "a"}, {"type": "image_url"}, 3]) == "a\n[image_url]\n3"
    assert shown_text({"a": 1}) == '{"a": 1}'
    assert pretty_json('{"a": "ü"}') == '{\n  "a": "ü"\n}'
    assert pretty_json("[" * 100_000) == "[" * 100_000
    assert pretty_json("no json") == "no json"
