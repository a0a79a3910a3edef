package stream_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/pytest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchpb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchsave"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestTorchClient(t *testing.T) {
	dev := remotetest.OpenHost(t)
	before := memfds(t)
	set := makeSet(t, dev, "model", 3<<20)
	sink := &keepSink{}
	_, address := serve(t, stream.ServerOptions{Device: dev, Sink: sink, Source: setSource{set}, Processor: stream.Identity})
	client := stream.NewTorchClient(dial(t, address), stream.ClientOptions{Device: dev})
	var items []*stream.Item
	for name, x := range set.Tensors.All() {
		if x.DType().BitSize()%8 == 0 {
			items = append(items, &stream.Item{ID: name, Tensor: x, Metadata: map[string]string{"layer": name, "correlation_id": "c-" + name}})
		}
	}
	ids, err := client.SendTensors(t.Context(), items...)
	require.NoError(t, err)
	answers, err := client.StreamTensors(t.Context(), items...)
	require.NoError(t, err)
	for i, item := range items {
		require.Equal(t, item.ID, ids[i])
		require.Equal(t, "processed_"+item.ID, answers[i].ID)
		require.Equal(t, "c-"+item.ID, answers[i].Metadata["correlation_id"])
		kept, _ := sink.sets[i].Tensors.Get(item.ID)
		require.Equal(t, item.ID, sink.sets[i].Tensors.Metadata["layer"])
		for _, got := range []*tensor.Tensor{kept, answers[i].Tensor} {
			equal, err := item.Tensor.Equal(got)
			require.NoError(t, err)
			require.True(t, equal, item.ID)
		}
		require.NoError(t, answers[i].Tensor.Close())
	}
	received, err := client.ReceiveTensors(t.Context(), 2, nil)
	require.NoError(t, err)
	require.Len(t, received, 2)
	require.Equal(t, "transposed", received[1].Metadata["name"])
	require.Equal(t, "[700, 300]", received[1].Metadata["shape"])
	require.Equal(t, "torch.float32", received[1].Metadata["dtype"])
	for _, item := range received {
		item.Tensor.Close()
	}
	sink.close()
	set.Close()
	requireMemfds(t, before)
}

// torchFile returns the file of a tensor of n bytes that contain mark.
func torchFile(t *testing.T, n int64, mark byte) []byte {
	t.Helper()
	x, err := tensor.Zeros(remotetest.OpenHost(t), tensor.Uint8, tensor.Shape{n})
	require.NoError(t, err)
	defer x.Close()
	raw, err := tensor.RawData(x)
	require.NoError(t, err)
	for i := range raw {
		raw[i] = mark
	}
	encoded, err := torchsave.Encode(x)
	require.NoError(t, err)
	var out bytes.Buffer
	_, err = encoded.WriteTo(&out)
	require.NoError(t, err)
	return out.Bytes()
}

func cut(id string, file []byte, size int) (chunks []*torchpb.TensorChunk) {
	total := uint32((len(file) + size - 1) / size)
	for n := uint32(0); len(file) > 0; n++ {
		piece := file[:min(size, len(file))]
		file = file[len(piece):]
		chunks = append(chunks, &torchpb.TensorChunk{TensorId: id, ChunkNumber: n, TotalChunks: total, Data: piece, IsLast: len(file) == 0})
	}
	return chunks
}

// sendChunks sends chunks with the generated client.
func sendChunks(t *testing.T, address string, chunks []*torchpb.TensorChunk) (*torchpb.TensorResponse, error) {
	t.Helper()
	call, err := torchpb.NewServiceClient(dial(t, address)).ReceiveTensors(t.Context())
	require.NoError(t, err)
	for _, c := range chunks {
		if call.Send(c) != nil {
			break
		}
	}
	return call.CloseAndRecv()
}

// Chunks of several tensors may arrive shuffled, including the shorter last ones, and some twice.
func TestChunksInAnyOrder(t *testing.T) {
	sink := &keepSink{}
	defer sink.close()
	_, address := serve(t, stream.ServerOptions{Sink: sink})
	var chunks []*torchpb.TensorChunk
	const n = 100_000
	for i := range byte(5) {
		chunks = append(chunks, cut(fmt.Sprint(i), torchFile(t, n, i), 999+777*int(i))...)
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		chunks = append(chunks, chunks[r.IntN(len(chunks))])
	}
	r.Shuffle(len(chunks), func(i, j int) { chunks[i], chunks[j] = chunks[j], chunks[i] })
	response, err := sendChunks(t, address, chunks)
	require.NoError(t, err)
	if !response.GetSuccess() { // a duplicate that arrives after its tensor was complete starts an incomplete one
		require.Contains(t, response.GetMessage(), "incomplete")
	}
	require.Len(t, response.GetReceivedTensorIds(), 5)
	for _, set := range sink.sets {
		x, _ := set.Tensors.Get(set.Name)
		raw, err := tensor.RawData(x)
		require.NoError(t, err)
		require.Len(t, raw, n)
		require.Equal(t, bytes.Repeat([]byte(set.Name), n), bytes.ReplaceAll(raw, []byte{set.Name[0] - '0'}, []byte(set.Name)))
	}
}

// Calls that violate the protocol are answered with success = false and the tensors received before.
func TestTorchProtocolViolations(t *testing.T) {
	dev := remotetest.OpenHost(t)
	before := memfds(t)
	sink := &keepSink{}
	limits := stream.Limits{Chunks: 1000, TensorBytes: 1 << 20, TorchBytes: 1 << 20}
	server, address := serve(t, stream.ServerOptions{Device: dev, Sink: sink, Limits: limits})
	good := cut("good", torchFile(t, 100, 1), 1<<20)
	chunk := func(id string, number, total uint32, data string) *torchpb.TensorChunk {
		return &torchpb.TensorChunk{TensorId: id, ChunkNumber: number, TotalChunks: total, Data: []byte(data)}
	}
	var flood []*torchpb.TensorChunk
	for i := range 1025 {
		flood = append(flood, chunk(fmt.Sprint(i), 0, 2, "x"))
	}
	for name, c := range map[string]struct {
		chunks []*torchpb.TensorChunk
		word   string
	}{
		"incomplete":     {[]*torchpb.TensorChunk{chunk("half", 0, 3, "x"), chunk("half", 2, 3, "x")}, `"half" (2 of 3 chunks)`},
		"by count only":  {[]*torchpb.TensorChunk{chunk("a", 1, 2, "x"), chunk("a", 1, 2, "x")}, `"a" (1 of 2 chunks)`},
		"huge total":     {[]*torchpb.TensorChunk{chunk("a", 0, 1<<31, "x")}, "2147483648 chunks are more than 1000"},
		"number":         {[]*torchpb.TensorChunk{chunk("a", 5, 5, "x")}, "chunk 5 of 5"},
		"total changes":  {[]*torchpb.TensorChunk{chunk("a", 0, 3, "x"), chunk("a", 1, 4, "x")}, "3 chunks at first, now 4"},
		"empty":          {[]*torchpb.TensorChunk{chunk("a", 0, 3, "")}, "is empty"},
		"too many bytes": {[]*torchpb.TensorChunk{chunk("a", 0, 3, string(make([]byte, 2<<20)))}, "more than 1048576 bytes"},
		"too many":       {flood, "more than 1024 tensors at a time"},
		"no file":        {[]*torchpb.TensorChunk{chunk("a", 0, 1, "hello")}, "not a file of torch.save"},
	} {
		t.Run(name, func(t *testing.T) {
			response, err := sendChunks(t, address, append(good[:1:1], c.chunks...))
			require.NoError(t, err)
			require.False(t, response.GetSuccess())
			require.Contains(t, response.GetMessage(), "Error: ")
			require.Contains(t, response.GetMessage(), c.word)
			require.Equal(t, []string{"good"}, response.GetReceivedTensorIds())
		})
	}
	require.Zero(t, server.PendingBytes())
	sink.close()
	requireMemfds(t, before)
}

func TestTorchServerRefuses(t *testing.T) {
	dev := remotetest.OpenHost(t)
	failing := stream.ProcessorFunc(func(context.Context, *stream.Item) (*tensor.Tensor, error) { return nil, fmt.Errorf("no weights") })
	_, address := serve(t, stream.ServerOptions{Device: dev, Processor: failing})
	client := stream.NewTorchClient(dial(t, address), stream.ClientOptions{Device: dev})
	one, err := tensor.Zeros(dev, tensor.Float32, tensor.Shape{3})
	require.NoError(t, err)
	defer one.Close()
	_, err = client.StreamTensors(t.Context(), &stream.Item{ID: "a", Tensor: one})
	require.Equal(t, codes.Internal, status.Code(err))
	require.ErrorContains(t, err, "no weights")
	_, err = client.SendTensors(t.Context(), &stream.Item{ID: "a", Tensor: one})
	require.ErrorIs(t, err, stream.ErrNotServed)
}

// A Python program that follows skytorch's example client can send, request and process tensors with torch.save and
// torch.load.
func TestPythonClient(t *testing.T) {
	python := pytest.Python(t, "grpc_tools", "torch")
	dev := remotetest.OpenHost(t)
	set := makeSet(t, dev, "model", 3<<20)
	sink := &keepSink{}
	defer sink.close()
	_, address := serve(t, stream.ServerOptions{Device: dev, Sink: sink, Source: setSource{set}, Processor: stream.Identity})
	cmd := exec.Command(python, "testdata/torch_client.py", address)
	cmd.Env = append(cmd.Environ(), "PYTHONPATH="+pytest.Stubs(t, python, "torchpb/torch.proto"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "sent: Received 3 tensor(s)")
	require.Contains(t, string(out), "received: [3145728] [700, 300]")
	require.Contains(t, string(out), "processed: 3 tensors, equal")
	require.Len(t, sink.sets, 3)
	t.Logf("%s", out)
}
