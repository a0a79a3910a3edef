"""Times of NVIDIA's tritonclient, unmodified: shm_figures.py grpc|http ADDRESS BYTES ROUNDS prints the medians in microseconds, inline and shared."""

import statistics
import sys
import time

import numpy as np
import tritonclient.utils.shared_memory as shm

kind, address, size, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if kind == "grpc":
    import tritonclient.grpc as triton
else:
    import tritonclient.http as triton

client = triton.InferenceServerClient(address)
x = np.arange(size // 4, dtype="float32")
inline = triton.InferInput("x", list(x.shape), "FP32")
regions = [shm.create_shared_memory_region(n, f"/sharedtensor_figures_{kind}_{n}", size) for n in ["in", "out"]]
try:
    for n in ["in", "out"]:
        client.register_system_shared_memory(n, f"/sharedtensor_figures_{kind}_{n}", size)
    shared = triton.InferInput("x", list(x.shape), "FP32")
    shared.set_shared_memory("in", size)
    out = triton.InferRequestedOutput("output")
    out.set_shared_memory("out", size)
    times = {"inline": [], "shared": []}
    for i in range(rounds + 5):
        begin = time.perf_counter()
        inline.set_data_from_numpy(x)
        y = client.infer("identity", [inline]).as_numpy("output")
        middle = time.perf_counter()
        shm.set_shared_memory_region(regions[0], [x])
        client.infer("identity", [shared], outputs=[out])
        z = shm.get_contents_as_numpy(regions[1], "float32", x.shape)
        end = time.perf_counter()
        assert np.array_equal(x, y) and np.array_equal(x, z)
        if i >= 5:
            times["inline"].append(middle - begin)
            times["shared"].append(end - middle)
    print(*[statistics.median(times[k]) * 1e6 for k in ["inline", "shared"]])
    client.unregister_system_shared_memory()
finally:
    for r in regions:
        shm.destroy_shared_memory_region(r)
