"""Writes rounding.json: numbers of float64 and int64, and the codes to which numpy and ml_dtypes round them, and the codes of
NaN in PyTorch.

    pip install numpy ml_dtypes torch && python rounding.py

The numbers are at and beside the middle of two neighbours of the small type, where rounding to float32 first gives another
result. The codes come from exact fractions, because ml_dtypes rounds float64 through float32; float16 must equal numpy's.
"""

import bisect
import json
from fractions import Fraction

import ml_dtypes
import numpy as np
import torch

TYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8_e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "float8_e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
}


def codes(values, dtype):
    with np.errstate(all="ignore"):
        rounded = values.astype(dtype)
    return rounded.view(np.uint16 if dtype.itemsize == 2 else np.uint8)


def exact(value, finite, dtype, unsigned):
    """The code of the nearest positive value, ties to even, and the sign bit."""
    size = Fraction(abs(value))
    above = bisect.bisect_left(finite, size)
    best = min(range(max(above - 1, 0), min(above + 1, len(finite))), key=lambda i: (abs(finite[i] - size), i % 2))
    if unsigned and best == 0:
        return 0
    return best | (int(value < 0) << (8 * dtype.itemsize - 1))


rng = np.random.default_rng(11)
result = {}
for name, dtype in TYPES.items():
    bits = 8 * dtype.itemsize
    every = np.arange(1 << (bits - 1), dtype=np.uint16 if bits == 16 else np.uint8).view(dtype).astype(np.float64)
    finite = every[np.isfinite(every)]
    at = rng.integers(0, len(finite) - 1, 60) if bits == 16 else np.arange(0, len(finite) - 1, 2)
    middle = (finite[at] + finite[at + 1]) / 2
    near = np.concatenate([middle, middle * (1 + 2.0**-40), middle * (1 - 2.0**-40), np.nextafter(middle, 1e9), finite[at]])
    floats = np.concatenate([near, -near])
    floats = floats[floats != 0]
    ties = middle[middle >= 2.0**26]
    whole = np.concatenate([(ties[ties < 2.0**62]).astype(np.int64) + d for d in (-1, 0, 1)] + [np.arange(-20, 20) * 7])
    fractions = [Fraction(float(v)) for v in finite]
    unsigned = "fnuz" in name
    want = [exact(v, fractions, dtype, unsigned) for v in floats.tolist()]
    different = int(np.count_nonzero(codes(floats, dtype) != want))
    print(f"{name}: numpy rounds {different} of {len(want)} numbers through float32")
    assert name != "float16" or not different
    nan = torch.from_numpy(np.array([0x7FC00000, 0xFFC00000], np.uint32).view(np.float32))
    nans = nan.to(getattr(torch, name)).view(torch.uint8).numpy().view(np.uint16 if bits == 16 else np.uint8)
    result[name] = {
        "floats": [float(v).hex() for v in floats],
        "codes": want,
        "integers": [int(v) for v in whole],
        "integer_codes": [exact(int(v), fractions, dtype, unsigned) for v in whole],
    }
    if bits == 8:
        result[name]["nans"] = [int(v) for v in nans]
with open("rounding.json", "w") as out:
    json.dump(result, out, separators=(",", ":"))
    out.write("\n")
