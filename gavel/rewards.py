"""`from gavel.rewards import ruler_score_group`: the place where code written for ART looks for it."""

from gavel.judge.ruler import ruler, ruler_score_group

__all__ = ["ruler", "ruler_score_group"]
