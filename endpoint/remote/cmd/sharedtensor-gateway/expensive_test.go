package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute/computepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchpb"
)

// Limits of TestExpensiveTransfersStayInBudget: --max-in-flight, the bytes of one message, and the clients of each kind.
const (
	transferBudget  = 96 << 20
	transferMessage = 8 << 20
	transferClients = 12
)

// framed returns messages of a gRPC call.
func framed(compressed byte, messages ...[]byte) []byte {
	var all []byte
	for _, m := range messages {
		all = append(all, compressed)
		all = binary.BigEndian.AppendUint32(all, uint32(len(m)))
		all = append(all, m...)
	}
	return all
}

// encode returns the encoding of a message, and of a field that is repeated until the message has n bytes.
func encode(t *testing.T, m proto.Message, field string, n int) []byte {
	t.Helper()
	encoded, err := proto.Marshal(m)
	require.NoError(t, err)
	return append(encoded, strings.Repeat(field, max(0, n-len(encoded))/max(1, len(field)))...)
}

// expensiveCalls returns the methods and messages of gRPC calls that do not end.
func expensiveCalls(t *testing.T) map[string][]byte {
	t.Helper()
	chunk := func(id string, number, total uint32) *torchpb.TensorChunk {
		return &torchpb.TensorChunk{TensorId: id, ChunkNumber: number, TotalChunks: total, Data: []byte{1}}
	}
	var small, tensors, described [][]byte
	for i := range uint32(8000) {
		small = append(small, encode(t, chunk("a", i, 9000), "", 0))
	}
	for i := range 500 {
		tensors = append(tensors, encode(t, chunk(fmt.Sprint(i), 0, 2), "\x32\x00", transferMessage/500))
	}
	for i := range uint32(20) {
		c := chunk("a", i, 21)
		c.Data = make([]byte, transferMessage/2)
		described = append(described, encode(t, c, "", 0))
	}
	request := &computepb.ComputeRequest{ModelId: "none", Shape: []int32{1 << 20}, Data: make([]byte, 1<<20)}
	put := &streampb.Chunk{Set: &streampb.Set{Name: "none"}}
	const torch = "/kpu.torch.Service/ReceiveTensors"
	return map[string][]byte{
		torch + "#small chunks":        framed(0, small...),
		torch + "#small tensors":       framed(0, tensors...),
		torch + "#large chunks":        framed(0, described...),
		torch + "#metadata":            framed(0, encode(t, chunk("a", 0, 2), "\x32\x00", transferMessage)),
		computeStreamMethod + "#":      framed(0, encode(t, request, "\x22\x00", transferMessage)),
		putMethod + "#metadata":        framed(0, encode(t, put, "\x22\x00", transferMessage)),
		exchangeMethod + "#":           framed(0, encode(t, put, "\x22\x00", transferMessage)),
		getMethod + "#":                framed(0, encode(t, &streampb.GetRequest{Name: "none"}, "\x1a\x00", transferMessage)),
		torch + "#inflated;gzip":       framed(1, packed(t, encode(t, chunk("a", 0, 2), "\x32\x00", transferMessage))),
		inferMethod + "#inflated;gzip": framed(1, packed(t, encode(t, chunk("a", 0, 2), "\x32\x00", transferMessage))),
	}
}

// Methods of the calls.
const (
	computeStreamMethod = "/splitlearn.comm.ComputeService/ComputeStream"
	exchangeMethod      = "/sharedtensor.stream.v1.TensorStream/Exchange"
	getMethod           = "/sharedtensor.stream.v1.TensorStream/Get"
)

func packed(t *testing.T, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(plain)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}

// windowed returns the beginning of a zstd body with the largest window, after which its decoder holds the window.
func windowed(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b, zstd.WithWindowSize(8<<20), zstd.WithEncoderConcurrency(1))
	require.NoError(t, err)
	_, err = z.Write([]byte(`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"`))
	require.NoError(t, err)
	_, err = z.Write(bytes.Repeat([]byte("0123456789abcdef"), 9<<20/16))
	require.NoError(t, err)
	require.NoError(t, z.Flush())
	return b.Bytes()
}

// Clients that begin the most expensive transfers of each protocol, or do not read, make the gateway hold at most twice
// --max-in-flight. The transfers stay open until they are counted.
func TestExpensiveTransfersStayInBudget(t *testing.T) {
	debug := remotetest.FreeAddress(t)
	gw := remotetest.StartGateway(t, "off", withTokens(t, "--debug", debug, "--nats", "embedded", "--nats-listen", "127.0.0.1:0", "--max-in-flight", "96MiB", "--max-request", "16MiB",
		"--stall", "5m")...)
	before := held(t, gw, debug)
	var writing sync.WaitGroup
	end := make(chan struct{})
	defer close(end)

	for method, message := range expensiveCalls(t) {
		name, encoding, _ := strings.Cut(method, ";")
		path, _, _ := strings.Cut(name, "#")
		client := rawClient(t)
		for range transferClients {
			reader, writer := io.Pipe()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+gw.Addresses.GRPC+path, reader)
			require.NoError(t, err)
			for field, value := range map[string]string{"Content-Type": "application/grpc", "Te": "trailers", "Authorization": "Bearer " + fullToken, "Grpc-Encoding": encoding} {
				if value != "" {
					request.Header.Set(field, value)
				}
			}
			go keepOpen(client, request, end)
			writing.Go(func() { _, _ = writer.Write(message) }) // fails if the call is refused
		}
	}
	body := windowed(t)
	for range transferClients {
		reader, writer := io.Pipe()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gw.HTTP()+"/jsonrpc", reader)
		require.NoError(t, err)
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Content-Encoding", "zstd")
		request.Header.Set("Authorization", "Bearer "+fullToken)
		go keepOpen(http.DefaultClient, request, end)
		writing.Go(func() { _, _ = writer.Write(body) }) // fails if the request is refused
	}
	server, err := url.Parse(gw.Addresses.NATS)
	require.NoError(t, err)
	for range transferClients {
		conn, err := net.Dial("tcp", server.Host)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = io.WriteString(conn, `CONNECT {"verbose":false,"auth_token":"`+fullToken+`"}`+"\r\nSUB unread 1\r\nPING\r\n")
		require.NoError(t, err)
		answer := make([]byte, 64<<10)
		for read := ""; !strings.Contains(read, "PONG"); {
			n, err := conn.Read(answer)
			require.NoError(t, err)
			read += string(answer[:n])
		}
	}
	publisher, err := nats.Connect(gw.Addresses.NATS, nats.Token(fullToken))
	require.NoError(t, err)
	t.Cleanup(publisher.Close)
	writing.Go(func() {
		for range 128 {
			_ = publisher.Publish("unread", make([]byte, 512<<10)) // fails if the publisher is disconnected
		}
		_ = publisher.FlushTimeout(remotetest.Patience)
	})
	writing.Wait()
	sent := make(chan struct{})
	close(sent)
	requireHeldUntil(t, gw, debug, sent, before, 2*transferBudget*memoryFactor)
}

// keepOpen sends a request and reads its answer. It stops when end is closed.
func keepOpen(client *http.Client, request *http.Request, end <-chan struct{}) {
	response, err := client.Do(request)
	if err == nil {
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
	select {
	case <-end:
	default:
		_ = request.Body.Close() // ends the writer of a refused request
	}
}
