package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// attackers send requests that make a gateway hold memory, and keep their connections open until the test ends.
type attackers struct {
	gw      *remotetest.Gateway
	sent    atomic.Int64 // in bytes
	working sync.WaitGroup

	mu      sync.Mutex
	clients []*http.Client
	bodies  []io.Closer // of answers that stay unread
}

// closeIdle closes the connections without a request, and the answers that have ended.
func (a *attackers) closeIdle() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, body := range a.bodies {
		_ = body.Close() // best effort: the connection may be lost
	}
	for _, client := range a.clients {
		client.CloseIdleConnections()
	}
	http.DefaultClient.CloseIdleConnections()
}

// Total size of each request, and the size of a piece.
const (
	attackBytes = 8 << 20
	attackPiece = 256 << 10
	attackCalls = 6
)

// pour writes attackBytes, or as much as the gateway accepts.
func (a *attackers) pour(w io.Writer, piece []byte) {
	for n := 0; n < attackBytes; n += len(piece) {
		if _, err := w.Write(piece); err != nil {
			return
		}
		a.sent.Add(int64(len(piece)))
	}
}

// grpc attacks each method with large unfinished messages, and one method with many small frames.
func (a *attackers) grpc(t *testing.T, token string) {
	for _, method := range []string{
		inferMethod, streamInfer, putMethod, computeInOne, checkMethod, watchMethod, "/splitlearn.comm.ComputeService/ComputeStream",
		"/sharedtensor.stream.v1.TensorStream/Get", "/sharedtensor.stream.v1.TensorStream/Exchange", "/kpu.torch.Service/ReceiveTensors",
		"/kpu.torch.Service/StreamTensors", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
	} {
		client := rawClient(t)
		a.clients = append(a.clients, client)
		for i := range attackCalls {
			call := startCall(t, client, a.gw, method, token)
			a.working.Go(func() {
				call.claim(attackBytes * 2)
				if i > 0 {
					a.pour(call.body, make([]byte, attackPiece))
					return
				}
				for range 20_000 {
					if _, err := call.body.Write([]byte{0}); err != nil {
						return
					}
				}
			})
		}
	}
}

// http attacks each route that accepts a body.
func (a *attackers) http(t *testing.T, token string) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(bytes.Repeat([]byte(" "), 32<<20)) // best effort: writes to memory
	_ = z.Close()
	for path, kind := range map[string]string{
		"/jsonrpc": "application/json", "/v2/models/identity/infer": "", "/v2/repository/index": "", "/v1/models/m/model.safetensors": "",
		"/": "", "/metrics": "", "/healthz": "", "/v1/status": "",
	} {
		for i := range attackCalls {
			method := http.MethodPost
			if strings.HasSuffix(path, "safetensors") {
				method = http.MethodPut
			}
			ctx, cancel := context.WithCancel(t.Context())
			t.Cleanup(cancel)
			reader, writer := io.Pipe()
			request, err := http.NewRequestWithContext(ctx, method, a.gw.HTTP()+path, reader)
			require.NoError(t, err)
			request.ContentLength = -1
			if method == http.MethodPut {
				request.ContentLength = 2 * attackBytes
			}
			request.Header.Set("Content-Type", kind)
			if token != "" {
				request.Header.Set("Authorization", "Bearer "+token)
			}
			piece := bytes.Repeat([]byte(" "), attackPiece)
			if i == 0 && method == http.MethodPost {
				request.Header.Set("Content-Encoding", "gzip")
				piece = packed.Bytes()
			}
			go func() {
				if response, err := http.DefaultTransport.RoundTrip(request); err == nil {
					a.mu.Lock()
					a.bodies = append(a.bodies, response.Body)
					a.mu.Unlock()
				}
				_ = reader.CloseWithError(io.ErrClosedPipe)
			}()
			a.working.Go(func() {
				if method == http.MethodPut {
					_, _ = writer.Write(safetensorsHead(attackBytes)) // best effort: later writes fail too
				}
				if i == 0 && method == http.MethodPost {
					_, _ = writer.Write(piece)
					return
				}
				a.pour(writer, piece)
			})
		}
	}
}

// raw attacks a port with bytes that are not a request, or only the beginning of one.
func (a *attackers) raw(t *testing.T, address, begin string) {
	for range 4 * attackCalls {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		a.working.Go(func() {
			if _, err := io.WriteString(conn, begin); err == nil {
				a.pour(conn, bytes.Repeat([]byte("x"), attackPiece))
			}
		})
	}
}

// settle waits until the gateway accepts no more bytes from the attackers.
func (a *attackers) settle() {
	done := make(chan struct{})
	go func() {
		a.working.Wait()
		close(done)
	}()
	for last, quiet := int64(-1), 0; quiet < 20; {
		select {
		case <-done:
			return
		case <-time.After(100 * time.Millisecond):
		}
		if now := a.sent.Load(); now == last {
			quiet++
		} else {
			last, quiet = now, 0
		}
	}
}

var heapFigure = regexp.MustCompile(`(?m)^# (HeapAlloc|StackInuse) = (\d+)$`)

// held returns the bytes that a gateway holds: heap without garbage, stacks and shared memory.
func held(t *testing.T, gw *remotetest.Gateway, debug string) (total int64) {
	t.Helper()
	var text []byte
	for range 2 { // the second collection frees what sync.Pools kept in the first
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+debug+"/debug/pprof/heap?debug=1&gc=1", http.NoBody)
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+fullToken)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		text, err = io.ReadAll(response.Body)
		_ = response.Body.Close()
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, response.StatusCode, "%s", text)
	}
	figures := heapFigure.FindAllSubmatch(text, -1)
	require.NotEmpty(t, figures)
	for _, f := range figures {
		n, err := strconv.ParseInt(string(f[2]), 10, 64)
		require.NoError(t, err)
		total += n
	}
	return total + int64(remotetest.ProcStatus(t, gw.PID(), "RssShmem"))<<10
}

// Unauthenticated and read-only clients that send the largest and slowest input of every protocol on every port make
// the gateway hold at most 64 MiB in total.
func TestUnauthenticatedClientsShareLittleMemory(t *testing.T) {
	owner := remotetest.StartOwner(t)
	debug := remotetest.FreeAddress(t)
	gw := remotetest.StartGateway(t, owner.Socket, withTokens(t, "--nats", "embedded", "--nats-listen", "127.0.0.1:0", "--debug", debug, "--stall", "5m")...)
	requireReady(t, gw)
	before := held(t, gw, debug)

	a := &attackers{gw: gw}
	server, err := url.Parse(gw.Addresses.NATS)
	require.NoError(t, err)
	for _, token := range []string{"", readOnlyToken} {
		a.grpc(t, token)
		a.http(t, token)
		a.raw(t, server.Host, `CONNECT {"auth_token":"`+token+`"}`+"\r\nPUB a 1000000\r\n")
		a.raw(t, server.Host, `CONNECT {"auth_token":"`)
	}
	a.raw(t, gw.Addresses.HTTP, "GET / HTTP/1.1\r\nHost: localhost\r\nX-A: ")
	a.raw(t, gw.Addresses.GRPC, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	a.raw(t, debug, "GET / HTTP/1.1\r\nHost: localhost\r\nX-A: ")
	a.frames(t)
	a.settle()
	t.Cleanup(a.closeIdle)

	after := held(t, gw, debug)
	t.Logf("%d MiB sent, %d MiB held before, %d MiB after", a.sent.Load()>>20, before>>20, after>>20)
	require.Less(t, after-before, int64(64<<20*memoryFactor))

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, gw.HTTP()+"/v1/status", http.NoBody)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+fullToken)
	requireAnswer(t, request, http.StatusOK) // other clients are still served
}
