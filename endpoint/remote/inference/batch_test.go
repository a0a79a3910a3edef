package inference_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// rowsRequest returns a request for a model with n rows of the value v.
func rowsRequest(model string, n int, v float32, parameters map[string]*pb.InferParameter) *pb.ModelInferRequest {
	var raw []byte
	for range 4 * n {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return &pb.ModelInferRequest{
		ModelName: model, Parameters: parameters, RawInputContents: [][]byte{raw},
		Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "FP32", Shape: []int64{int64(n), 4}}},
	}
}

// checkRows requires that a response has n rows of the doubled value, and returns the number of the call and its rows.
func checkRows(n int, v float32, out *pb.ModelInferResponse) (call, rows int64, err error) {
	for i, o := range out.GetOutputs() {
		raw := out.GetRawOutputContents()[i]
		switch o.GetName() {
		case "y":
			if fmt.Sprint(o.GetShape()) != fmt.Sprint([]int64{int64(n), 4}) || len(raw) != 16*n {
				return 0, 0, fmt.Errorf("shape %v and %d bytes for %d rows", o.GetShape(), len(raw), n)
			}
			for at := 0; at < len(raw); at += 4 {
				if got := math.Float32frombits(binary.LittleEndian.Uint32(raw[at:])); got != 2*v {
					return 0, 0, fmt.Errorf("element %d is %v, not %v", at/4, got, 2*v)
				}
			}
		case "call":
			call = int64(binary.LittleEndian.Uint64(raw))
		case "rows":
			rows = int64(binary.LittleEndian.Uint64(raw))
		}
	}
	return call, rows, nil
}

// Concurrent requests share calls of the function, each receives its rows, and the statistics count both.
func TestBatchesJoinRequests(t *testing.T) {
	t.Parallel()
	gw := serve(t, remotetest.StartOwner(t))
	client := dial(t, gw)
	ctx, cancel := context.WithTimeout(t.Context(), remotetest.Patience)
	defer cancel()
	const clients, each = 12, 6
	var mu sync.Mutex
	calls, total := map[int64]int64{}, int64(0)
	var running sync.WaitGroup
	for i := range clients {
		running.Go(func() {
			for k := range each {
				n, v := 1+(i+k)%3, float32(100*i+k)
				out, err := client.ModelInfer(ctx, rowsRequest("rows", n, v, nil))
				if err != nil {
					t.Error(err)
					return
				}
				call, rows, err := checkRows(n, v, out)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				calls[call] = rows
				total += int64(n)
				mu.Unlock()
			}
		})
	}
	running.Wait()
	require.Less(t, len(calls), clients*each/2, "requests did not share calls")
	inCalls := int64(0)
	for _, rows := range calls {
		require.LessOrEqual(t, rows, int64(16))
		inCalls += rows
	}
	require.Equal(t, total, inCalls)

	out, err := client.ModelStatistics(ctx, &pb.ModelStatisticsRequest{Name: "rows"})
	require.NoError(t, err)
	s := out.GetModelStats()[0]
	require.EqualValues(t, total, s.GetInferenceCount())
	require.EqualValues(t, len(calls), s.GetExecutionCount())
	require.EqualValues(t, clients*each, s.GetInferenceStats().GetSuccess().GetCount())
	require.EqualValues(t, clients*each, s.GetInferenceStats().GetQueue().GetCount())
	require.Positive(t, s.GetInferenceStats().GetQueue().GetNs())
	rows, executions := int64(0), uint64(0)
	for _, b := range s.GetBatchStats() {
		rows += int64(b.GetBatchSize() * b.GetComputeInfer().GetCount())
		executions += b.GetComputeInfer().GetCount()
	}
	require.Equal(t, total, rows)
	require.EqualValues(t, len(calls), executions)
}

// Waiting requests run by priority and then in their order. The queue is bounded, and a request whose time is over leaves
// it without a call.
func TestBatchQueue(t *testing.T) {
	t.Parallel()
	owner := remotetest.StartOwner(t)
	gw := serve(t, owner, "--infer-queue", "5", "--infer-batch", "rows=2/0s")
	client, observer := dial(t, gw), remotetest.Dial(t, owner.Socket, remotetest.OpenHost(t))
	ctx, cancel := context.WithTimeout(t.Context(), remotetest.Patience)
	defer cancel()
	type outcome struct {
		call int64
		err  error
	}
	waiting := func() int {
		_, answer := ask(t, gw, http.MethodGet, "/v1/status", "")
		row, _ := answer["components"].(map[string]any)["inference"].(map[string]any)["rows"].(map[string]any)
		n, _ := row["waiting"].(float64)
		return int(n)
	}
	start := func(ctx context.Context, v float32, parameters map[string]*pb.InferParameter) <-chan outcome {
		done := make(chan outcome, 1)
		go func() {
			out, err := client.ModelInfer(ctx, rowsRequest("rows", 2, v, parameters))
			one := outcome{err: err}
			if err == nil {
				one.call, _, one.err = checkRows(2, v, out)
			}
			done <- one
		}()
		return done
	}
	// It runs until the test cancels it.
	blocking, unblock := context.WithCancel(ctx)
	defer unblock()
	blocker := start(blocking, 1, map[string]*pb.InferParameter{"pause_ms": integer(600_000)})
	remotetest.Eventually(t, func() error {
		info, err := observer.ServerInfo(ctx)
		if err != nil {
			return err
		}
		for _, e := range info.Endpoints {
			if e.Name == "rows" && e.Calls == 1 {
				return nil
			}
		}
		return errors.New("the function does not run")
	})
	var list []<-chan outcome
	for i, priority := range []int64{0, 5, 1, 0} {
		parameters := map[string]*pb.InferParameter{}
		if priority > 0 {
			parameters["priority"] = integer(priority)
		}
		list = append(list, start(ctx, float32(10+i), parameters))
		remotetest.Eventually(t, func() error {
			if n := waiting(); n != i+1 {
				return fmt.Errorf("%d requests wait", n)
			}
			return nil
		})
	}
	short := start(ctx, 20, map[string]*pb.InferParameter{"timeout": integer(300_000)})
	remotetest.Eventually(t, func() error {
		if n := waiting(); n != 5 {
			return fmt.Errorf("%d requests wait", n)
		}
		return nil
	})
	over := <-start(ctx, 21, nil)
	require.Equal(t, codes.Unavailable, status.Code(over.err), "%v", over.err)
	require.ErrorContains(t, over.err, "Exceeds maximum queue size")
	late := <-short
	require.Equal(t, codes.DeadlineExceeded, status.Code(late.err), "%v", late.err)
	unblock()
	require.Equal(t, codes.Canceled, status.Code((<-blocker).err))
	var calls []int64
	for _, one := range list {
		out := <-one
		require.NoError(t, out.err)
		calls = append(calls, out.call)
	}
	require.Equal(t, []int64{3, 2, 1, 4}, calls, "order of the calls; the request whose time was over has none")
}

// A client that leaves does not disturb the other requests of its batch.
func TestBatchWithoutAClientThatLeft(t *testing.T) {
	t.Parallel()
	gw := serve(t, remotetest.StartOwner(t), "--infer-batch", "rows=16/300ms")
	client := dial(t, gw)
	ctx, cancel := context.WithTimeout(t.Context(), remotetest.Patience)
	defer cancel()
	leaving, leave := context.WithCancel(ctx)
	gone := make(chan error, 1)
	go func() {
		_, err := client.ModelInfer(leaving, rowsRequest("rows", 1, 1, map[string]*pb.InferParameter{"pause_ms": integer(300)}))
		gone <- err
	}()
	time.AfterFunc(400*time.Millisecond, leave) // while the function runs
	out, err := client.ModelInfer(ctx, rowsRequest("rows", 2, 2, map[string]*pb.InferParameter{"pause_ms": integer(300)}))
	require.NoError(t, err)
	_, _, err = checkRows(2, 2, out)
	require.NoError(t, err)
	require.Equal(t, codes.Canceled, status.Code(<-gone))
	requireNothingPending(t, gw)
}

// requireNothingPending waits until the gateway holds no arguments.
func requireNothingPending(t *testing.T, gw *remotetest.Gateway) {
	t.Helper()
	remotetest.Eventually(t, func() error {
		response, err := http.Get(gw.HTTP() + "/metrics")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			return err
		}
		if !strings.Contains(string(text), "sharedtensor_gateway_inference_pending_bytes 0\n") {
			return fmt.Errorf("arguments are pending")
		}
		return nil
	})
}

// The metadata and the configuration have the declared datatypes and shapes, and other tensors are refused.
func TestDeclaredTensors(t *testing.T) {
	t.Parallel()
	gw := serve(t, remotetest.StartOwner(t))
	client := dial(t, gw)
	metadata, err := client.ModelMetadata(t.Context(), &pb.ModelMetadataRequest{Name: "rows"})
	require.NoError(t, err)
	in := metadata.GetInputs()[0]
	require.Equal(t, "x FP32 [-1 4]", fmt.Sprint(in.GetName(), " ", in.GetDatatype(), " ", in.GetShape()))
	out := metadata.GetOutputs()[1]
	require.Equal(t, "call INT64 [-1]", fmt.Sprint(out.GetName(), " ", out.GetDatatype(), " ", out.GetShape()))
	config, err := client.ModelConfig(t.Context(), &pb.ModelConfigRequest{Name: "rows"})
	require.NoError(t, err)
	c := config.GetConfig()
	require.EqualValues(t, 16, c.GetMaxBatchSize())
	require.EqualValues(t, 2000, c.GetDynamicBatching().GetMaxQueueDelayMicroseconds())
	require.Equal(t, []int64{4}, c.GetInput()[0].GetDims(), "without the batch dimension")
	require.Equal(t, pb.DataType_TYPE_FP32, c.GetInput()[0].GetDataType())
	_, answer := ask(t, gw, http.MethodGet, "/v2/models/rows/config", "")
	text, err := json.Marshal(answer)
	require.NoError(t, err)
	require.Contains(t, string(text), `"dynamic_batching":{"max_queue_delay_microseconds":2000,`)

	for says, body := range map[string]string{
		"model expects 'FP32'":                 `{"inputs":[{"name":"x","datatype":"INT32","shape":[1,4],"data":[1,2,3,4]}]}`,
		"Expected [-1 4], got [1 3]":           `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[1,2,3]}]}`,
		"Expected [-1 4], got [4]":             `{"inputs":[{"name":"x","datatype":"FP32","shape":[4],"data":[1,2,3,4]}]}`,
		"inference request batch-size must be": `{"inputs":[{"name":"x","datatype":"FP32","shape":[17,4],"data":[` + strings.TrimSuffix(strings.Repeat("1,", 68), ",") + `]}]}`,
		"at least 1, not 0":                    `{"inputs":[{"name":"x","datatype":"FP32","shape":[0,4],"data":[]}]}`,
	} {
		code, answer := ask(t, gw, http.MethodPost, "/v2/models/rows/infer", body)
		require.Equal(t, http.StatusBadRequest, code, says)
		require.Contains(t, answer["error"], says)
	}
}

// Trace and log settings are answered over gRPC too.
func TestSettingsAreAnsweredOverGRPC(t *testing.T) {
	t.Parallel()
	client := dial(t, serve(t, remotetest.StartOwner(t)))
	trace, err := client.TraceSetting(t.Context(), &pb.TraceSettingRequest{})
	require.NoError(t, err)
	require.Equal(t, []string{"OFF"}, trace.GetSettings()["trace_level"].GetValue())
	_, err = client.TraceSetting(t.Context(), &pb.TraceSettingRequest{Settings: map[string]*pb.TraceSettingRequest_SettingValue{"trace_rate": {}}})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	logs, err := client.LogSettings(t.Context(), &pb.LogSettingsRequest{})
	require.NoError(t, err)
	require.True(t, logs.GetSettings()["log_info"].GetBoolParam())
	_, err = client.LogSettings(t.Context(), &pb.LogSettingsRequest{Settings: map[string]*pb.LogSettingsRequest_SettingValue{"log_info": {}}})
	require.ErrorContains(t, err, "--log-level")
}

// BenchmarkBatching compares requests with and without batches, of a function that costs 4 ms for each call and 50 µs for
// each row. It reports requests per second and their ratio.
func BenchmarkBatching(b *testing.B) {
	gw := serve(b, remotetest.StartOwner(b))
	client := dial(b, gw)
	for _, clients := range []int{1, 4, 16, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			rate := map[string]float64{}
			for _, model := range []string{"rows_alone", "rows"} {
				begin, n := time.Now(), 0
				var mu sync.Mutex
				var running sync.WaitGroup
				for range clients {
					running.Go(func() {
						for time.Since(begin) < time.Second {
							if _, err := client.ModelInfer(b.Context(), rowsRequest(model, 1, 1, nil)); err != nil {
								b.Error(err)
								return
							}
							mu.Lock()
							n++
							mu.Unlock()
						}
					})
				}
				running.Wait()
				rate[model] = float64(n) / time.Since(begin).Seconds()
				b.ReportMetric(rate[model], model+"/s")
			}
			b.ReportMetric(rate["rows"]/rate["rows_alone"], "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}
