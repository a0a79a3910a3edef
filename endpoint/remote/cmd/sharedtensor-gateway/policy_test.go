package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// withPolicy returns the flags of a gateway with a directory of tokens, one for each name, and a policy.
func withPolicy(t *testing.T, policy string, names ...string) (flags []string, policyFile, tokens string) {
	t.Helper()
	dir := t.TempDir()
	tokens, policyFile = filepath.Join(dir, "tokens"), filepath.Join(dir, "policy.yaml")
	require.NoError(t, os.Mkdir(tokens, 0o700))
	for _, name := range names {
		require.NoError(t, os.WriteFile(filepath.Join(tokens, name), []byte(matrixToken(name)+"\n"), 0o600))
	}
	require.NoError(t, os.WriteFile(policyFile, []byte(policy), 0o600))
	return []string{"--token-file", tokens, "--policy", policyFile}, policyFile, tokens
}

// request sends an HTTP request with the token of a name and returns the response's status and body. It repeats a request
// whose connection was reset: a gateway that refuses a body closes the connection, and the client may notice that before
// it has read the response.
func request(t *testing.T, gw *remotetest.Gateway, name, method, path string, body io.Reader) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), remotetest.Patience)
	defer cancel()
	var content []byte
	if body != nil {
		var err error
		content, err = io.ReadAll(body)
		require.NoError(t, err)
	}
	for {
		r, err := http.NewRequestWithContext(ctx, method, gw.HTTP()+path, bytes.NewReader(content))
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+matrixToken(name))
		response, err := http.DefaultClient.Do(r)
		var text []byte
		if err == nil {
			text, err = io.ReadAll(response.Body)
			_ = response.Body.Close() // best effort: it was read
		}
		if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			continue
		}
		require.NoError(t, err)
		return response.StatusCode, string(text)
	}
}

// The packages bins and natslink work with a token that may use one namespace only, which the gateway creates.
func TestBinsWithScopes(t *testing.T) {
	t.Parallel()
	flags, _, _ := withPolicy(t, `
rules:
  - {tokens: [writer], write: [bin.mine, queue.jobs]}
  - {tokens: [reader], read: [bin.mine]}
  - {tokens: [part], write: [bin.mine.a.*]}
`, "writer", "reader", "part")
	gw := remotetest.StartGateway(t, "off", append(flags, "--nats", "embedded", "--nats-listen", "127.0.0.1:0")...)
	open := func(name string) (*bins.Store, *nats.Conn) {
		conn, err := natslink.Connect(gw.Addresses.NATS, nats.Token(matrixToken(name)))
		require.NoError(t, err)
		t.Cleanup(conn.Close)
		var store *bins.Store
		remotetest.Eventually(t, func() (err error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			store, err = bins.Open(ctx, conn, bins.Options{Namespace: "mine"})
			return err
		})
		return store, conn
	}
	writer, conn := open("writer")
	reader, _ := open("reader")
	part, _ := open("part")
	ctx, cancel := context.WithTimeout(t.Context(), remotetest.Patience)
	defer cancel()

	listener, err := reader.Listen(ctx, "a.>")
	require.NoError(t, err)
	defer listener.Close()
	large := bytes.Repeat([]byte("large "), 1<<18)
	for _, body := range [][]byte{[]byte("small"), large} {
		_, err = writer.Append(ctx, "a.b", bins.Value{Body: body})
		require.NoError(t, err)
	}
	items, err := reader.Peek(ctx, "a.b")
	require.NoError(t, err)
	require.Len(t, items, 2)
	require.Equal(t, large, items[1].Body)
	for _, err = range listener.Events(ctx) {
		break
	}
	require.NoError(t, err)
	counts, err := reader.List(ctx, ">")
	require.NoError(t, err)
	require.Equal(t, map[string]int{"a.b": 2}, counts)
	taken, err := writer.Take(ctx, "a.b", bins.TakeOptions{})
	require.NoError(t, err)
	require.Len(t, taken, 2)

	for range 2 {
		_, err = part.Append(ctx, "a.c", bins.Value{Body: []byte("part")})
		require.NoError(t, err)
		items, err = part.Peek(ctx, "a.c")
		require.NoError(t, err)
		require.Len(t, items, 1)
		items, err = part.Take(ctx, "a.c", bins.TakeOptions{})
		require.NoError(t, err)
		require.Len(t, items, 1)
	}
	_, err = writer.Append(ctx, "b.c", bins.Value{Body: []byte("of others")})
	require.NoError(t, err)
	for name, write := range map[string]func(ctx context.Context) error{
		"a reader appends": func(ctx context.Context) error {
			_, err := reader.Append(ctx, "a.b", bins.Value{Body: []byte("x")})
			return err
		},
		"a reader takes":             func(ctx context.Context) error { _, err := reader.Take(ctx, "a.b", bins.TakeOptions{}); return err },
		"a client reads other names": func(ctx context.Context) error { _, err := part.Peek(ctx, "b.c"); return err },
		"a client writes other names": func(ctx context.Context) error {
			_, err := part.Append(ctx, "b.c", bins.Value{Body: []byte("x")})
			return err
		},
	} {
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		_, err := writer.Append(ctx, "a.b", bins.Value{Body: []byte("for takers")})
		require.NoError(t, err)
		require.Error(t, write(short), name)
		cancel()
	}

	queue, err := bins.OpenQueue(ctx, conn, bins.QueueOptions{Options: bins.Options{Namespace: "jobs"}})
	require.NoError(t, err)
	_, err = queue.Push(ctx, "job", bins.Value{Body: large})
	require.NoError(t, err)
	jobs, err := queue.Pull(ctx, 1)
	require.NoError(t, err)
	require.Equal(t, large, jobs[0].Body)
	require.NoError(t, jobs[0].Ack(ctx))
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	short, stop := context.WithTimeout(ctx, 300*time.Millisecond)
	defer stop()
	_, err = bins.Open(short, js.Conn(), bins.Options{Namespace: "other"})
	require.Error(t, err)
}

// A change of the policy ends the running calls and NATS connections of the identities whose rights changed, and no
// others. A policy that is invalid is not used.
func TestPolicyChanges(t *testing.T) {
	t.Parallel()
	const before = "rules:\n  - {tokens: [a], call: ['*'], read: [bin.x]}\n  - {tokens: [b], call: ['*'], read: [bin.x]}\n"
	flags, policy, _ := withPolicy(t, before, "a", "b")
	gw := remotetest.StartGateway(t, "off", append(flags, "--nats", "embedded", "--nats-listen", "127.0.0.1:0")...)
	closed := map[string]chan struct{}{}
	calls := map[string]*rawCall{}
	for _, name := range []string{"a", "b"} {
		end := make(chan struct{})
		conn, err := nats.Connect(gw.Addresses.NATS, nats.Token(matrixToken(name)), nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(end) }))
		require.NoError(t, err)
		defer conn.Close()
		closed[name], calls[name] = end, startCall(t, rawClient(t), gw, streamInfer, matrixToken(name))
	}
	require.NoError(t, os.WriteFile(policy, []byte("rules:\n  - {tokens: [a], call: [other]}\n  - {tokens: [b], call: ['*'], read: [bin.x]}\n"), 0o600))
	calls["a"].requireStatus(t, codes.Unauthenticated)
	select {
	case <-closed["a"]:
	case <-time.After(remotetest.Patience):
		t.Fatal("the NATS connection of a changed identity goes on")
	}
	select {
	case <-closed["b"]:
		t.Fatal("the NATS connection of an unchanged identity ended")
	case got := <-calls["b"].status:
		t.Fatalf("the call of an unchanged identity ended: %v", got.code)
	default:
	}

	require.NoError(t, os.WriteFile(policy, []byte("rules:\n  - {tokens: [a], cal: [x]}\n"), 0o600))
	remotetest.Eventually(t, func() error {
		request(t, gw, "b", http.MethodGet, "/v2", nil) // files are checked when they are used
		if !strings.Contains(gw.Log(), "field cal not found") {
			return errors.New("the invalid policy is not reported")
		}
		return nil
	})
	status, _ := request(t, gw, "b", http.MethodGet, "/v2", nil)
	require.Equal(t, http.StatusOK, status)
	require.NoError(t, os.WriteFile(policy, []byte("rules: []\n"), 0o600))
	remotetest.Eventually(t, func() error {
		if status, _ := request(t, gw, "b", http.MethodGet, "/v2", nil); status != http.StatusForbidden {
			return fmt.Errorf("status %d", status)
		}
		return nil
	})
}

// A file in the directory of tokens may contain the old and the new token of a name, which are one identity. Removing the
// old one cuts its running download.
func TestTokensAreRotated(t *testing.T) {
	t.Parallel()
	flags, _, tokens := withPolicy(t, "rules:\n  - {tokens: [a], list: ['*'], acquire: ['*']}\n", "a")
	owner := remotetest.StartOwner(t, "--model", "m=67108864")
	gw := remotetest.StartGateway(t, owner.Socket, flags...)
	remotetest.Eventually(t, func() error {
		if status, body := request(t, gw, "a", http.MethodGet, "/v1/models/m", nil); status != http.StatusOK {
			return fmt.Errorf("status %d: %s", status, body)
		}
		return nil
	})
	_, lease := request(t, gw, "a", http.MethodPost, "/v1/models/m/leases", nil)
	_, id, _ := strings.Cut(lease, `"lease":"`)
	id, _, _ = strings.Cut(id, `"`)
	require.NotEmpty(t, id, lease)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, gw.HTTP()+"/v1/models/m/model.safetensors", http.NoBody)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+matrixToken("a"))
	download, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer download.Body.Close()
	require.Equal(t, http.StatusOK, download.StatusCode)

	file := filepath.Join(tokens, "a")
	require.NoError(t, os.WriteFile(file, []byte(matrixToken("a")+"\n"+matrixToken("next")+" # since today\n"), 0o600))
	remotetest.Eventually(t, func() error {
		if status, body := request(t, gw, "next", http.MethodPost, "/v1/leases/"+id, nil); status != http.StatusOK {
			return fmt.Errorf("the new token does not renew the lease: %d %s", status, body)
		}
		return nil
	})
	require.NoError(t, os.WriteFile(file, []byte(matrixToken("next")+"\n"), 0o600))
	remotetest.Eventually(t, func() error {
		if status, _ := request(t, gw, "a", http.MethodGet, "/v1/models/m", nil); status != http.StatusUnauthorized {
			return fmt.Errorf("status %d with the old token", status)
		}
		return nil
	})
	time.Sleep(2 * time.Second) // running calls are checked once a second
	n, err := io.Copy(io.Discard, download.Body)
	require.Error(t, err, "the download with the old token ended after %d bytes without an error", n)
	status, _ := request(t, gw, "next", http.MethodPost, "/v1/leases/"+id, nil)
	require.Equal(t, http.StatusOK, status)
}

// Each quota of a policy limits the identity and no other.
func TestQuotas(t *testing.T) {
	t.Parallel()
	flags, _, _ := withPolicy(t, `
rules:
  - tokens: [small]
    list: ["*"]
    acquire: ["*"]
    publish: ["*"]
    call: ["*"]
    quota: {in-flight: 64KiB, uploads: 1MiB, leases: 2}
  - {tokens: [slow], list: ["*"], call: ["*"], quota: {requests: 2}}
  - {tokens: [free], info: true, list: ["*"], acquire: ["*"], publish: ["*"], call: ["*"]}
`, "small", "slow", "free")
	owner := remotetest.StartOwner(t, "--model", "m=4096")
	gw := remotetest.StartGateway(t, owner.Socket, flags...)
	remotetest.Eventually(t, func() error {
		if status, body := request(t, gw, "free", http.MethodGet, "/v1/models/m", nil); status != http.StatusOK {
			return fmt.Errorf("status %d: %s", status, body)
		}
		return nil
	})
	for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
		status, body := request(t, gw, "small", http.MethodPost, "/v1/models/m/leases", nil)
		require.Equal(t, want, status, "lease %d: %s", i, body)
	}
	status, body := request(t, gw, "free", http.MethodPost, "/v1/models/m/leases", nil)
	require.Equal(t, http.StatusOK, status, body)

	upload := func(name string, size int) int {
		status, _ := request(t, gw, name, http.MethodPut, "/v1/models/up/model.safetensors", bytes.NewReader(append(safetensorsHead(size), make([]byte, size)...)))
		return status
	}
	require.Equal(t, http.StatusCreated, upload("small", 1<<19))
	require.Equal(t, http.StatusTooManyRequests, upload("small", 1<<21))
	require.Equal(t, http.StatusCreated, upload("free", 1<<21))

	// 16 KiB of elements are 22 KiB of base64.
	infer := func(name string, size int) int {
		values := strings.TrimSuffix(strings.Repeat("1,", size), ",")
		status, _ := request(t, gw, name, http.MethodPost, "/v2/models/identity/infer",
			strings.NewReader(fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"UINT8","shape":[%d],"data":[%s]}]}`, size, values)))
		return status
	}
	require.Equal(t, http.StatusOK, infer("small", 1<<10))
	require.Equal(t, http.StatusTooManyRequests, infer("small", 1<<17))
	require.Equal(t, http.StatusOK, infer("free", 1<<17))

	_, page := request(t, gw, "free", http.MethodGet, "/v1/status", nil) // the page counts by client
	var sample struct {
		Clients []struct {
			Name     string
			Failures int
			Uses     []string
		}
		Gateway struct{ Limits map[string]int }
	}
	require.NoError(t, json.Unmarshal([]byte(page), &sample))
	uses := map[string]string{}
	for _, c := range sample.Clients {
		uses[c.Name] = fmt.Sprint(c.Failures > 0, c.Uses)
	}
	require.Equal(t, "true [m up identity]", uses["small"])
	require.Contains(t, uses["free"], "identity")
	require.Positive(t, sample.Gateway.Limits["bytes in flight"])
	require.Positive(t, sample.Gateway.Limits["uploads"])

	refused := 0
	for range 20 {
		if status, _ := request(t, gw, "slow", http.MethodGet, "/v1/models", nil); status == http.StatusTooManyRequests {
			refused++
		}
	}
	require.Positive(t, refused)
	remotetest.Eventually(t, func() error { // and again after a while
		if status, _ := request(t, gw, "slow", http.MethodGet, "/v1/models", nil); status != http.StatusOK {
			return fmt.Errorf("status %d", status)
		}
		return nil
	})
	time.Sleep(time.Second)
	var batch strings.Builder
	for i := range 10 {
		fmt.Fprintf(&batch, `,{"jsonrpc":"2.0","id":%d,"method":"ping"}`, i)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gw.HTTP()+"/jsonrpc", strings.NewReader("["+batch.String()[1:]+"]"))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+matrixToken("slow"))
	r.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.GreaterOrEqual(t, strings.Count(string(text), "too many requests"), 7, "%s", text)
}

// A client whose quota permits it sends larger messages than the limit of the gateway, over all protocols, and no others.
func TestMessageQuota(t *testing.T) {
	t.Parallel()
	flags, _, _ := withPolicy(t, `
rules:
  - {tokens: [large], call: ["*"], quota: {message: 3MiB}}
  - {tokens: [plain], call: ["*"]}
`, "large", "plain")
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket, append(flags, "--max-request", "1MiB")...)
	conn, err := grpc.NewClient(gw.Addresses.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	client := pb.NewGRPCInferenceServiceClient(conn)
	infer := func(name string, size int, opts ...grpc.CallOption) codes.Code {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+matrixToken(name))
		_, err := client.ModelInfer(ctx, &pb.ModelInferRequest{
			ModelName: "identity", RawInputContents: [][]byte{make([]byte, size)},
			Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "UINT8", Shape: []int64{int64(size)}}},
		}, append(opts, grpc.MaxCallRecvMsgSize(16<<20))...)
		return status.Code(err)
	}
	remotetest.Eventually(t, func() error {
		if code := infer("plain", 1); code != codes.OK {
			return errors.New(code.String())
		}
		return nil
	})
	for _, packed := range [][]grpc.CallOption{nil, {grpc.UseCompressor(gzip.Name)}} {
		require.Equal(t, codes.ResourceExhausted, infer("plain", 2<<20, packed...))
		require.Equal(t, codes.OK, infer("large", 2<<20, packed...))
		require.Equal(t, codes.ResourceExhausted, infer("large", 4<<20, packed...))
	}
	body := func(size int) io.Reader {
		return strings.NewReader(strings.Repeat(" ", size) + `{"inputs":[{"name":"x","datatype":"UINT8","shape":[1],"data":[1]}]}`)
	}
	for name, want := range map[string]int{"plain": http.StatusRequestEntityTooLarge, "large": http.StatusOK} {
		got, text := request(t, gw, name, http.MethodPost, "/v2/models/identity/infer", body(2<<20))
		require.Equal(t, want, got, text)
	}
	got, _ := request(t, gw, "large", http.MethodPost, "/v2/models/identity/infer", body(4<<20))
	require.Equal(t, http.StatusRequestEntityTooLarge, got)
}

// Each request has a line of JSON in the access log, with the client's name. Probes have none.
func TestAccessLog(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access.jsonl")
	flags, _, _ := withPolicy(t, "rules:\n  - {tokens: [a], call: ['*']}\n", "a")
	gw := remotetest.StartGateway(t, "off", append(flags, "--access-log", file)...)
	status, _ := request(t, gw, "a", http.MethodGet, "/v2/none", nil)
	require.Equal(t, http.StatusNotFound, status)
	status, _ = request(t, gw, "a", http.MethodGet, "/healthz", nil)
	require.Equal(t, http.StatusOK, status)
	call := startCall(t, rawClient(t), gw, "/inference.GRPCInferenceService/ServerLive", matrixToken("a"))
	call.claim(0)
	require.NoError(t, call.body.Close())
	call.requireStatus(t, codes.OK)
	type line struct {
		Protocol, Method, Path, Identity, Remote string
		Status                                   any
		Seconds                                  float64
	}
	var lines []line
	remotetest.Eventually(t, func() error {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		lines = nil
		for one := range strings.Lines(string(text)) {
			var l line
			if err := json.Unmarshal([]byte(one), &l); err != nil {
				return err
			}
			require.Positive(t, l.Seconds)
			require.Equal(t, "a", l.Identity)
			require.NotEmpty(t, l.Remote)
			l.Seconds, l.Remote = 0, ""
			lines = append(lines, l)
		}
		if len(lines) < 2 {
			return fmt.Errorf("%d lines", len(lines))
		}
		return nil
	})
	require.ElementsMatch(t, []line{
		{Protocol: "http", Method: "GET", Path: "/v2/none", Identity: "a", Status: 404.0},
		{Protocol: "grpc", Method: "/inference.GRPCInferenceService/ServerLive", Identity: "a", Status: "ok"},
	}, lines)
}

// A request of a stream counts also if its sender may not call the model.
func TestRefusedStreamRequestsCount(t *testing.T) {
	t.Parallel()
	flags, _, _ := withPolicy(t, `rules: [{tokens: [a], call: [mine], quota: {requests: 2}}]`, "a")
	gw := remotetest.StartGateway(t, "off", flags...)
	conn, err := grpc.NewClient(gw.Addresses.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), remotetest.Patience)
	defer cancel()
	call, err := pb.NewGRPCInferenceServiceClient(conn).ModelStreamInfer(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+matrixToken("a")))
	require.NoError(t, err)
	var answers []string
	for range 20 {
		require.NoError(t, call.Send(&pb.ModelInferRequest{ModelName: "other"}))
		answer, err := call.Recv()
		require.NoError(t, err)
		answers = append(answers, answer.GetErrorMessage())
	}
	require.Contains(t, answers[0], "not allowed")
	require.Contains(t, strings.Join(answers, "\n"), "too many requests")
}

// A gateway does not start with a policy that it cannot use.
func TestPolicyIsChecked(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"":                                      "the file is empty",
		"rules:\n  - {list: ['*']}":             "it matches no client",
		"rules:\n  - {tokens: [a]}":             "it gives no right",
		"rules:\n  - {tokens: [a], lst: [x]}":   "field lst not found",
		"rules:\n  - {tokens: [a], read: [x]}":  `"x" is not a scope of NATS`,
		"rules:\n  - {tokens: [a], call: ['']}": "a pattern has 1 to 512 bytes",
		"rules:\n  - {tokens: [a], quota: {in-flight: much}}": "is not a size",
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			flags, _, _ := withPolicy(t, text, "a")
			require.Contains(t, remotetest.RefusedGateway(t, flags...), says)
		})
	}
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(policy, []byte("rules: []\n"), 0o600))
	require.Contains(t, remotetest.RefusedGateway(t, "--policy", policy), "set --token-file or --client-ca")
	require.NoError(t, os.Chmod(policy, 0o666))
	flags, _, _ := withPolicy(t, "rules: []", "a")
	require.Contains(t, remotetest.RefusedGateway(t, append(flags, "--policy", policy)...), "others may write it")
}
