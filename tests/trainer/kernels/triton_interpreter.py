"""Triton's interpreter made to compute what its compiler does, for Liger's kernels on a CPU.

The interpreter of Triton 3.9 keeps float arguments as Python's, has no libdevice, multiplies the bits of bfloat16 as
integers, and cuts off what does not fit bfloat16. Compiled, such an argument is a float32, and bfloat16 is computed in
float32 and rounded to the nearest.
"""

import importlib
from typing import Any

import numpy as np
import pytest
import torch


def compile_like(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the end of the test; TRITON_INTERPRET=1 must be set before Triton is imported."""
    norms, tl, interpreter = (
        importlib.import_module(name)
        for name in ("liger_kernel.ops.rms_norm", "triton.language", "triton.runtime.interpreter")
    )
    handle: Any = interpreter.TensorHandle
    builder: Any = interpreter.InterpreterBuilder
    of_argument, of_pair, cast = interpreter._implicit_cvt, builder.binary_op, builder.cast_impl

    def argument(given: Any) -> Any:
        if isinstance(given, float):
            return tl.tensor(handle(np.array([given], np.float32), tl.float32), tl.float32)
        return of_argument(given)

    def widened(one: Any) -> Any:
        bits = torch.from_numpy(one.data.astype(np.int32) << 16)
        return handle(bits.view(torch.float32).numpy(), tl.float32)

    def rounded(one: Any) -> Any:
        near = torch.from_numpy(np.ascontiguousarray(one.data)).bfloat16()
        return handle(near.view(torch.int16).numpy().view(np.uint16), tl.bfloat16)

    def pair(self: Any, left: Any, right: Any, operation: Any) -> Any:
        if left.dtype.scalar != tl.bfloat16 or operation not in (np.add, np.subtract, np.multiply):
            return of_pair(self, left, right, operation)
        return rounded(of_pair(self, widened(left), widened(right), operation))

    def converted(self: Any, one: Any, to: Any) -> Any:
        if (one.dtype.scalar, to.scalar) == (tl.float32, tl.bfloat16):
            return rounded(one)
        return cast(self, one, to)

    monkeypatch.setattr(interpreter, "_implicit_cvt", argument)
    monkeypatch.setattr(builder, "binary_op", pair)
    monkeypatch.setattr(builder, "cast_impl", converted)
    monkeypatch.setattr(norms, "rsqrt", lambda x: tl.rsqrt(x))
