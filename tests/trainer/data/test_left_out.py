"""The reasons for leaving something out: keys, sentences and the table of docs/metrics.md."""

import re
from pathlib import Path

from gavel.trainer.data.left_out import LeftOut, sentence_of

PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()


def test_a_key_is_short_and_a_sentence_counts_groups_or_trajectories():
    for reason in LeftOut:
        assert re.fullmatch(r"[a-z_]{5,25}", reason.value)
        assert reason.metric == f"left_out/{reason.value}"
        assert reason.sentence.startswith(("groups ", "members ", "trajectories "))
    assert len({reason.sentence for reason in LeftOut}) == len(LeftOut)


def test_the_page_lists_every_reason_with_its_sentence_and_no_other():
    table = PAGE.partition("### Reasons")[2].partition("## ")[0]
    assert re.findall(r"^\| `(\w+)` \| (.*) \|$", table, flags=re.MULTILINE) == [(r.value, r.sentence) for r in LeftOut]


def test_the_sentence_of_an_unknown_key_is_the_key():
    assert sentence_of("no_signal") == "groups whose members all have the same score"
    assert sentence_of("all members identical") == "all members identical"
