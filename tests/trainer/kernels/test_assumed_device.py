import torch

from gavel.trainer.kernels.assumed_device import assume, device_type
from gavel.trainer.kernels.attention_kernels import CpuFlash, CudaFlash, ScoreForm, kernel_for


def test_meta_tensors_are_computed_as_those_of_the_assumed_device_and_others_as_their_own():
    meta = torch.zeros(1, 2, 4, 16, dtype=torch.bfloat16, device="meta")
    real = torch.zeros(1, 2, 4, 16, dtype=torch.bfloat16)
    assert device_type(meta) == device_type(real) == "cpu"
    with assume("cuda"):
        assert (device_type(meta), device_type(real)) == ("cuda", "cpu")
        assert kernel_for(meta, meta, ScoreForm(1.0)) is CudaFlash
        assert kernel_for(real, real, ScoreForm(1.0)) is CpuFlash
    assert kernel_for(meta, meta, ScoreForm(1.0)) is CpuFlash
