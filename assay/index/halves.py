"""A float16, given as its bits, as float32, inside compiled loops: numba knows no float16 on CPUs, but LLVM does."""

import platform

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.extending import intrinsic


@intrinsic
def _by_instruction(_, bits):  # type: ignore[no-untyped-def]
    """One conversion for eight of them, where the compiler makes vectors of the loop."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), code


@njit(inline="always")
def _by_shifts(half):  # type: ignore[no-untyped-def]
    """Of a finite one: its exponent is 112 short of where float32 expects it. Three operations on integers."""
    bits = np.uint32(half)
    magnitude = np.uint32((bits & np.uint32(0x7FFF)) << np.uint32(13)).view(np.float32) * np.float32(2.0**112)
    return -magnitude if bits & np.uint32(0x8000) else magnitude


def _has_instruction() -> bool:
    """Without it LLVM would call a function of a library that numba does not bring."""
    return platform.machine() in ("aarch64", "arm64") or bool(binding.get_host_cpu_features().get("f16c"))


wide = _by_instruction if _has_instruction() else _by_shifts
