"""vLLM's own fingerprint of the configuration that decides the layout of weights."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any


def of(vllm_config: Any, model_config: Any) -> dict[str, Any]:
    """Returns vLLM's WeightCacheKey of a configuration: checkpoint, architecture, data type, quantisation, rank and
    number of ranks, kernels, and the release of vLLM. It has to be called before the weights are loaded, and after the
    process groups exist."""
    from vllm.distributed import (
        get_pp_group,
        get_tensor_model_parallel_rank,
        get_tensor_model_parallel_world_size,
    )
    from vllm.model_executor.model_loader.weight_cache.protocol import WeightCacheKey

    parallel = vllm_config.parallel_config
    options = {
        "tp_size": get_tensor_model_parallel_world_size(),
        "tp_rank": get_tensor_model_parallel_rank(),
        "pp_size": get_pp_group().world_size,
        "pp_rank": get_pp_group().rank_in_group,
        "cache_config": vllm_config.cache_config,
        "enable_expert_parallel": parallel.enable_expert_parallel,
        "expert_placement_strategy": parallel.expert_placement_strategy,
        "kernel_config": getattr(vllm_config, "kernel_config", None),
    }
    known = inspect.signature(WeightCacheKey.from_model_config).parameters  # 0.32 has fewer than 0.33
    made = WeightCacheKey.from_model_config(model_config, **{k: v for k, v in options.items() if k in known})
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(made)))
    return {"engine": "vllm", **plain}


def rank_name(name: str, vllm_config: Any) -> str:
    """Returns the name that a worker's tensors are published under."""
    parallel = vllm_config.parallel_config
    return name if parallel.world_size == 1 else f"{name}/rank{parallel.rank}"
