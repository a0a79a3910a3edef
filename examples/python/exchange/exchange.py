"""The PyTorch half of two small programs that hand each other weights without a copy; main.go is the other half.

python examples/python/exchange/exchange.py SOCKET
"""

import sys

import torch

import sharedtensor as st

with st.connect(sys.argv[1]) as client:
    module = torch.nn.Sequential()
    module.add_module("fc", torch.nn.Linear(256, 1024))
    with torch.no_grad():
        module.fc.weight.fill_(0.25)
    print("to go: version", st.share_module(module, "from-python", client=client).version, flush=True)
    weights = client.acquire("from-go", wait=60)  # what Go published, in place
    print("from go:", weights["half"].tolist(), flush=True)
    print("sum:", module(torch.ones(256)).sum().item() > 0, flush=True)
    sys.stdin.readline()  # holds both until its input ends
