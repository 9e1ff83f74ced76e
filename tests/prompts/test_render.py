import jinja2
import pytest

from gavel.prompts import render, template_id


def test_a_template_is_filled_with_its_values():
    text = render("judge/repair.j2", problem="it is empty", labels=["K7QX", "W3RT"], states=False)
    assert "it is empty" in text
    assert "K7QX, W3RT" in text


def test_a_missing_value_is_an_error_not_a_blank():
    with pytest.raises(jinja2.UndefinedError):
        render("judge/repair.j2", labels=["K7QX"])


def test_a_value_that_looks_like_a_template_stays_text():
    text = render("judge/repair.j2", problem="{{ 7 * 7 }} <b>&", labels=["K7QX"], states=False)
    assert "{{ 7 * 7 }} <b>&" in text


def test_a_missing_template_is_named():
    with pytest.raises(jinja2.TemplateNotFound, match="nowhere"):
        render("judge/nowhere.j2")


def test_an_id_names_the_template_and_its_content():
    name, _, digest = template_id("judge/group.j2").partition("@")
    assert name == "judge/group.j2"
    assert len(digest) == 12
    assert template_id("judge/system.j2") != template_id("judge/group.j2")
