"""Judges without a model: rules that read a rubric, a constant control, and simulated judges with known faults.

    gavel.Judge("stand-in")    scores by the rules that it understands in the rubric
    gavel.Judge("constant")    gives every member the same score

Importing this package makes both known by name.
"""

from functools import partial

from gavel.judge.offline import stand_in
from gavel.llm.local_models import register

for _name in stand_in.MODELS:
    register(_name, partial(stand_in.reply, _name))
