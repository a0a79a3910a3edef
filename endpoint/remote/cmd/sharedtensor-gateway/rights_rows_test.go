package main

import (
	_ "embed"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute/computepb"
	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchpb"
)

// savedTensor is a tensor as torch.save writes it.
//
//go:embed testdata/float32.pt
var savedTensor []byte

// matrixRows returns all operations. Models are mine, which some tokens may use, and other. Functions are identity and
// sleep. task is a task of sleep.
func matrixRows(task string) (rows []matrixRow) {
	for _, part := range [][]matrixRow{gatewayRows(), modelRows(), rpcRows(task), restRows(), grpcRows(), natsRows(), withdrawRows()} {
		rows = append(rows, part...)
	}
	return rows
}

func gatewayRows() []matrixRow {
	rows := []matrixRow{}
	for _, path := range []string{"/healthz", "/health", "/readyz", "/{$}", "/page.css", "/page.js", "/icon.svg", "/openapi.yaml", "/v1/status", "/v1/events", "/metrics"} {
		rows = append(rows, httpRow("GET "+path, strings.TrimSuffix(path, "{$}"), ""))
	}
	return rows
}

func modelRows() []matrixRow {
	file := string(safetensorsHead(1)) + "x"
	rows := []matrixRow{httpRow("GET /v1/models", "/v1/models", "")}
	for _, model := range []string{"mine", "other"} {
		at := "/v1/models/" + model
		rows = append(rows,
			httpRow("GET /v1/models/{model}", at, ""),
			httpRow("GET /v1/models/{model}/manifest", at+"/manifest", ""),
			httpRow("GET /v1/models/{model}/manifest", at+"/manifest?digests", ""),
			httpRow("GET /v1/models/{model}/changes", at+"/changes?wait=1ms", ""),
			httpRow("GET /v1/models/{model}/tensors/{tensor...}", at+"/tensors/t", ""),
			httpRow("GET /v1/models/{model}/model.safetensors", at+"/model.safetensors", ""),
			httpRow("POST /v1/models/{model}/leases", at+"/leases?seconds=1", ""),
			httpRow("PUT /v1/models/{model}/model.safetensors", at+"/model.safetensors", file),
		)
	}
	return append(rows,
		httpRow("GET /v1/models/{model}/deltas/{tensor...}", "/v1/models/mine/deltas/t?lease=none", ""),
		httpRow("POST /v1/leases/{id}", "/v1/leases/none", ""),
		httpRow("DELETE /v1/leases/{id}", "/v1/leases/none", ""),
		httpRow("GET /v1/results/{id}", "/v1/results/none", ""),
		httpRow("DELETE /v1/results/{id}", "/v1/results/none", ""),
	)
}

func rpcRows(task string) []matrixRow {
	rows := []matrixRow{rpcRow("ping", "{}"), rpcRow("get_server_info", "{}"), rpcRow("list_functions", "{}"), rpcRow("list_models", "{}"), rpcRow("list_tasks", "{}")}
	for _, model := range []string{"mine", "other"} {
		rows = append(rows, rpcRow("inspect_model", `{"name":"`+model+`"}`), rpcRow("holders", `{"name":"`+model+`"}`),
			rpcRow("publish_from", `{"name":"`+model+`","path":"x"}`))
	}
	for _, method := range []string{"call_function", "execute_function", "submit_task"} {
		rows = append(rows, rpcRow(method, `{"name":"identity","kwargs":{"x":{"$tensor":{"dtype":"uint8","shape":[1],"values":[1]}}}}`),
			rpcRow(method, `{"name":"sleep","args":[1]}`))
	}
	rows = append(rows,
		rpcRow("call_function", `{"name":"identity","kwargs":{"x":{"$tensor":{"model":"other","name":"t"}}}}`),
		rpcRow("invalidate", `{"name":"identity"}`), rpcRow("invalidate", `{"name":"sleep"}`), rpcRow("release_result", `{"id":"none"}`))
	for _, method := range []string{"get_task_status", "get_task_result", "wait_task", "cancel_task"} {
		rows = append(rows, rpcRow(method, `{"task_id":"`+task+`","timeout":0.001}`))
	}
	for i := range rows { // the id differs in each run, and cancel_task has no timeout
		rows[i].name = strings.Replace(rows[i].name, `{"task_id":"`+task+`","timeout":0.001}`, "of sleep", 1)
	}
	return rows
}

func restRows() []matrixRow {
	rows := []matrixRow{
		httpRow("GET /v2", "/v2", ""), httpRow("GET /v2/{$}", "/v2/", ""), httpRow("/v2/", "/v2/none", ""),
		httpRow("GET /v2/health/live", "/v2/health/live", ""), httpRow("GET /v2/health/ready", "/v2/health/ready", ""),
		httpRow("GET /v2/models/stats", "/v2/models/stats", ""), httpRow("POST /v2/repository/index", "/v2/repository/index", "{}"),
		httpRow("GET /v2/logging", "/v2/logging", ""), httpRow("POST /v2/logging", "/v2/logging", "{}"),
		httpRow("GET /v2/trace/setting", "/v2/trace/setting", ""), httpRow("POST /v2/trace/setting", "/v2/trace/setting", "{}"),
	}
	const body = `{"inputs":[{"name":"x","datatype":"UINT8","shape":[1],"data":[1]}]}`
	const regional = `{"inputs":[{"name":"x","datatype":"UINT8","shape":[1],"parameters":{"shared_memory_region":"none","shared_memory_byte_size":1}}]}`
	for _, name := range []string{"identity", "twice"} {
		for _, version := range []string{"", "/versions/1"} {
			at, pattern := "/v2/models/"+name+version, "/v2/models/{model}"
			if version != "" {
				pattern += "/versions/{version}"
			}
			for _, tail := range []string{"", "/ready", "/config", "/stats"} {
				rows = append(rows, httpRow("GET "+pattern+tail, at+tail, ""))
			}
			rows = append(rows, httpRow("POST "+pattern+"/infer", at+"/infer", body))
		}
		at := "/v2/models/" + name
		rows = append(rows, httpRow("GET /v2/models/{model}/trace/setting", at+"/trace/setting", ""), httpRow("POST /v2/models/{model}/trace/setting", at+"/trace/setting", "{}"),
			httpRow("POST /v2/repository/models/{model}/unload", "/v2/repository/models/"+name+"/unload", "{}"),
			httpRow("POST /v2/repository/models/{model}/load", "/v2/repository/models/"+name+"/load", "{}"))
	}
	inferRegion := httpRow("POST /v2/models/{model}/infer", "/v2/models/identity/infer", regional)
	inferRegion.name += " (shared memory)"
	rows = append(rows, inferRegion)
	for _, kind := range []string{"system", "cuda"} {
		at := "/v2/" + kind + "sharedmemory"
		for _, region := range []string{"", "/region/{region}"} {
			path := strings.Replace(at+region, "{region}", "none", 1)
			rows = append(rows, httpRow("GET "+at+region+"/status", path+"/status", ""), httpRow("POST "+at+region+"/unregister", path+"/unregister", "{}"))
		}
		rows = append(rows, httpRow("POST "+at+"/region/{region}/register", at+"/region/none/register", `{"key":"/none","byte_size":1}`))
	}
	return rows
}

func grpcRows() []matrixRow {
	const infer, stream, torch, compute = "/inference.GRPCInferenceService/", "/sharedtensor.stream.v1.TensorStream/", "/kpu.torch.Service/", "/splitlearn.comm.ComputeService/"
	empty := &emptypb.Empty{}
	rows := []matrixRow{
		grpcRow("/grpc.health.v1.Health/Check", "", &grpc_health_v1.HealthCheckRequest{}),
		grpcRow("/grpc.health.v1.Health/List", "", empty),
		grpcRow("/grpc.health.v1.Health/Watch", "", &grpc_health_v1.HealthCheckRequest{}),
	}
	for _, version := range []string{"v1", "v1alpha"} {
		rows = append(rows, grpcRow("/grpc.reflection."+version+".ServerReflection/ServerReflectionInfo", version, &grpc_reflection_v1.ServerReflectionRequest{}))
	}
	for _, method := range []string{
		"ServerLive", "ServerReady", "ServerMetadata", "TraceSetting", "LogSettings", "ModelStatistics", "RepositoryIndex", "SystemSharedMemoryStatus", "SystemSharedMemoryUnregister", "CudaSharedMemoryStatus",
		"CudaSharedMemoryUnregister",
	} {
		rows = append(rows, grpcRow(infer+method, "", empty))
	}
	rows = append(rows,
		grpcRow(infer+"SystemSharedMemoryRegister", "", &pb.SystemSharedMemoryRegisterRequest{Name: "none", Key: "/none", ByteSize: 1}),
		grpcRow(infer+"CudaSharedMemoryRegister", "", &pb.CudaSharedMemoryRegisterRequest{Name: "none", ByteSize: 1}))
	for _, name := range []string{"identity", "twice"} {
		request := &pb.ModelInferRequest{
			ModelName: name, Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "UINT8", Shape: []int64{1}}}, RawInputContents: [][]byte{{1}},
		}
		rows = append(rows, grpcRow(infer+"ModelReady", name, &pb.ModelReadyRequest{Name: name}), grpcRow(infer+"ModelMetadata", name, &pb.ModelMetadataRequest{Name: name}),
			grpcRow(infer+"ModelConfig", name, &pb.ModelConfigRequest{Name: name}), grpcRow(infer+"ModelStatistics", name, &pb.ModelStatisticsRequest{Name: name}),
			grpcRow(infer+"ModelInfer", name, request), grpcRow(infer+"ModelStreamInfer", name, request),
			grpcRow(infer+"RepositoryModelUnload", name, &pb.RepositoryModelUnloadRequest{ModelName: name}),
			grpcRow(infer+"RepositoryModelLoad", name, &pb.RepositoryModelLoadRequest{ModelName: name}),
			grpcRow(compute+"Compute", name, &computepb.ComputeRequest{ModelId: name}), grpcRow(compute+"ComputeStream", name, &computepb.ComputeRequest{ModelId: name}),
			grpcRow(compute+"GetStatistics", name, &computepb.StatisticsRequest{ModelId: name}))
	}
	for _, method := range []string{"HealthCheck", "GetServiceInfo", "GetStatistics"} {
		rows = append(rows, grpcRow(compute+method, "", empty))
	}
	for _, model := range []string{"mine", "other"} {
		chunk := &torchpb.TensorChunk{TensorId: "x", TotalChunks: 1, IsLast: true, Data: savedTensor, Metadata: map[string]string{
			"shape": "[1]", "dtype": "torch.float32", "size_bytes": "4", "model": model,
		}}
		rows = append(rows, grpcRow(stream+"Get", model, &streampb.GetRequest{Name: model}),
			grpcRow(stream+"Put", model, &streampb.Chunk{Set: &streampb.Set{Id: model, Name: model}}),
			grpcRow(torch+"SendTensors", model, &torchpb.TensorRequest{Parameters: map[string]string{"model": model}}),
			grpcRow(torch+"ReceiveTensors", model, chunk))
	}
	for _, name := range []string{"identity", "sleep"} {
		metadata := map[string]string{"shape": "[1]", "dtype": "torch.float32", "size_bytes": "4", "endpoint": name}
		rows = append(rows, grpcRow(torch+"StreamTensors", name, &torchpb.TensorChunk{TensorId: "x", TotalChunks: 1, IsLast: true, Data: savedTensor, Metadata: metadata}))
	}
	return append(rows, grpcRow(stream+"Exchange", "", empty), grpcRow(stream+"Local", "", empty))
}

func natsRows() []matrixRow {
	row := func(name string, run func(c *matrixClient) string) matrixRow {
		return matrixRow{name: "nats " + name, run: run}
	}
	rows := []matrixRow{row("connect", func(c *matrixClient) string {
		return c.overNATS(func(*nats.Conn, <-chan error) string { return admitted })
	})}
	for _, namespace := range []string{"mine", "other"} {
		rows = append(rows,
			row("publish bin."+namespace+".x", natsRequest("bin."+namespace+".x", "item")),
			row("take from bin."+namespace, natsRequest("bin-take."+namespace+".x", "")),
			row("subscribe bin."+namespace+".>", natsSubscribe("bin."+namespace+".>")),
			row("stored items of bin."+namespace, natsRequest("$JS.API.DIRECT.GET.BINS_"+namespace, `{"seq":1,"next_by_subj":"bin.>"}`)),
			row("pull consumer of bin."+namespace, natsRequest("$JS.API.CONSUMER.CREATE.BINS_"+namespace+".puller", `{"stream_name":"BINS_`+namespace+`","config":{"name":"puller","ack_policy":"none"}}`)),
			row("push consumer of bin."+namespace+" into bin.other", natsRequest("$JS.API.CONSUMER.CREATE.BINS_"+namespace+".pusher",
				`{"stream_name":"BINS_`+namespace+`","config":{"name":"pusher","ack_policy":"none","deliver_subject":"bin.other.pushed"}}`)),
			row("purge bin."+namespace, natsRequest("$JS.API.STREAM.PURGE.BINS_"+namespace, `{"filter":"bin.`+namespace+`.none"}`)),
			row("answer to bin."+namespace+".y into bin.other", natsAnswerInto("bin."+namespace+".y")),
		)
	}
	return append(rows,
		row("create a stream", natsRequest("$JS.API.STREAM.CREATE.FRESH", `{"name":"FRESH","subjects":["fresh.>"]}`)),
		row("names of streams", natsRequest("$JS.API.STREAM.NAMES", "")))
}

// withdrawRows are last because the models are gone afterwards.
func withdrawRows() (rows []matrixRow) {
	for _, model := range []string{"mine", "other"} {
		rows = append(rows, httpRow("DELETE /v1/models/{model}", "/v1/models/"+model, ""), rpcRow("withdraw", `{"name":"`+model+`"}`))
	}
	return rows
}

// natsSubscribe is the outcome of a subscription.
func natsSubscribe(subject string) func(c *matrixClient) string {
	return func(c *matrixClient) string {
		return c.overNATS(func(conn *nats.Conn, violations <-chan error) string {
			_, err := conn.SubscribeSync(subject)
			require.NoError(c.t, err)
			require.NoError(c.t, conn.Flush()) // the server reports a violation before it answers
			select {
			case err := <-violations:
				require.ErrorContains(c.t, err, "ermissions")
				return refused
			case <-time.After(50 * time.Millisecond): // the client passes violations on asynchronously
				return admitted
			}
		})
	}
}

// natsAnswerInto is the outcome of an attempt to let the server send an answer to a bin of another namespace, whose
// stream would store it.
func natsAnswerInto(subject string) func(c *matrixClient) string {
	return func(c *matrixClient) string {
		target := fmt.Sprintf("bin.other.answer-%s-%d", c.token[max(0, len(c.token)-8):], time.Now().UnixNano())
		outcome := c.overNATS(func(conn *nats.Conn, _ <-chan error) string {
			require.NoError(c.t, conn.PublishRequest(subject, target, []byte("item")))
			require.NoError(c.t, conn.PublishRequest("$JS.API.DIRECT.GET.BINS_mine", target, []byte(`{"last_by_subj":"bin.mine.items"}`)))
			require.NoError(c.t, conn.Flush())
			return admitted
		})
		if outcome != admitted {
			return outcome
		}
		conn, err := nats.Connect(c.gw.Addresses.NATS, nats.Token(matrixToken("all")), nats.Secure(c.tls))
		require.NoError(c.t, err)
		defer conn.Close()
		js, err := jetstream.New(conn)
		require.NoError(c.t, err)
		stream, err := js.Stream(c.t.Context(), "BINS_other")
		require.NoError(c.t, err)
		for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if _, err := stream.GetLastMsgForSubject(c.t.Context(), target); err == nil {
				return admitted
			}
		}
		return refused
	}
}
