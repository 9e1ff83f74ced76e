"""Judges without a model: for first steps, tests and benchmarks, without an API key.

    gavel.Judge("stand-in", rubric="- calls get_order before refund")   # scores by the rules in the rubric
    gavel.Judge("constant")                                             # gives every member the same score
    gavel.Judge("naive")                                                # rewards flattery and claims: made to be hacked
    gavel.Judge(SimulatedJudge(table, Bias(slope=0.6)))                 # known qualities, known biases and faults

Importing this package registers the first three by name.
"""

from functools import partial

from gavel.judge.offline import stand_in
from gavel.llm.providers import register

for _name in stand_in.MODELS:
    register(_name, partial(stand_in.reply, _name))
