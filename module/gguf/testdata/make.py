"""Writes quantised.gguf with the gguf package: blocks of each type that this package converts, and the values that the
gguf package computes for them, under "expected.NAME".

    pip install gguf && python make.py
"""

import gguf
import numpy as np

rng = np.random.default_rng(7)
writer = gguf.GGUFWriter("quantised.gguf", "llama")
writer.add_uint32("llama.block_count", 2)
writer.add_string("general.name", "test model")
writer.add_float32("llama.rope.freq_base", 10000.0)
writer.add_bool("tokenizer.ggml.add_bos_token", True)
writer.add_array("tokenizer.ggml.tokens", ["<s>", "</s>", "é", ""])
writer.add_array("tokenizer.ggml.scores", [0.0, -1.5, 2.25, 3.0])
writer.add_uint64("test.large", 2**63 + 1)
writer.add_int8("test.small", -5)

for name in ("Q4_0", "Q8_0", "Q4_K", "Q6_K"):
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows, blocks = 3, 512 // block
    raw = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    halves = {"Q4_0": [0], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}[name]
    for at in halves:  # scales are finite
        scale = rng.uniform(-0.1, 0.1, (rows, blocks, 1)).astype(np.float16)
        raw[:, :, at : at + 2] = scale.view(np.uint8)
    raw = raw.reshape(rows, blocks * size)
    writer.add_tensor(name.lower(), raw, raw_dtype=kind)
    writer.add_tensor("expected." + name.lower(), gguf.quants.dequantize(raw, kind))
writer.add_tensor("half", rng.normal(size=(2, 5)).astype(np.float16))
writer.add_tensor("ints", np.arange(7, dtype=np.int32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
