"""The optimizer in 8 bits: close to the whole one, resumed bit for bit, refused where it cannot be."""

import io
import sys
from dataclasses import replace

import pytest
import torch

from gavel.trainer.config import LoraSettings, Ppo, SftConfig, TrainConfig
from gavel.trainer.data.training_batch import Batch
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.learner.learner import Learner, OptimizerError, check_optimizer, make_optimizer
from gavel.trainer.policy.policy import Policy
from gavel.trainer.sft.sft_batch import as_training
from tests.trainer.learner.test_learner import adapter, flat, make_batch, make_sequences

pytestmark = pytest.mark.slow

CONFIG = TrainConfig(learning_rate=1e-3, optimizer="adamw_8bit")


@pytest.fixture
def bitsandbytes():
    return pytest.importorskip("bitsandbytes")


def a_learner() -> Learner:
    return Learner(Policy(EMBEDDED_POLICY, LoraSettings(rank=64)))


def a_batch(learner: Learner) -> Batch:
    batch = make_batch(make_sequences(learner.policy, [12, 20, 8, 16]), [0.5, -0.5, 1.0, -1.0])
    rewards = [[0.0] * (each.tokens.trained_tokens - 1) + [each.advantage] for each in batch.sequences]
    return Batch([replace(each, rewards=own) for each, own in zip(batch.sequences, rewards, strict=True)])


@pytest.mark.parametrize("loss", [TrainConfig().loss, Ppo()], ids=["grpo", "ppo"])
def test_a_restored_state_of_8_bits_makes_bitwise_the_same_next_update(bitsandbytes, loss):
    config = CONFIG.model_copy(update={"loss": loss})
    through = a_learner()
    batch = a_batch(through)
    through.step(batch, config)
    saved = io.BytesIO()
    torch.save(through.state(), saved)
    weights = adapter(through.policy)
    through.step(batch, config)
    saved.seek(0)
    resumed = a_learner()
    with torch.no_grad():
        for parameter, weight in zip(resumed.policy.parameters(), weights, strict=True):
            parameter.copy_(weight)
    resumed.restore(torch.load(saved, weights_only=True))
    assert resumed.optimizer_name == "adamw_8bit"
    resumed.step(batch, config)
    assert torch.equal(flat(adapter(through.policy)), flat(adapter(resumed.policy)))


def test_a_run_keeps_the_optimizer_that_it_began_with_and_an_unused_one_may_be_exchanged(bitsandbytes):
    learner = a_learner()
    batch = a_batch(learner)
    learner.step(batch, as_training(SftConfig(learning_rate=1e-3), batch))
    with pytest.raises(OptimizerError, match="begun with the optimizer adamw") as error:
        learner.step(batch, CONFIG)
    assert "optimizer='adamw'" in error.value.remedy
    learner.step(batch, TrainConfig(learning_rate=1e-3))


def test_without_bitsandbytes_the_remedy_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(OptimizerError, match="needs bitsandbytes") as error:
        make_optimizer("adamw_8bit", [[torch.nn.Parameter(torch.zeros(1))]])
    assert "pip install bitsandbytes" in error.value.remedy
    with pytest.raises(OptimizerError, match="needs bitsandbytes"):
        check_optimizer("adamw_8bit", "adamw", begun=False)
