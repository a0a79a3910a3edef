"""Writes the files of this folder: python3 make.py, with PyTorch. What they hold is said in read_test.go."""
import collections
import io
import os
import pickle
import zipfile

import torch

here = os.path.dirname(os.path.abspath(__file__))


def save(name, value, **options):
    torch.save(value, os.path.join(here, name), **options)


save("float32.pt", torch.arange(6, dtype=torch.float32).reshape(2, 3))
save("view.pt", torch.arange(24, dtype=torch.int64).reshape(4, 6)[1:3, 2:5].t())
save("bfloat16.pt", torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
save("bool.pt", torch.tensor([True, False, True]))
save("complex64.pt", torch.tensor([1 + 2j, 3 - 4j]))
save("scalar.pt", torch.tensor(7, dtype=torch.uint8))
save("empty.pt", torch.empty(0, 3))
save("parameter.pt", torch.nn.Parameter(torch.ones(2)))
save("protocol4.pt", torch.ones(3, dtype=torch.float64), pickle_protocol=4)
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
with torch.no_grad():
    for p in model.parameters():
        p.fill_(0.5)
save("state_dict.pt", model.state_dict())
tied = torch.ones(2, 2)
save("tied.pt", {"step": 3, "weights": [tied, tied[0]], "lr": 0.25, "note": "\u00fcber", "none": None, "big": 1 << 40, "negative": -300})
save("legacy.pt", torch.ones(2), _use_new_zipfile_serialization=False)
save("module.pt", model)
save("sparse.pt", torch.eye(2).to_sparse())


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/torchsave-executed",)


save("evil.pt", Evil())
save("evil_inside.pt", {"weight": torch.ones(2), "x": Evil()})
