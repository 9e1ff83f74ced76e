from gavel.llm.types import count_images, text_of

PARTS = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}, {"type": "text", "text": "b"}]


def test_text_and_images_are_found_in_content_of_either_form():
    assert text_of({"role": "user", "content": "a"}) == "a"
    assert text_of({"role": "user", "content": PARTS}) == "a\nb"
    assert text_of({"role": "assistant", "content": None}) == ""
    assert count_images([{"content": PARTS}, {"content": "a"}, {"content": PARTS}]) == 2
