"""RULER as ART calls it, by Gavel's judge."""

from gavel.compat.art.rewards.ruler import DEFAULT_RUBRIC, ruler, ruler_score_group

__all__ = ["DEFAULT_RUBRIC", "ruler", "ruler_score_group"]
