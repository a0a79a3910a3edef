"""Runs vLLM's engine in this process and prints one line of JSON: the seconds of its start, the tokens of greedy
prompts, and tokens per second.

    python engine.py MODEL [--attach SOCKET NAME] [--dtype TYPE] [--speed]
"""

from __future__ import annotations

import argparse
import json
import os
import time

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

PROMPTS = [[1, 5, 9, 20], [7, 7, 300], [42, 4000, 4001, 4002, 17]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--attach", nargs=2, metavar=("SOCKET", "NAME"))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--speed", action="store_true", help="measure tokens per second with 8 requests of 64 tokens")
    options = parser.parse_args()

    from vllm import LLM, SamplingParams

    extra = {}
    if options.attach:
        socket, name = options.attach
        extra = {"load_format": "sharedtensor", "model_loader_extra_config": {"model": name, "socket": socket}}
    begin = time.monotonic()
    llm = LLM(options.model, enforce_eager=True, max_model_len=512, dtype=options.dtype, **extra)
    started = time.monotonic() - begin

    def generate(prompts: list[list[int]], tokens: int) -> list[list[int]]:
        settings = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
        found = llm.generate([{"prompt_token_ids": p} for p in prompts], settings, use_tqdm=False)
        return [list(each.outputs[0].token_ids) for each in found]

    answer = {"start": round(started, 2), "tokens": generate(PROMPTS, 16)}
    if options.speed:
        generate(PROMPTS, 4)
        begin = time.monotonic()
        made = generate([[100 + i, 5, 9] for i in range(8)], 64)
        answer["tokens_per_second"] = round(sum(map(len, made)) / (time.monotonic() - begin), 1)
    print("RESULT " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
