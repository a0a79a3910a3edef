"""What NVIDIA's tritonclient does, unmodified, with a gateway: triton_client.py grpc|http ADDRESS [OTHER_ADDRESS]"""

import importlib.metadata
import queue
import sys

import ml_dtypes
import numpy as np
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

kind, address = sys.argv[1:3]
floats = tuple(int(n) for n in importlib.metadata.version("tritonclient").split(".")[:2]) >= (2, 47)
if kind == "grpc":
    import tritonclient.grpc as triton
else:
    import tritonclient.http as triton

client = triton.InferenceServerClient(address)


def tensor(name, array, datatype, **how):
    t = triton.InferInput(name, list(array.shape), datatype)
    t.set_data_from_numpy(array, **how)
    return t


def attribute(value, name):
    return value[name] if isinstance(value, dict) else getattr(value, name)


def refused(call, *words):
    try:
        call()
    except InferenceServerException as e:
        for word in words:
            assert word in str(e), (word, str(e))
        return e
    raise AssertionError(f"not refused: {words}")


def step(name):
    print("ok:", name, flush=True)


def health():
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("identity")
    assert client.is_model_ready("identity", "1")
    assert not client.is_model_ready("identity", "7")
    assert not client.is_model_ready("nobody")
    assert not client.is_model_ready("needy")
    step("health")


def metadata():
    m = client.get_server_metadata()
    assert attribute(m, "name") == "sharedtensor", m
    assert "system_shared_memory" in list(attribute(m, "extensions")), m
    m = client.get_model_metadata("mixed")
    inputs = {attribute(t, "name"): (attribute(t, "datatype"), [int(n) for n in attribute(t, "shape")]) for t in attribute(m, "inputs")}
    assert inputs == {
        "x": ("", [-1]), "label": ("BYTES", [1]), "tags": ("BYTES", [-1]), "blob": ("BYTES", [1]), "ints": ("INT32", [-1]),
        "on": ("BOOL", [1]), "deep.rate": ("FP32", [1]), "version": ("INT64", [1]),
    }, inputs
    assert [attribute(t, "name") for t in attribute(client.get_model_metadata("identity"), "outputs")] == ["output"]
    e = refused(lambda: client.get_model_metadata("nobody"), "'nobody' is not found")
    assert e.message().startswith("Request for unknown model"), e  # NVIDIA's examples compare it so
    refused(lambda: client.get_model_metadata("identity", "9"), "version 9")
    c = client.get_model_config("repeat", as_json=True) if kind == "grpc" else client.get_model_config("repeat")
    c = c.get("config", c)
    assert c["name"] == "repeat" and c["model_transaction_policy"]["decoupled"], c
    index = client.get_model_repository_index()
    rows = index.models if kind == "grpc" else index
    state = {attribute(r, "name"): attribute(r, "state") for r in rows}
    assert state["identity"] == "READY" and state["needy"] == "UNAVAILABLE" and "add" not in state, state
    step("metadata")


def datatypes():
    for dtype, name in [
        ("bool", "BOOL"), ("int8", "INT8"), ("int16", "INT16"), ("int32", "INT32"), ("int64", "INT64"), ("uint8", "UINT8"),
        ("uint16", "UINT16"), ("uint32", "UINT32"), ("uint64", "UINT64"), ("float16", "FP16"), ("float32", "FP32"), ("float64", "FP64"),
    ]:
        x = (np.arange(6) % 2 if dtype == "bool" else np.arange(6)).reshape(2, 3).astype(dtype)
        y = client.infer("identity", [tensor("x", x, name)], request_id="r1")
        assert attribute(y.get_response(), "id") == "r1"
        out = y.as_numpy("output")
        assert out.dtype == x.dtype and np.array_equal(out, x), (name, out)
    x = np.array([1.5, -2.0, 3.25], ml_dtypes.bfloat16)
    try:
        bf16 = tensor("x", x, "BF16")
    except InferenceServerException:  # versions before ml_dtypes convert float32
        bf16 = tensor("x", x.astype("float32"), "BF16")
    out = client.infer("identity", [bf16]).as_numpy("output")
    assert np.array_equal(np.asarray(out, "float32"), np.asarray(x, "float32")), out
    for shape in [(0,), (2, 0, 3), (1,) * 7]:
        x = np.zeros(shape, "float32")
        assert client.infer("identity", [tensor("x", x, "FP32")]).as_numpy("output").shape == shape
    large = np.random.default_rng(1).standard_normal((1024, 1024), dtype="float32")
    assert np.array_equal(client.infer("identity", [tensor("x", large, "FP32")]).as_numpy("output"), large)
    step("datatypes")


def outputs():
    a, b = np.arange(16, dtype="int32").reshape(1, 16), np.ones((1, 16), "int32")
    ins = [tensor("INPUT0", a, "INT32"), tensor("INPUT1", b, "INT32")]
    r = client.infer("addsub", ins)
    assert np.array_equal(r.as_numpy("OUTPUT0"), a + b) and np.array_equal(r.as_numpy("OUTPUT1"), a - b)
    r = client.infer("addsub", ins, outputs=[triton.InferRequestedOutput("OUTPUT1")])
    assert r.as_numpy("OUTPUT0") is None and np.array_equal(r.as_numpy("OUTPUT1"), a - b)
    r = client.infer("addsub", ins, outputs=[triton.InferRequestedOutput("OUTPUT0", class_count=2)])
    assert [bytes(v).decode().split(":")[1] for v in r.as_numpy("OUTPUT0").flatten()] == ["15", "14"], r.as_numpy("OUTPUT0")
    step("outputs")


def values():
    ins = [
        tensor("label", np.array(["grüße".encode()], object), "BYTES"), tensor("tags", np.array([b"a", b"", b"ccc"], object), "BYTES"),
        tensor("blob", np.array([b"\x00\xff\x01"], object), "BYTES"), tensor("ints", np.array([1, -2, 5], "int32"), "INT32"),
        tensor("on", np.array([True]), "BOOL"), tensor("deep.rate", np.array([0.5], "float32"), "FP32"),
        tensor("x", np.arange(3, dtype="int8"), "INT8"),
    ]
    r = client.infer("mixed", ins)
    assert r.as_numpy("label")[0].decode() == "grüße"
    assert [bytes(v) for v in r.as_numpy("tags")] == [b"a", b"", b"ccc"]
    assert bytes(r.as_numpy("blob")[0]) == b"\x00\xff\x01"
    assert r.as_numpy("total")[0] == 4 and r.as_numpy("total").dtype == np.int64
    assert np.array_equal(r.as_numpy("halves"), np.array([0.5, -1, 2.5], "float32")) and r.as_numpy("halves").dtype == np.float32
    assert bool(r.as_numpy("on")[0]) and r.as_numpy("rate")[0] == 0.5
    assert np.array_equal(r.as_numpy("x"), np.arange(3, dtype="int8"))
    rate = 2.5 if kind == "http" or floats else 2  # gRPC clients before 2.47 send no floats
    r = client.infer("mixed", [], parameters={"label": "p", "on": True, "deep.rate": rate})
    assert bytes(r.as_numpy("label")[0]) == b"p" and bool(r.as_numpy("on")[0]) and r.as_numpy("rate")[0] == rate and r.as_numpy("x") is None
    x = np.ones(4, "float32")
    assert np.array_equal(client.infer("scale", [tensor("x", x, "FP32")], parameters={"factor": 3}).as_numpy("output"), 3 * x)
    r = client.infer("scale", [tensor("x", x, "FP32"), tensor("factor", np.array([2], "float32"), "FP32")])
    assert np.array_equal(r.as_numpy("output"), 2 * x)
    step("values")


def errors():
    x = tensor("x", np.ones(4, "float32"), "FP32")
    refused(lambda: client.infer("nobody", [x]), "unknown model")
    refused(lambda: client.infer("identity", [tensor("y", np.ones(4, "float32"), "FP32")]), "unexpected inference input 'y'")
    refused(lambda: client.infer("identity", []), "'x'")
    refused(lambda: client.infer("identity", [x], outputs=[triton.InferRequestedOutput("no")]), "unexpected inference output 'no'")
    refused(lambda: client.infer("identity", [x], parameters={"misspelt": 1}), "misspelt")
    refused(lambda: client.infer("identity", [x], model_version="3"), "version 3")
    refused(lambda: client.infer("failing", [x]), "no luck with [4]")
    refused(lambda: client.infer("needy", [x]), "other")
    refused(lambda: client.infer("repeat", [x], parameters={"times": 2}), "decoupled")
    bad = triton.InferInput("x", [4], "FP32")
    bad.set_data_from_numpy(np.ones(4, "float32"))
    bad.set_shape([5])
    refused(lambda: client.infer("identity", [bad]), "16 bytes", "20")
    refused(lambda: client.infer("mixed", [tensor("label", np.ones(1, "int32"), "INT32")]), "BYTES")
    step("errors")


def versions():
    for wanted in ["1", "2"]:
        r = client.infer("mixed", [], model_version=wanted, parameters={"label": "v"})
        assert r.as_numpy("version")[0] == int(wanted) and attribute(r.get_response(), "model_version") == wanted
    r = client.infer("mixed", [], parameters={"label": "v"})
    assert r.as_numpy("version")[0] == 0 and attribute(r.get_response(), "model_version") == "2"
    assert list(attribute(client.get_model_metadata("mixed"), "versions")) == ["1", "2"]
    # identity has no field for the version, so that it has the current one only
    refused(lambda: client.infer("mixed", [], model_version="3", parameters={"label": "v"}), "version 3")
    step("versions")


def repository():
    client.unload_model("addsub")
    assert not client.is_model_ready("addsub")
    refused(lambda: client.infer("addsub", []), "unloaded")
    client.load_model("addsub")
    assert client.is_model_ready("addsub")
    refused(lambda: client.load_model("wrong_model_name"), "failed to load")
    refused(lambda: client.load_model("needy"), "failed to load")
    step("repository")


def statistics():
    def of(name):
        s = client.get_inference_statistics(name, as_json=True) if kind == "grpc" else client.get_inference_statistics(name)
        return s["model_stats"][0]

    before = int(of("identity").get("inference_count", 0))
    client.infer("identity", [tensor("x", np.ones(4, "float32"), "FP32")])
    after = of("identity")
    assert int(after["inference_count"]) == before + 1 and int(after["inference_stats"]["compute_infer"]["ns"]) > 0, after
    every = client.get_inference_statistics(as_json=True) if kind == "grpc" else client.get_inference_statistics()
    assert len(every["model_stats"]) > 3
    step("statistics")


def asynchronous():
    x = np.arange(8, dtype="float32")
    if kind == "grpc":
        got = queue.Queue()
        for i in range(20):
            client.async_infer("scale", [tensor("x", x, "FP32")], lambda result, error: got.put((result, error)), parameters={"factor": 2})
        for i in range(20):
            result, error = got.get(timeout=30)
            assert error is None and np.array_equal(result.as_numpy("output"), 2 * x), error
        client.async_infer("nobody", [tensor("x", x, "FP32")], lambda result, error: got.put((result, error)))
        assert "unknown model" in str(got.get(timeout=30)[1])
    else:
        many = triton.InferenceServerClient(address, concurrency=4)
        waiting = [many.async_infer("scale", [tensor("x", x, "FP32")], parameters={"factor": i}) for i in range(20)]
        for i, w in enumerate(waiting):
            assert np.array_equal(w.get_result().as_numpy("output"), i * x)
        many.close()
    step("async")


def asyncio_client():
    import asyncio
    import importlib

    aio = importlib.import_module(f"tritonclient.{kind}.aio")

    async def run():
        x = np.arange(8, dtype="float32")
        t = aio.InferInput("x", [8], "FP32")
        t.set_data_from_numpy(x)
        async with aio.InferenceServerClient(address) as c:
            results = await asyncio.gather(*[c.infer("identity", [t]) for _ in range(10)])
            assert all(np.array_equal(r.as_numpy("output"), x) for r in results)

    asyncio.run(run())
    step("asyncio")


def compression():
    x = np.zeros(5000, "float32")
    for name in ["gzip", "deflate"]:
        if kind == "grpc":
            r = client.infer("identity", [tensor("x", x, "FP32")], compression_algorithm=name)
        else:
            r = client.infer("identity", [tensor("x", x, "FP32")], request_compression_algorithm=name, response_compression_algorithm=name)
            assert r.get_response() is not None
        assert np.array_equal(r.as_numpy("output"), x)
    step("compression")


def stream():
    got = queue.Queue()
    client.start_stream(callback=lambda result, error: got.put((result, error)))
    x = np.arange(4, dtype="int32")
    for i in range(10):
        client.async_stream_infer("identity", [tensor("x", x + i, "INT32")], request_id=str(i))
    for i in range(10):
        result, error = got.get(timeout=30)
        assert error is None and result.get_response().id == str(i) and np.array_equal(result.as_numpy("output"), x + i), (i, error)
    ins = [tensor("x", x, "INT32"), tensor("times", np.array([3]), "INT64")]
    client.async_stream_infer("repeat", ins, request_id="d", enable_empty_final_response=True)
    for i in range(3):
        result, error = got.get(timeout=30)
        assert error is None and np.array_equal(result.as_numpy("output"), x), error
        assert not result.get_response().parameters["triton_final_response"].bool_param
    result, error = got.get(timeout=30)
    assert error is None and result.get_response().parameters["triton_final_response"].bool_param
    client.async_stream_infer("repeat", ins, parameters={"fail": True})
    for i in range(3):
        assert got.get(timeout=30)[1] is None
    assert "it was to fail" in str(got.get(timeout=30)[1])
    client.async_stream_infer("nobody", ins)
    assert "unknown model" in str(got.get(timeout=30)[1])
    client.async_stream_infer("identity", [tensor("x", x, "INT32")])
    assert np.array_equal(got.get(timeout=30)[0].as_numpy("output"), x), "the stream goes on behind an error"
    client.stop_stream()
    step("stream")


def shared_memory():
    x = np.arange(1 << 18, dtype="float32")
    size = x.nbytes
    a = shm.create_shared_memory_region("in", "/sharedtensor_test_in_" + kind, size + 64)
    b = shm.create_shared_memory_region("out", "/sharedtensor_test_out_" + kind, 2 * size)
    try:
        client.register_system_shared_memory("in", "/sharedtensor_test_in_" + kind, size + 64)
        client.register_system_shared_memory("out", "/sharedtensor_test_out_" + kind, 2 * size)
        refused(lambda: client.register_system_shared_memory("out", "/sharedtensor_test_out_" + kind, 2 * size), "already exists")
        refused(lambda: client.register_system_shared_memory("big", "/sharedtensor_test_out_" + kind, 2 * size + 1), "region")
        refused(lambda: client.register_system_shared_memory("wrap", "/sharedtensor_test_out_" + kind, 2 * size, 2**64 - size), "")
        refused(lambda: client.register_system_shared_memory("path", "/../etc/passwd", 16), "key")
        refused(lambda: client.register_system_shared_memory("none", "/sharedtensor_no_such_thing", 16), "Unable to open")
        status = client.get_system_shared_memory_status(as_json=True)["regions"] if kind == "grpc" else client.get_system_shared_memory_status()
        assert len(status) == 2, status
        shm.set_shared_memory_region(a, [x], offset=64)
        i = triton.InferInput("x", list(x.shape), "FP32")
        i.set_shared_memory("in", size, offset=64)
        o = triton.InferRequestedOutput("output")
        o.set_shared_memory("out", size, offset=size)
        for _ in range(3):
            r = client.infer("identity", [i], outputs=[o])
            assert np.array_equal(shm.get_contents_as_numpy(b, "float32", x.shape, offset=size), x)
            described = r.get_output("output")
            assert list(attribute(described, "shape")) == list(x.shape)
        y = client.infer("identity", [i]).as_numpy("output")
        assert np.array_equal(y, x)
        i.set_shared_memory("in", size, offset=128)
        refused(lambda: client.infer("identity", [i]), "Invalid offset")
        i.set_shared_memory("in", size - 4, offset=64)
        refused(lambda: client.infer("identity", [i]), "bytes of data")
        i.set_shared_memory("in", size, offset=64)
        o.set_shared_memory("out", size - 4)
        refused(lambda: client.infer("identity", [i], outputs=[o]), "should be at least")
        o.set_shared_memory("nowhere", size)
        refused(lambda: client.infer("identity", [i], outputs=[o]), "Unable to find")
        words = np.array([b"one", b"three"], object)
        from tritonclient.utils import serialize_byte_tensor

        raw = serialize_byte_tensor(words)
        shm.set_shared_memory_region(a, [raw])
        t = triton.InferInput("tags", [2], "BYTES")
        t.set_shared_memory("in", raw.item().__len__() if hasattr(raw, "item") else raw.nbytes)
        r = client.infer("mixed", [t], parameters={"label": "l"})
        assert [bytes(v) for v in r.as_numpy("tags")] == [b"one", b"three"]
        refused(lambda: client.register_cuda_shared_memory("c", b"A" * 88, 0, 16), "CUDA")
        client.unregister_system_shared_memory("in")
        refused(lambda: client.infer("identity", [i]), "Unable to find")
        client.unregister_system_shared_memory()
        status = client.get_system_shared_memory_status(as_json=True).get("regions", {}) if kind == "grpc" else client.get_system_shared_memory_status()
        assert len(status) == 0, status
    finally:
        shm.destroy_shared_memory_region(a)
        shm.destroy_shared_memory_region(b)
    step("shared memory")


def json_data():
    x = np.array([[1.5, -2], [3, 1e10]], "float32")
    t = tensor("x", x, "FP32", binary_data=False)
    plain = [triton.InferRequestedOutput("output", binary_data=False)]
    assert np.array_equal(client.infer("identity", [t], outputs=plain).as_numpy("output"), x)
    assert np.array_equal(client.infer("identity", [t]).as_numpy("output"), x)
    for array, name in [(np.array([True, False]), "BOOL"), (np.array([-5, 2**62]), "INT64"), (np.array([2**64 - 1], "uint64"), "UINT64"),
                        (np.array([255], "uint8"), "UINT8"), (np.array([0.1]), "FP64")]:
        out = client.infer("identity", [tensor("x", array, name, binary_data=False)], outputs=plain).as_numpy("output")
        assert np.array_equal(out, array) and out.dtype == array.dtype, (name, out)
    t = tensor("tags", np.array(["ä\"b", "c"], object), "BYTES", binary_data=False)
    r = client.infer("mixed", [t, tensor("x", x, "FP32")], parameters={"label": "l"}, outputs=[
        triton.InferRequestedOutput("tags", binary_data=False), triton.InferRequestedOutput("x", binary_data=True)])
    assert list(r.as_numpy("tags")) == ["ä\"b", "c"] and np.array_equal(r.as_numpy("x"), x)
    odd = np.array([np.nan, np.inf, -np.inf, 1], "float32")
    for t in [tensor("x", odd, "FP32"), tensor("x", odd, "FP32", binary_data=False)]:
        assert np.array_equal(client.infer("identity", [t], outputs=plain).as_numpy("output"), odd, equal_nan=True)
    refused(lambda: client.infer("identity", [tensor("x", x, "FP32")], sequence_id=7), "sequence_id")
    step("JSON data")


def settings():
    trace, logs = client.get_trace_settings(), client.get_log_settings()
    if kind == "grpc":
        trace = {name: list(v.value) for name, v in trace.settings.items()}
        logs = {name: getattr(v, v.WhichOneof("parameter_choice")) for name, v in logs.settings.items()}
    assert trace["trace_level"] == ["OFF"] and logs["log_info"] is True, (trace, logs)
    refused(lambda: client.update_trace_settings(settings={"trace_rate": "5"}), "trace_rate")
    refused(lambda: client.update_log_settings({"log_verbose_level": 1}), "log_verbose_level")
    step("settings")


def batches():
    c = client.get_model_config("rows", as_json=True)["config"] if kind == "grpc" else client.get_model_config("rows")
    assert c["max_batch_size"] == 16 and [int(n) for n in c["input"][0]["dims"]] == [4] and "dynamic_batching" in c, c
    m = client.get_model_metadata("rows")
    t = attribute(m, "inputs")[0]
    assert (attribute(t, "datatype"), [int(n) for n in attribute(t, "shape")]) == ("FP32", [-1, 4]), t
    many = client if kind == "grpc" else triton.InferenceServerClient(address, concurrency=8)
    got = queue.Queue()
    x = [np.full((1 + i % 2, 4), i, "float32") for i in range(8)]
    if kind == "grpc":
        for i in range(8):
            client.async_infer("rows", [tensor("x", x[i], "FP32")], lambda result, error, i=i: got.put((i, result, error)), priority=1 + i % 3)
        results = [got.get(timeout=20) for _ in range(8)]
    else:
        waiting = [many.async_infer("rows", [tensor("x", x[i], "FP32")], priority=1 + i % 3) for i in range(8)]
        results = [(i, w.get_result(), None) for i, w in enumerate(waiting)]
    for i, r, e in results:
        assert e is None and np.array_equal(r.as_numpy("y"), 2 * x[i]), (i, e)
    stats = client.get_inference_statistics("rows", as_json=True) if kind == "grpc" else client.get_inference_statistics("rows")
    row = stats["model_stats"][0]
    executions, requests, inferences = (int(n) for n in (row["execution_count"], row["inference_stats"]["success"]["count"], row["inference_count"]))
    # Requests of an HTTP client with gevent overlap only if the client sends them at once.
    assert (executions < requests if kind == "grpc" else executions <= requests) and requests < inferences, row
    refused(lambda: client.infer("rows", [tensor("x", np.zeros((17, 4), "float32"), "FP32")]), "batch-size must be <= 16")
    refused(lambda: client.infer("rows", [tensor("x", np.zeros((1, 5), "float32"), "FP32")]), "unexpected shape")
    step("batches")


def explicit_contents():
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(address))
    request = service_pb2.ModelInferRequest(model_name="addsub")
    for name, first in [("INPUT0", 3), ("INPUT1", 1)]:
        t = request.inputs.add(name=name, datatype="INT32", shape=[2])
        t.contents.int_contents[:] = [first, first + 1]
    response = stub.ModelInfer(request)
    assert np.array_equal(np.frombuffer(response.raw_output_contents[0], "int32"), [4, 6])
    request.inputs[0].contents.int_contents.append(5)
    try:
        stub.ModelInfer(request)
        raise AssertionError("a number too many was taken")
    except grpc.RpcError as e:
        assert e.code() == grpc.StatusCode.INVALID_ARGUMENT, e
    step("explicit contents")


health()
metadata()
datatypes()
outputs()
values()
errors()
versions()
repository()
statistics()
asynchronous()
asyncio_client()
compression()
shared_memory()
settings()
batches()
if kind == "grpc":
    stream()
    explicit_contents()
else:
    json_data()
print("all of", kind)
