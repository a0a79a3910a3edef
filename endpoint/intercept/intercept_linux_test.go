package intercept_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
)

// The test binary is also the owner and the client, as processes of their own.
const roleEnv = "INTERCEPT_TEST_ROLE"

// How long tests wait for another process, and how often they look.
const (
	wait = time.Minute
	tick = time.Millisecond
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "owner":
		runOwner()
	case "client":
		runClient()
	default:
		os.Exit(m.Run())
	}
}

// traceSeen is what the owner's function tells of its context.
type traceSeen struct{ Trace, Span, Parent string }

type parentKey struct{}

// runOwner serves until its standard input ends. Each call is a line of JSON on its standard output.
func runOwner() {
	functions := endpoint.NewRegistry()
	about := func(ctx context.Context, _ int) (traceSeen, error) {
		t, _ := intercept.TraceFrom(ctx)
		parent, _ := ctx.Value(parentKey{}).(string)
		return traceSeen{t.TraceID, t.SpanID, parent}, nil
	}
	for _, name := range []string{"trace", "for nobody", "for us"} {
		must(endpoint.Register(functions, name, about))
	}
	server, err := endpoint.NewServer(endpoint.ServerOptions{
		Socket: os.Args[1], Registry: functions, AllowUIDs: []uint32{4242}, Logger: slog.New(slog.DiscardHandler),
		Interceptors: []endpoint.Interceptor{
			intercept.Tracing(func(ctx context.Context, _ *endpoint.Invocation) (context.Context, func(error)) {
				t, _ := intercept.TraceFrom(ctx)
				return context.WithValue(ctx, parentKey{}, t.SpanID), nil
			}),
			intercept.Logging(slog.New(slog.NewJSONHandler(os.Stdout, nil))),
			intercept.Only(intercept.Callers{UIDs: []uint32{65500}, GIDs: []uint32{65501}}, "for nobody"),
			intercept.Only(intercept.Callers{GIDs: []uint32{uint32(os.Getegid())}}, "for us"),
		},
	})
	must(err)
	fmt.Println("ready")
	go server.Serve(context.Background())
	_, _ = io.Copy(io.Discard, os.Stdin)
	must(server.Close())
}

// runClient calls every function once, within one trace, and tells what came of it.
func runClient() {
	ctx := context.Background()
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{
		Socket: os.Args[1], AllowUIDs: []uint32{0}, Interceptors: []endpoint.Interceptor{intercept.Tracing(nil)},
	})
	must(err)
	mine := intercept.NewTrace()
	ctx = intercept.WithTrace(ctx, mine)
	out := map[string]any{"mine": traceSeen{Trace: mine.TraceID, Span: mine.SpanID}}
	for _, name := range []string{"trace", "for nobody", "for us"} {
		got, err := endpoint.Call[traceSeen](ctx, client, name, 1)
		switch {
		case errors.Is(err, endpoint.ErrPermission):
			out[name] = "refused"
		case err != nil:
			out[name] = err.Error()
		default:
			out[name] = got
		}
	}
	must(json.NewEncoder(os.Stdout).Encode(out))
	must(client.Close())
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestOwnerAndClientsOfOtherUsers(t *testing.T) {
	dir, err := os.MkdirTemp("", "st")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	socket := filepath.Join(dir, "s.sock")
	process := func(role string, uid uint32) *exec.Cmd {
		cmd := exec.Command("/proc/self/exe", socket) // a path that every user may open
		cmd.Env, cmd.Stderr = append(os.Environ(), roleEnv+"="+role), os.Stderr
		if uid != 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, NoSetGroups: true}}
		}
		return cmd
	}
	owner := process("owner", 0)
	in, err := owner.StdinPipe()
	require.NoError(t, err)
	var log lines
	owner.Stdout = &log
	require.NoError(t, owner.Start())
	defer owner.Process.Kill()
	require.Eventually(t, func() bool { return strings.HasPrefix(log.String(), "ready") }, wait, tick)

	call := func(uid uint32) map[string]json.RawMessage {
		text, err := process("client", uid).Output()
		require.NoError(t, err)
		var out map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(text, &out))
		return out
	}
	decode := func(raw json.RawMessage) (s traceSeen) {
		require.NoError(t, json.Unmarshal(raw, &s), "%s", raw)
		return s
	}
	out := call(0)
	mine := decode(out["mine"])
	require.JSONEq(t, `"refused"`, string(out["for nobody"]))
	spans := map[string]bool{mine.Span: true}
	for _, name := range []string{"trace", "for us"} {
		theirs := decode(out[name])
		require.Equal(t, mine.Trace, theirs.Trace, "one trace over both processes")
		for _, span := range []string{theirs.Span, theirs.Parent} {
			require.Len(t, span, 16)
			require.False(t, spans[span], "each call has a span of its own on each side")
			spans[span] = true
		}
	}
	if os.Geteuid() == 0 { // only root can be another user
		out = call(4242)
		require.JSONEq(t, `"refused"`, string(out["for us"]))
		require.Equal(t, decode(out["mine"]).Trace, decode(out["trace"]).Trace)
	}
	require.NoError(t, in.Close())
	require.NoError(t, owner.Wait())
	var refused, fine int
	for line := range strings.Lines(strings.TrimPrefix(log.String(), "ready\n")) {
		var entry struct {
			Level, Msg, Endpoint, Error string
			TraceID                     string `json:"trace_id"`
			PID                         int
			Duration                    int64
		}
		require.NoError(t, json.Unmarshal([]byte(line), &entry), line)
		require.Equal(t, "call", entry.Msg)
		require.Len(t, entry.TraceID, 32)
		require.NotZero(t, entry.PID)
		if entry.Level == "WARN" {
			require.Contains(t, entry.Error, "not for processes of uid")
			refused++
			continue
		}
		fine++
	}
	require.Positive(t, refused)
	require.Positive(t, fine)
}

// TestCallsHaveSpansOfTheirHook has a hook that makes spans itself, as OpenTelemetry's would.
func TestCallsHaveSpansOfTheirHook(t *testing.T) {
	functions := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(functions, "span", func(ctx context.Context, fail bool) (string, error) {
		if fail {
			return "", errors.New("as asked")
		}
		trace, _ := intercept.TraceFrom(ctx)
		return trace.String() + " " + trace.State, nil
	}))
	var mu sync.Mutex // both ends of a connection have a hook
	var began, ended []string
	hook := func(name string) intercept.StartSpan {
		return func(ctx context.Context, call *endpoint.Invocation) (context.Context, func(error)) {
			parent, _ := intercept.TraceFrom(ctx)
			mu.Lock()
			defer mu.Unlock()
			began = append(began, name+" under "+parent.SpanID)
			own := parent.Child()
			own.SpanID = name
			return intercept.WithTrace(ctx, own), func(err error) {
				mu.Lock()
				defer mu.Unlock()
				ended = append(ended, fmt.Sprint(name, " ", err != nil))
			}
		}
	}
	const there, here = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"
	dir, err := os.MkdirTemp("", "st")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	server, err := endpoint.NewServer(endpoint.ServerOptions{
		Socket: filepath.Join(dir, "s.sock"), Registry: functions, Interceptors: []endpoint.Interceptor{intercept.Tracing(hook(there))},
	})
	require.NoError(t, err)
	defer server.Close()
	go server.Serve(context.Background())
	for _, over := range []bool{true, false} { // the socket, and the pipe within the process
		mu.Lock()
		began, ended = nil, nil
		mu.Unlock()
		client, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{
			Socket: server.Socket(), OverSocket: over, Interceptors: []endpoint.Interceptor{intercept.Tracing(hook(here))},
		})
		require.NoError(t, err)
		const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		trace, ok := intercept.ParseTrace(parent, "vendor=1")
		require.True(t, ok)
		ctx := intercept.WithTrace(t.Context(), trace)
		got, err := endpoint.Call[string](ctx, client, "span", false)
		require.NoError(t, err)
		require.Equal(t, "00-4bf92f3577b34da6a3ce929d0e0e4736-"+there+"-01 vendor=1", got)
		_, err = endpoint.Call[string](ctx, client, "span", true)
		require.Error(t, err)
		mu.Lock()
		require.Equal(t, []string{here + " under 00f067aa0ba902b7", there + " under " + here}, began[:2])
		require.Equal(t, []string{there + " false", here + " false", there + " true", here + " true"}, ended)
		mu.Unlock()
		require.NoError(t, client.Close())
	}
}

// lines keeps what a process writes.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
