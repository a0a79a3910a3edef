package inference_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/inference"
	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/pytest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// processEnv selects the role of a helper process: "bare" is the baseline of measurements, "embedded" is a gateway with
// built-in functions, "cuda" is one that also has a GPU, and "cuda client" is a client with GPU memory.
const processEnv = "INFERENCE_PROCESS"

// debugEnv is an address at which the embedded gateway serves profiles.
const debugEnv = "INFERENCE_DEBUG"

// processMain runs a helper process until its standard input ends. Servers print their gRPC and HTTP addresses.
func processMain(what string) error {
	if what == "cuda client" {
		return cudaClientMain()
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if what == "bare" {
		return serveBare(ctx)
	}
	dev, err := host.Open()
	if err != nil {
		return err
	}
	devices, component := []driver.Device{dev}, inference.New()
	if what == "cuda" {
		gpu, err := cuda.Open(0)
		if err != nil {
			return err
		}
		devices = append(devices, gpu)
		flags := pflag.NewFlagSet(what, pflag.ContinueOnError)
		component.Flags(flags)
		if err := flags.Parse([]string{"--allow-client-shm"}); err != nil {
			return err
		}
	}
	functions := endpoint.NewRegistry()
	if err := remotetest.Models(functions, dev); err != nil {
		return err
	}
	config := gateway.DefaultConfig()
	config.Owner, config.NATS, config.NATSListen, config.Store = gateway.Off, gateway.Off, gateway.Off, ""
	config.HTTP, config.GRPC, config.Debug = "127.0.0.1:0", "127.0.0.1:0", cmp.Or(os.Getenv(debugEnv), gateway.Off)
	g, err := gateway.New(gateway.Options{
		Config: config, Devices: devices, Registry: functions, Components: []gateway.Component{component}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	go func() {
		<-g.Ready()
		fmt.Println(g.Addresses().GRPC, g.Addresses().HTTP)
	}()
	return g.Run(ctx)
}

// bare echoes requests with generated code on grpc-go, and with encoding/json on net/http.
type bare struct {
	pb.UnimplementedGRPCInferenceServiceServer
}

func (bare) ModelInfer(_ context.Context, r *pb.ModelInferRequest) (*pb.ModelInferResponse, error) {
	in := r.GetInputs()[0]
	return &pb.ModelInferResponse{
		ModelName: r.GetModelName(), ModelVersion: "1", RawOutputContents: r.GetRawInputContents(),
		Outputs: []*pb.ModelInferResponse_InferOutputTensor{{Name: "output", Datatype: in.GetDatatype(), Shape: in.GetShape()}},
	}, nil
}

// restMessage is a REST request and response with the fields that identity needs.
type restMessage struct {
	ModelName string       `json:"model_name,omitempty"`
	Inputs    []restTensor `json:"inputs,omitempty"`
	Outputs   []restTensor `json:"outputs,omitempty"`
}

type restTensor struct {
	Name     string    `json:"name"`
	Datatype string    `json:"datatype"`
	Shape    []int64   `json:"shape"`
	Data     []float32 `json:"data"`
}

func serveBare(ctx context.Context) error {
	var listeners []net.Listener
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	pb.RegisterGRPCInferenceServiceServer(s, bare{})
	go func() { _ = s.Serve(listeners[0]) }()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v2/models/identity/infer", func(w http.ResponseWriter, r *http.Request) {
		var in restMessage
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		in.Inputs[0].Name = "output"
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(restMessage{ModelName: "identity", Outputs: in.Inputs})
	})
	go func() { _ = http.Serve(listeners[1], mux) }()
	fmt.Println(listeners[0].Addr(), listeners[1].Addr())
	<-ctx.Done()
	return nil
}

// startProcess starts a helper process that is a server.
func startProcess(tb testing.TB, what string) (grpcAt, httpAt string, cmd *exec.Cmd) {
	tb.Helper()
	line, cmd := startLine(tb, what)
	words := strings.Fields(line)
	require.Len(tb, words, 2)
	return words[0], words[1], cmd
}

// startLine starts a helper process and returns the line that it prints.
func startLine(tb testing.TB, what string) (line string, cmd *exec.Cmd) {
	tb.Helper()
	exe, err := os.Executable()
	require.NoError(tb, err)
	cmd = exec.Command(exe)
	cmd.Env, cmd.Stderr = append(os.Environ(), processEnv+"="+what), os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(tb, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(tb, err)
	require.NoError(tb, cmd.Start())
	tb.Cleanup(func() { _ = stdin.Close(); _ = cmd.Wait() })
	line, err = bufio.NewReader(stdout).ReadString('\n')
	require.NoError(tb, err)
	return strings.TrimSpace(line), cmd
}

// takeTurns runs operations alternately and returns the median duration of each.
func takeTurns(b *testing.B, rounds int, operations ...func() error) []time.Duration {
	b.Helper()
	times := make([][]time.Duration, len(operations))
	for round := range rounds + 20 {
		for i, run := range operations {
			begin := time.Now()
			require.NoError(b, run())
			if took := time.Since(begin); round >= 20 {
				times[i] = append(times[i], took)
			}
		}
	}
	medians := make([]time.Duration, len(operations))
	for i, list := range times {
		slices.Sort(list)
		medians[i] = list[len(list)/2]
	}
	return medians
}

func inferGRPC(b *testing.B, address string, r *pb.ModelInferRequest) func() error {
	b.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	client := pb.NewGRPCInferenceServiceClient(conn)
	return func() error {
		_, err := client.ModelInfer(context.Background(), r)
		return err
	}
}

func inferHTTP(b *testing.B, address string) func() error {
	b.Helper()
	body, err := json.Marshal(restMessage{Inputs: []restTensor{{"x", "FP32", []int64{16}, make([]float32, 16)}}})
	require.NoError(b, err)
	return func() error {
		answer, err := http.Post("http://"+address+"/v2/models/identity/infer", "application/json", bytes.NewReader(body))
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		var out restMessage
		if err := json.NewDecoder(answer.Body).Decode(&out); err != nil || len(out.Outputs) != 1 || len(out.Outputs[0].Data) != 16 {
			return fmt.Errorf("%s: %v: %w", answer.Status, out, err)
		}
		return nil
	}
}

// BenchmarkFiguresSmall measures identity of 64 bytes with three servers: a bare server that echoes the request, a
// function in the gateway's process, and a function of an owner. The owner is one more process to wake and needs two
// pieces of shared memory.
func BenchmarkFiguresSmall(b *testing.B) {
	owner := remotetest.StartOwner(b)
	gw := serve(b, owner)
	bareGRPC, bareHTTP, _ := startProcess(b, "bare")
	embeddedGRPC, embeddedHTTP, _ := startProcess(b, "embedded")
	b.Run("grpc", func(b *testing.B) {
		r := identity(16)
		report(b, takeTurns(b, b.N, inferGRPC(b, bareGRPC, r), inferGRPC(b, embeddedGRPC, r), inferGRPC(b, gw.Addresses.GRPC, r)))
	})
	b.Run("rest", func(b *testing.B) {
		report(b, takeTurns(b, b.N, inferHTTP(b, bareHTTP), inferHTTP(b, embeddedHTTP), inferHTTP(b, gw.Addresses.HTTP)))
	})
}

func report(b *testing.B, medians []time.Duration) {
	b.Helper()
	for i, name := range []string{"floor-µs", "embedded-µs", "owner-µs"} {
		b.ReportMetric(float64(medians[i].Nanoseconds())/1000, name)
	}
	b.ReportMetric(float64(medians[1])/float64(medians[0]), "embedded/floor")
	b.ReportMetric(float64(medians[2])/float64(medians[0]), "owner/floor")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkFiguresShared measures identity of 1 MiB with tritonclient: inline and with system shared memory.
func BenchmarkFiguresShared(b *testing.B) {
	python := pytest.Python(b, "tritonclient", "ml_dtypes")
	owner := remotetest.StartOwner(b)
	gw := serve(b, owner, "--allow-client-shm")
	for kind, address := range map[string]string{"grpc": gw.Addresses.GRPC, "http": gw.Addresses.HTTP} {
		b.Run(kind, func(b *testing.B) {
			out, err := exec.Command(python, "testdata/shm_figures.py", kind, address, "1048576", fmt.Sprint(b.N)).CombinedOutput()
			require.NoError(b, err, "%s", out)
			var inline, shared float64
			_, err = fmt.Sscan(string(out), &inline, &shared)
			require.NoError(b, err)
			b.ReportMetric(inline, "inline-µs")
			b.ReportMetric(shared, "shared-µs")
			b.ReportMetric(inline/shared, "inline/shared")
			b.ReportMetric(0, "ns/op")
		})
	}
}
