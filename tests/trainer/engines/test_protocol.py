from gavel.trainer.engines.protocol import DEADLINE, deadline


def test_a_long_turn_may_take_its_time_and_work_without_tokens_the_least():
    assert deadline() == deadline(0) == DEADLINE
    assert deadline(1024) < 900
    assert 2 * 3600 < deadline(32_768) < 3 * 3600
    assert deadline(5, 32_768, 7) == deadline(32_768)
