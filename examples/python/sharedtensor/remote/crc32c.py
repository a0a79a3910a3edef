"""CRC-32C (Castagnoli) with numpy, because the standard library lacks it.

A checksum is linear: that of a block is combined from those of its parts, which are computed side by side. The module
google_crc32c replaces this one if it is installed.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

_POLYNOMIAL = 0x82F63B78
_LANE = 256  # bytes of a part

Words = np.ndarray[Any, np.dtype[np.uint32]]


def _make_table() -> Words:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = ((table >> 1) ^ (table & 1) * np.uint32(_POLYNOMIAL)).astype(np.uint32)
    return table


_TABLE = _make_table()
_PLAIN = [int(n) for n in _TABLE]


def _columns(matrix: Words) -> Words:
    """Returns the tables of a linear map on 32 bits: one for each byte of the input."""
    tables = np.zeros((4, 256), np.uint32)
    for bit in range(32):
        byte, within = divmod(bit, 8)
        values = np.arange(256)
        tables[byte, values >> within & 1 == 1] ^= matrix[bit]
    return tables


@functools.cache
def _shift(doublings: int) -> tuple[Words, Words]:
    """Returns the effect of 2**doublings zero bytes on the register: of each bit, and as tables."""
    if doublings == 0:
        bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
        matrix = (bits >> 8) ^ _TABLE[bits & 255]
    else:
        half = _shift(doublings - 1)
        matrix = _apply(half[1], half[0])
    matrix = matrix.astype(np.uint32)
    return matrix, _columns(matrix)


def _apply(tables: Words, values: Words) -> Words:
    out: Words = tables[0][values & 255] ^ tables[1][values >> 8 & 255]
    out ^= tables[2][values >> 16 & 255] ^ tables[3][values >> 24]
    return out


def _bytewise(register: int, data: memoryview) -> int:
    for byte in data:
        register = register >> 8 ^ _PLAIN[(register ^ byte) & 255]
    return register


def _skip(register: int, length: int) -> int:
    """Returns the register after `length` zero bytes."""
    value = np.array([register], np.uint32)
    for doublings in range(length.bit_length()):
        if length >> doublings & 1:
            value = _apply(_shift(doublings)[1], value)
    return int(value[0])


def _extend(crc: int, data: bytes | bytearray | memoryview) -> int:
    view = memoryview(data).cast("B")
    register = crc ^ 0xFFFFFFFF
    lanes = 1 << max(len(view) // _LANE, 1).bit_length() - 1
    while lanes > 16:
        block = lanes * _LANE
        while len(view) >= block:
            register = _skip(register, block) ^ _block(np.frombuffer(view[:block], np.uint8).reshape(lanes, _LANE))
            view = view[block:]
        lanes //= 2
    return _bytewise(register, view) ^ 0xFFFFFFFF


def _block(lanes: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    """Returns the register after all lanes, from 0."""
    registers = np.zeros(len(lanes), np.uint32)
    for column in np.ascontiguousarray(lanes.T):
        registers = (registers >> 8) ^ _TABLE[(registers ^ column) & 255]
    doublings = _LANE.bit_length() - 1
    while len(registers) > 1:
        registers = _apply(_shift(doublings)[1], registers[0::2]) ^ registers[1::2]
        doublings += 1
    return int(registers[0])


def _find_native() -> Any:
    try:
        return importlib.import_module("google_crc32c")
    except ImportError:
        return None


_native = _find_native()


def extend(crc: int, data: bytes | bytearray | memoryview) -> int:
    """Returns the checksum of the bytes with the checksum `crc`, followed by `data`."""
    if _native is None:
        return _extend(crc, data)
    return int(_native.extend(crc, bytes(data)))
