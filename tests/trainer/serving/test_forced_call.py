"""The tokens that open a call, in real chat formats."""

import pytest

from gavel.trainer.serving.forced_call import call_opening
from tests.trainer.conftest import TOOLS


@pytest.mark.parametrize(
    ("name", "ends"), [(None, '<tool_call>\n{"name": "'), ("look_up_order", '<tool_call>\n{"name": "look_up_order')]
)
def test_a_call_opens_as_the_format_writes_it(policy, name, ends):
    text = policy.decode(call_opening(policy.renderer, TOOLS, name))
    assert text.endswith(ends)
    assert text.count("<tool_call>") == 1


class Wordless:
    """Opens an answer otherwise than it shows one."""

    def render_ids(self, messages, *, tools=None, add_generation_prompt=False):
        return [9] if add_generation_prompt else [1, 2, 3]


def test_a_format_that_opens_otherwise_has_no_such_beginning():
    assert call_opening(Wordless(), TOOLS, None) == []  # type: ignore[arg-type]
