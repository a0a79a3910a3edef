"""A client made of the stubs that KServe publishes: kserve_client.py ADDRESS"""

import importlib.util
import os
import struct
import sys
import types

import grpc

# The package itself wants a web server, Kubernetes and more; its stubs want grpcio.
root = importlib.util.find_spec("kserve").submodule_search_locations[0]
for name in ["kserve", "kserve.protocol", "kserve.protocol.grpc"]:
    package = types.ModuleType(name)
    package.__path__ = [os.path.join(root, *name.split(".")[1:])]
    sys.modules[name] = package
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb  # noqa: E402
from kserve.protocol.grpc import grpc_predict_v2_pb2_grpc as pb_grpc  # noqa: E402

stub = pb_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(sys.argv[1]))
assert stub.ServerLive(pb.ServerLiveRequest(), timeout=10).live
assert stub.ServerReady(pb.ServerReadyRequest(), timeout=10).ready
assert stub.ModelReady(pb.ModelReadyRequest(name="scale"), timeout=10).ready
assert stub.ServerMetadata(pb.ServerMetadataRequest(), timeout=10).name == "sharedtensor"
metadata = stub.ModelMetadata(pb.ModelMetadataRequest(name="scale"), timeout=10)
assert [t.name for t in metadata.inputs] == ["x", "factor"] and metadata.versions == ["1"], metadata

request = pb.ModelInferRequest(model_name="scale", id="k")
t = request.inputs.add(name="x", datatype="FP32", shape=[3])
t.contents.fp32_contents[:] = [1, 2, 3]
request.parameters["factor"].int64_param = 2
response = stub.ModelInfer(request, timeout=10)
assert response.id == "k" and response.outputs[0].shape == [3], response
assert struct.unpack("<3f", response.raw_output_contents[0]) == (2, 4, 6), response

request.inputs[0].ClearField("contents")
request.raw_input_contents.append(struct.pack("<3f", 4, 5, 6))
response = stub.ModelInfer(request, timeout=10)
assert struct.unpack("<3f", response.raw_output_contents[0]) == (8, 10, 12), response

request.raw_input_contents.append(b"more")
try:
    stub.ModelInfer(request, timeout=10)
    raise AssertionError("elements of no input were taken")
except grpc.RpcError as e:
    assert e.code() == grpc.StatusCode.INVALID_ARGUMENT, e
print("all of kserve")
