package inference_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// serve starts a gateway for an owner and waits until it is attached.
func serve(t testing.TB, owner *remotetest.Owner, args ...string) *remotetest.Gateway {
	t.Helper()
	gw := remotetest.StartGateway(t, owner.Socket, args...)
	remotetest.Eventually(t, func() error {
		answer, err := http.Get(gw.HTTP() + "/v2/health/ready")
		if err != nil {
			return err
		}
		if _ = answer.Body.Close(); answer.StatusCode != http.StatusOK {
			return errors.New(answer.Status)
		}
		return nil
	})
	return gw
}

func dial(t testing.TB, gw *remotetest.Gateway) pb.GRPCInferenceServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(gw.Addresses.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewGRPCInferenceServiceClient(conn)
}

func elements(n int) []byte {
	b := make([]byte, 0, 4*n)
	for i := range n {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(i)))
	}
	return b
}

// identity returns a request for the model "identity" with n elements.
func identity(n int) *pb.ModelInferRequest {
	return &pb.ModelInferRequest{
		ModelName: "identity", Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "FP32", Shape: []int64{int64(n)}}},
		RawInputContents: [][]byte{elements(n)},
	}
}

func text(v string) *pb.InferParameter {
	return &pb.InferParameter{ParameterChoice: &pb.InferParameter_StringParam{StringParam: v}}
}

func integer(v int64) *pb.InferParameter {
	return &pb.InferParameter{ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: v}}
}

func inRegion(name string, offset, bytes int64) map[string]*pb.InferParameter {
	return map[string]*pb.InferParameter{
		"shared_memory_region": text(name), "shared_memory_byte_size": integer(bytes), "shared_memory_offset": integer(offset),
	}
}

// Invalid requests are refused before memory is allocated for them.
func TestInvalidRequestsAreRefused(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := serve(t, owner, "--allow-client-shm")
	client := dial(t, gw)
	ctx := t.Context()
	_, err := client.ModelInfer(ctx, identity(4))
	require.NoError(t, err)
	before, filesBefore := remotetest.ProcStatus(t, gw.PID(), "VmHWM"), remotetest.OpenFiles(t, gw.PID())
	for name, change := range map[string]func(*pb.ModelInferRequest){
		"less data":         func(r *pb.ModelInferRequest) { r.RawInputContents[0] = make([]byte, 15) },
		"more data":         func(r *pb.ModelInferRequest) { r.RawInputContents[0] = make([]byte, 17) },
		"no data":           func(r *pb.ModelInferRequest) { r.RawInputContents = nil },
		"data of nobody":    func(r *pb.ModelInferRequest) { r.RawInputContents = append(r.RawInputContents, nil) },
		"negative":          func(r *pb.ModelInferRequest) { r.Inputs[0].Shape = []int64{-1} },
		"overflow":          func(r *pb.ModelInferRequest) { r.Inputs[0].Shape = []int64{1 << 62, 4} },
		"overflow of bytes": func(r *pb.ModelInferRequest) { r.Inputs[0].Shape = []int64{1 << 62} },
		"terabytes":         func(r *pb.ModelInferRequest) { r.Inputs[0].Shape = []int64{1 << 40} },
		"dimensions":        func(r *pb.ModelInferRequest) { r.Inputs[0].Shape = make([]int64, 1000) },
		"datatype":          func(r *pb.ModelInferRequest) { r.Inputs[0].Datatype = "FP33" },
		"no datatype":       func(r *pb.ModelInferRequest) { r.Inputs[0].Datatype = "" },
		"texts in a tensor": func(r *pb.ModelInferRequest) { r.Inputs[0].Datatype = "BYTES" },
		"twice": func(r *pb.ModelInferRequest) {
			r.Inputs = append(r.Inputs, r.Inputs[0])
			r.RawInputContents = append(r.RawInputContents, elements(4))
		},
		"two ways": func(r *pb.ModelInferRequest) {
			r.Inputs[0].Contents = &pb.InferTensorContents{Fp32Contents: []float32{1, 2, 3, 4}}
		},
		"no region": func(r *pb.ModelInferRequest) {
			r.Inputs[0].Parameters = inRegion("none", 0, 16)
			r.RawInputContents = nil
		},
		"negative offset": func(r *pb.ModelInferRequest) {
			r.Inputs[0].Parameters = inRegion("none", -1, 16)
			r.RawInputContents = nil
		},
		"half a region": func(r *pb.ModelInferRequest) {
			r.Inputs[0].Parameters = map[string]*pb.InferParameter{"shared_memory_region": text("r")}
		},
		"region is a number": func(r *pb.ModelInferRequest) {
			r.Inputs[0].Parameters = map[string]*pb.InferParameter{"shared_memory_region": integer(1)}
		},
		"output twice": func(r *pb.ModelInferRequest) {
			r.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{{Name: "output"}, {Name: "output"}}
		},
		"timeout": func(r *pb.ModelInferRequest) { r.Parameters = map[string]*pb.InferParameter{"timeout": integer(-1)} },
	} {
		r := identity(4)
		change(r)
		_, err := client.ModelInfer(ctx, r)
		require.Contains(t, []codes.Code{codes.InvalidArgument, codes.NotFound}, status.Code(err), "%s: %v", name, err)
	}
	texts := func(raw []byte, n int64) error {
		_, err := client.ModelInfer(ctx, &pb.ModelInferRequest{
			ModelName: "mixed", Parameters: map[string]*pb.InferParameter{"label": text("l")}, RawInputContents: [][]byte{raw},
			Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "tags", Datatype: "BYTES", Shape: []int64{n}}},
		})
		return err
	}
	require.NoError(t, texts([]byte("\x01\x00\x00\x00a\x00\x00\x00\x00"), 2))
	for _, raw := range []string{"", "\x01\x00\x00\x00", "\xff\xff\xff\xffa", "\x01\x00\x00\x00ab", "\x01\x00\x00\x00a\x00\x00\x00", "\x01\x00\x00\x00a\x00\x00\x00\x00\x00\x00\x00\x00"} {
		require.Equal(t, codes.InvalidArgument, status.Code(texts([]byte(raw), 2)), "%q", raw)
	}
	require.Equal(t, codes.InvalidArgument, status.Code(texts(nil, 1<<40)))
	_, err = client.ModelInfer(ctx, identity(4))
	require.NoError(t, err)
	require.Less(t, remotetest.ProcStatus(t, gw.PID(), "VmHWM")-before, 64<<10)
	require.LessOrEqual(t, remotetest.OpenFiles(t, gw.PID()), filesBefore+4, "descriptors")
}

// post sends a request for identity over REST and returns the status and the error.
func post(t *testing.T, gw *remotetest.Gateway, header map[string]string, body []byte) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gw.HTTP()+"/v2/models/identity/infer", bytes.NewReader(body))
	require.NoError(t, err)
	for name, value := range header {
		r.Header.Set(name, value)
	}
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	var told struct {
		Error string `json:"error"`
	}
	if answer.StatusCode != http.StatusOK {
		require.NoError(t, json.Unmarshal(got, &told), "%s", got)
		require.NotEmpty(t, told.Error)
	}
	return answer.StatusCode, told.Error
}

// Invalid REST bodies are refused before memory is allocated for them.
func TestInvalidBodiesAreRefused(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := serve(t, owner, "--max-request", "4MiB")
	binary := func(size any) string {
		return fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"FP32","shape":[4],"parameters":{"binary_data_size":%v}}]}`, size)
	}
	plain := func(shape, data string) string {
		return fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"INT8","shape":%s,"data":%s}]}`, shape, data)
	}
	head := func(text string) map[string]string {
		return map[string]string{"Inference-Header-Content-Length": strconv.Itoa(len(text))}
	}
	good := binary(16)
	code, _ := post(t, gw, head(good), append([]byte(good), elements(4)...))
	require.Equal(t, http.StatusOK, code)
	for _, data := range []string{`[1,2,3,4]`, `[[1,2],[3,4]]`, ` [ -128, 127,1.0 ,0]`} {
		code, told := post(t, gw, nil, []byte(plain("[4]", data)))
		require.Equal(t, http.StatusOK, code, "%s: %s", data, told)
	}
	before := remotetest.ProcStatus(t, gw.PID(), "VmHWM")
	var small bytes.Buffer
	zipped := gzip.NewWriter(&small)
	_, err := zipped.Write([]byte(plain("[4]", "[1,2,3,4]")))
	require.NoError(t, err)
	require.NoError(t, zipped.Close())
	code, told := post(t, gw, map[string]string{"Content-Encoding": "gzip"}, small.Bytes())
	require.Equal(t, http.StatusOK, code, told)
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for range 64 {
		_, err := z.Write(bytes.Repeat([]byte{' '}, 1<<20))
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	for name, c := range map[string]struct {
		header map[string]string
		body   string
		want   int
	}{
		"too little":          {head(good), good + "abc", http.StatusBadRequest},
		"too much":            {head(good), good + string(elements(5)), http.StatusBadRequest},
		"header beyond":       {map[string]string{"Inference-Header-Content-Length": "100000"}, good, http.StatusBadRequest},
		"header of exabytes":  {map[string]string{"Inference-Header-Content-Length": "9223372036854775807"}, good, http.StatusBadRequest},
		"header negative":     {map[string]string{"Inference-Header-Content-Length": "-1"}, good, http.StatusBadRequest},
		"header is a word":    {map[string]string{"Inference-Header-Content-Length": "many"}, good, http.StatusBadRequest},
		"no header":           {nil, good, http.StatusBadRequest},
		"size of exabytes":    {head(binary(int64(1) << 60)), binary(int64(1)<<60) + "abc", http.StatusBadRequest},
		"size negative":       {head(binary(-4)), binary(-4), http.StatusBadRequest},
		"size is a text":      {head(binary(`"16"`)), binary(`"16"`) + string(elements(4)), http.StatusBadRequest},
		"no JSON":             {nil, "{", http.StatusBadRequest},
		"nothing":             {nil, "", http.StatusBadRequest},
		"too few elements":    {nil, plain("[4]", "[1,2,3]"), http.StatusBadRequest},
		"too many elements":   {nil, plain("[1]", "[1,2,3]"), http.StatusBadRequest},
		"elements of others":  {nil, plain("[1]", `["a"]`), http.StatusBadRequest},
		"an object":           {nil, plain("[1]", `{"a":1}`), http.StatusBadRequest},
		"out of range":        {nil, plain("[1]", `[128]`), http.StatusBadRequest},
		"half":                {nil, plain("[1]", `[1.5]`), http.StatusBadRequest},
		"null":                {nil, plain("[1]", `[null]`), http.StatusBadRequest},
		"terabytes":           {nil, plain("[1099511627776]", `[1]`), http.StatusBadRequest},
		"another compression": {map[string]string{"Content-Encoding": "br"}, good, http.StatusNotImplemented},
		"bad compression":     {map[string]string{"Content-Encoding": "gzip"}, good, http.StatusBadRequest},
		"a bomb":              {map[string]string{"Content-Encoding": "gzip"}, bomb.String(), http.StatusRequestEntityTooLarge},
		"large":               {nil, strings.Repeat(" ", 5<<20), http.StatusRequestEntityTooLarge},
	} {
		begin := time.Now()
		code, told := post(t, gw, c.header, []byte(c.body))
		require.Equal(t, c.want, code, "%s: %s", name, told)
		require.Less(t, time.Since(begin), 10*time.Second, "%s: nothing is waited for", name)
	}
	code, _ = post(t, gw, head(good), append([]byte(good), elements(4)...))
	require.Equal(t, http.StatusOK, code)
	require.Less(t, remotetest.ProcStatus(t, gw.PID(), "VmHWM")-before, 96<<10)
}

// sharedFile creates and registers memory as shm_open does.
func sharedFile(t *testing.T, client pb.GRPCInferenceServiceClient, name string, bytes int) *os.File {
	t.Helper()
	path := filepath.Join("/dev/shm", fmt.Sprintf("sharedtensor-test-%d-%s", os.Getpid(), name))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.Remove(path)); _ = f.Close() })
	require.NoError(t, f.Truncate(int64(bytes)))
	_, err = client.SystemSharedMemoryRegister(t.Context(), &pb.SystemSharedMemoryRegisterRequest{Name: name, Key: "/" + filepath.Base(path), ByteSize: uint64(bytes)})
	require.NoError(t, err)
	return f
}

// Requests fail if a client shrinks its memory while they use it. Mapped memory would end the gateway with SIGBUS.
func TestRegionThatShrinks(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := serve(t, owner, "--allow-client-shm")
	client := dial(t, gw)
	const size = 8 << 20
	in, out := sharedFile(t, client, "in", size), sharedFile(t, client, "out", size)
	r := identity(size / 4)
	r.RawInputContents = nil
	r.Inputs[0].Parameters = inRegion("in", 0, size)
	r.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{{Name: "output", Parameters: inRegion("out", 0, size)}}
	_, err := client.ModelInfer(t.Context(), r)
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	shrinking := make(chan struct{})
	go func() {
		defer close(shrinking)
		for ctx.Err() == nil {
			for _, f := range []*os.File{in, out} {
				_ = f.Truncate(4096)
				time.Sleep(time.Millisecond)
				_ = f.Truncate(size)
			}
		}
	}()
	refused := 0
	for range 100 {
		if _, err := client.ModelInfer(t.Context(), r); err != nil {
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
			require.ErrorContains(t, err, "smaller")
			refused++
		}
	}
	stop()
	<-shrinking
	t.Logf("%d of 100 requests met memory that was gone", refused)

	require.NoError(t, out.Truncate(16))
	_, err = client.ModelInfer(t.Context(), r)
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	info, err := out.Stat()
	require.NoError(t, err)
	require.EqualValues(t, 16, info.Size(), "memory that a client has made smaller stays so")
	require.NoError(t, in.Truncate(16))
	_, err = client.ModelInfer(t.Context(), r)
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	require.NoError(t, in.Truncate(size))
	require.NoError(t, out.Truncate(size))
	_, err = client.ModelInfer(t.Context(), r)
	require.NoError(t, err)
}

// System shared memory cannot be registered until an operator allows it.
func TestSharedMemoryIsOff(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := serve(t, owner)
	client := dial(t, gw)
	_, err := client.SystemSharedMemoryRegister(t.Context(), &pb.SystemSharedMemoryRegisterRequest{Name: "r", Key: "/k", ByteSize: 1})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	require.ErrorContains(t, err, "--allow-client-shm")
	r := identity(4)
	r.RawInputContents, r.Inputs[0].Parameters = nil, inRegion("r", 0, 16)
	_, err = client.ModelInfer(t.Context(), r)
	require.Equal(t, codes.Unimplemented, status.Code(err))
	m, err := client.ServerMetadata(t.Context(), &pb.ServerMetadataRequest{})
	require.NoError(t, err)
	require.NotContains(t, m.GetExtensions(), "system_shared_memory")
}

// Requests fail with an error that names the missing owner, and the functions of a new owner are found.
func TestOwnerReplaced(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := serve(t, owner)
	client := dial(t, gw)
	_, err := client.ModelInfer(t.Context(), identity(4))
	require.NoError(t, err)
	owner.Kill()
	remotetest.Eventually(t, func() error {
		_, err := client.ModelInfer(t.Context(), identity(4))
		if status.Code(err) != codes.Unavailable {
			return fmt.Errorf("it answers: %w", err)
		}
		return nil
	})
	remotetest.Eventually(t, func() error { // a call may fail before the end of the connection is noticed
		answer, err := http.Get(gw.HTTP() + "/v2/health/ready")
		if err == nil && answer.StatusCode != http.StatusServiceUnavailable {
			err = errors.New(answer.Status)
		}
		if answer != nil {
			_ = answer.Body.Close()
		}
		return err
	})
	remotetest.StartOwner(t, "--socket", owner.Socket)
	remotetest.Eventually(t, func() error {
		_, err := client.ModelInfer(t.Context(), identity(4))
		return err
	})
}

// Read-only senders are refused if they load or unload models or register memory.
func TestReadOnlySendersChangeNothing(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := serve(t, owner, "--read-only", "--allow-client-shm")
	client := dial(t, gw)
	_, err := client.RepositoryModelUnload(t.Context(), &pb.RepositoryModelUnloadRequest{ModelName: "identity"})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	_, err = client.SystemSharedMemoryRegister(t.Context(), &pb.SystemSharedMemoryRegisterRequest{Name: "r", Key: "/k", ByteSize: 1})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	_, err = client.ModelInfer(t.Context(), identity(4))
	require.NoError(t, err)
}

// A client that leaves in the middle of a result stream does not hold resources for long.
func TestStreamClientLeaves(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := serve(t, owner)
	client := dial(t, gw)
	_, err := client.ModelInfer(t.Context(), identity(4))
	require.NoError(t, err)
	before, ownerBefore := remotetest.OpenFiles(t, gw.PID()), remotetest.OpenFiles(t, owner.PID())
	for range 20 {
		ctx, leave := context.WithCancel(t.Context())
		call, err := client.ModelStreamInfer(ctx)
		require.NoError(t, err)
		r := identity(1 << 16)
		r.ModelName, r.Parameters = "repeat", map[string]*pb.InferParameter{"times": integer(1000)}
		require.NoError(t, call.Send(r))
		_, err = call.Recv()
		require.NoError(t, err)
		leave()
	}
	remotetest.Eventually(t, func() error {
		if n, m := remotetest.OpenFiles(t, gw.PID()), remotetest.OpenFiles(t, owner.PID()); n > before+2 || m > ownerBefore+2 {
			return fmt.Errorf("%d descriptors of %d, and %d of %d of the owner", n, before, m, ownerBefore)
		}
		return nil
	})
}
