"""Makes a small Llama with random weights and a tokenizer of one word for each token, for engines to serve.

python make_model.py FOLDER [--layers 8] [--seed 0]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=options.hidden,
        intermediate_size=options.hidden * 11 // 4,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 64,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=None,
        dtype="bfloat16",
        # Random weights of the usual size make each next token depend on the last one only. Larger ones make the
        # tokens depend on the whole model, so that two versions give different texts.
        initializer_range=0.08,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(options.folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", bos_token="w0").save_pretrained(options.folder)
    print(f"{options.folder}: {sum(p.numel() for p in model.parameters()) * 2 / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
