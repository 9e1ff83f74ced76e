"""Judges without a model, for first steps without an API key.

    gavel.Judge("stand-in", rubric="- calls get_order before refund")   # scores by the rules in the rubric
    gavel.Judge("constant")                                             # gives every member the same score
    gavel.Judge("naive")                                                # rewards flattery and claims: made to be hacked

Importing this package registers them by name.
"""

from functools import partial

from gavel.judge.offline import stand_in
from gavel.llm.providers import register

for _name in stand_in.MODELS:
    register(_name, partial(stand_in.reply, _name))
