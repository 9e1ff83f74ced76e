"""The counter of tensors' bytes, against what PyTorch's own profiler counts."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from gavel.trainer.tensor_bytes import TensorBytes


def profiled_peak(work) -> int:
    """By the allocator's events."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        work()
    results: Any = found.profiler.kineto_results  # type: ignore[union-attr]
    live = peak = 0
    for event in sorted((e for e in results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


@settings(max_examples=10, deadline=None)
@given(rows=st.integers(1, 50), width=st.integers(1, 40), layers=st.integers(1, 4), norm=st.booleans())
def test_the_peak_is_the_allocators(rows, width, layers, norm):
    def work() -> None:
        x = torch.zeros(rows, width)
        for _ in range(layers):
            x = torch.nn.functional.gelu(torch.nn.Linear(width, width)(x))
            x = torch.nn.functional.layer_norm(x, (width,)) if norm else x
        x.sum().backward()

    counted, allocated = TensorBytes.peak_of(work), profiled_peak(work)
    assert counted <= allocated <= 1.3 * counted + 512  # which holds what kernels use within themselves, too


def test_views_share_a_storage_and_tensors_made_before_do_not_count():
    earlier = torch.zeros(1000)
    with TensorBytes() as counted:
        parts = [earlier.view(10, 100), earlier[:10], earlier.T]
        assert counted.live == 0
        own = torch.zeros(100)
        parts.append(own.view(10, 10))
        assert counted.live == 400
        del own
        assert counted.live == 400, "a view holds the storage"
        parts.clear()
        assert counted.live == 0
    assert counted.peak == 400


def test_meta_tensors_count_as_if_they_had_values_and_questions_about_these_are_answered():
    with TensorBytes() as counted:
        values = torch.zeros(64, 64, device="meta")
        assert bool((values > 1).all()) is True
        assert values.sum().item() == 1
        assert torch.equal(values, values)
    assert counted.peak >= 64 * 64 * 4


def test_grouped_products_of_any_type_have_their_shape_on_the_meta_device():
    rows, weights = torch.zeros(12, 8, device="meta"), torch.zeros(4, 8, 16, device="meta", requires_grad=True)
    ends = torch.zeros(4, dtype=torch.int32, device="meta")
    with TensorBytes():
        found = torch.nn.functional.grouped_mm(rows.requires_grad_(), weights, offs=ends)
        found.sum().backward()
    assert found.shape == (12, 16)
    assert rows.grad is not None
    assert weights.grad is not None
    assert (rows.grad.shape, weights.grad.shape) == (rows.shape, weights.shape)
