"""Uses a gateway by JSON-RPC with nothing but Python's standard library: what a client of shared-tensor 0.1 did, and models as files.

    client.py http://127.0.0.1:2537 MODEL
"""
import base64
import hashlib
import json
import struct
import sys
import time
import urllib.error
import urllib.request


class Client:
    def __init__(self, url):
        self.url, self.next = url, 0

    def post(self, body):
        request = urllib.request.Request(self.url + "/jsonrpc", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            text = response.read()
        return json.loads(text) if text else None

    def call(self, method, **params):
        self.next += 1
        answer = self.post({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params})
        assert answer["id"] == self.next, answer
        if "error" in answer:
            raise RpcError(answer["error"])
        return answer["result"]

    def call_function(self, name, *args, **kwargs):
        return self.call("call_function", name=name, args=list(args), kwargs=kwargs)

    def get(self, path, **header):
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=header)) as response:
            return response.status, dict(response.headers), response.read()


class RpcError(Exception):
    @property
    def code(self):
        return self.args[0]["code"]


def tensor(values):
    return {"$tensor": {"dtype": "float32", "shape": [len(values)], "data": base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()}}


def values(result):
    data = base64.b64decode(result["$tensor"]["data"])
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def functions(client):
    assert client.call("ping")["pong"] is True
    assert client.call("get_server_info")["attached"] is True
    assert "add" in [f["name"] for f in client.call("list_functions")["functions"]]
    assert client.call_function("add", 2, 3) == 5
    assert client.call_function("add", a=2, b=40) == 42
    assert client.call("execute_function", function_path="add", args=[1, 1])["result"] == 2
    assert values(client.call_function("scale", x=tensor([1, 2, 3]), factor=2)) == [2, 4, 6]
    for function, code in (("os:system", -32001), ("fail", -32002)):
        try:
            client.call_function(function, "x")
        except RpcError as e:
            assert e.code == code, e
        else:
            raise AssertionError(f"{function} went well")


def tasks(client):
    task = client.call("submit_task", name="work", kwargs={"steps": 5, "pace_ms": 10})["task_id"]
    while (status := client.call("get_task_status", task_id=task)["status"]) not in ("completed", "failed"):
        time.sleep(0.01)  # as the client of shared-tensor 0.1 polled
    assert status == "completed"
    assert client.call("get_task_result", task_id=task) == 5
    task = client.call("submit_task", name="work", kwargs={"steps": 1000, "pace_ms": 50})["task_id"]
    assert client.call("cancel_task", task_id=task)["cancelled"] is True
    assert client.call("wait_task", task_id=task, timeout=30)["status"] == "cancelled"
    assert task in [t["task_id"] for t in client.call("list_tasks", status="cancelled")["tasks"]]


def batch(client):
    answers = client.post([{"jsonrpc": "2.0", "id": "a", "method": "ping"}, {"jsonrpc": "2.0", "method": "ping"}, {"jsonrpc": "2.0", "id": "b", "method": "no"}])
    assert [a["id"] for a in answers] == ["a", "b"] and answers[1]["error"]["code"] == -32601, answers
    assert client.post({"jsonrpc": "2.0", "method": "ping"}) is None


def models(client, name):
    manifest = json.loads(client.get(f"/v1/models/{name}/manifest")[2])
    status, header, file = client.get(manifest["url"])
    assert status == 200 and header["Etag"] == f'"sha256-{hashlib.sha256(file).hexdigest()}"'
    length = struct.unpack("<Q", file[:8])[0]
    entries = json.loads(file[8:8 + length])
    for one in manifest["tensors"]:
        data = client.get(one["url"])[2]
        begin, end = entries[one["name"]]["data_offsets"]
        assert data == file[8 + length + begin:8 + length + end] and len(data) == one["bytes"]
    status, header, part = client.get(manifest["url"], Range="bytes=8-15")
    assert status == 206 and part == file[8:16]
    try:
        client.get(manifest["url"], **{"If-None-Match": header["Etag"]})
    except urllib.error.HTTPError as e:
        assert e.code == 304
    else:
        raise AssertionError("the file was sent again")
    request = urllib.request.Request(client.url + "/v1/models/copy/model.safetensors", file, method="PUT")
    with urllib.request.urlopen(request) as response:
        assert response.status == 201 and json.loads(response.read())["version"] == 1
    assert client.get("/v1/models/copy/model.safetensors")[2] == file
    assert "copy" in [m["name"] for m in client.call("list_models")["models"]]
    assert client.call("withdraw", name="copy")["withdrawn"] is True


def main():
    client = Client(sys.argv[1])
    assert json.loads(client.get("/health")[2])["status"] == "healthy"
    functions(client)
    tasks(client)
    batch(client)
    models(client, sys.argv[2])
    print("ok")


main()
