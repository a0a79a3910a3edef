"""One rank of a gloo mesh that publishes DTensors: python dtensor_program.py SOCKET RANK RANKS FILE."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import sharedtensor as st
from sharedtensor import shards


def refused(text: str, do: Any) -> None:
    try:
        do()
    except (st.CapabilityError, st.IncompatibleError) as err:
        assert text in str(err), err
        return
    raise AssertionError("it was not refused")


def main() -> None:
    socket, rank, ranks, file = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    whole = torch.arange(16.0).reshape(4, 4)
    sharded, replicated = distribute_tensor(whole, mesh, [Shard(0)]), distribute_tensor(whole, mesh, [Replicate()])
    client: Any = st.connect(socket, framework="torch")
    name = f"replicated {rank} of {ranks}"
    client.publish(name, {"w": replicated, "p": torch.nn.Parameter(replicated)})
    model = client.acquire(name)
    assert torch.equal(model["w"], whole) and torch.equal(model["p"], whole)
    assert torch.equal(st.from_array(replicated), whole)
    entries: list[Any] = [
        lambda: client.publish("x", {"w": sharded}),
        lambda: client.create("x", {"w": sharded}),
        lambda: client.call("none", sharded),
        lambda: st.state_dict({"w": sharded}),
        lambda: st.from_array(sharded),
        lambda: st.empty_like(sharded),
        lambda: st.to_dlpack(sharded),
    ]
    for entry in entries:
        if ranks > 1:
            refused("DTensor", entry)
    if ranks == 1:
        assert torch.equal(st.from_array(sharded), whole)
    # The parts are published by rank.
    at = (rank * 4 // ranks, 0)
    declared = {"w": shards.Shard((4, 4), at)}
    local = {"w": sharded.to_local()}
    shards.publish(client, f"parts of {ranks}", local, rank=rank, count=ranks, step=1, shards=declared)
    if rank == 0:
        shards.join(client, f"parts of {ranks}", count=ranks, step=1)
        assert (shards.assemble(client.acquire(f"parts of {ranks}"), "w") == whole.numpy()).all()
    # A module that FSDP2 has divided keeps its parameters.
    module = torch.nn.Linear(4, 4, bias=False)
    torch.distributed.fsdp.fully_shard(module, mesh=mesh)
    assert isinstance(module.weight, DTensor)
    client.publish(f"weights {rank} of {ranks}", {"weight": whole})
    refused("weight of the module is a", lambda: st.load_into(module, f"weights {rank} of {ranks}", client=client))
    assert isinstance(module.weight, DTensor)
    full = torch.nn.Linear(4, 4, bias=False)
    st.load_into(full, f"weights {rank} of {ranks}", client=client)
    assert torch.equal(full.weight, whole)
    dist.barrier()
    client.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
