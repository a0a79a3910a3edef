package intercept_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

func TestMain(m *testing.M) { proctest.Main(m) }

// The test binary also runs as the owner and the client in separate processes.
var (
	owners = proctest.NewRole("owner", nil, func() (*ownerState, error) { return &ownerState{}, nil })
	serve  = proctest.NewOp(owners, "serve", (*ownerState).serve)
	logged = proctest.NewOp(owners, "log", (*ownerState).stop)

	callers = proctest.NewRole("caller", nil, func() (*struct{}, error) { return &struct{}{}, nil })
	callAll = proctest.NewOp(callers, "call", func(_ *struct{}, socket string) (callerSaw, error) { return callOwner(socket) })
)

// traceSeen is the trace in the context of the owner's function.
type traceSeen struct{ Trace, Span, Parent string }

type parentKey struct{}

// ownerState is a server and its log.
type ownerState struct {
	server *endpoint.Server
	log    lines
}

// serve serves on a socket.
func (o *ownerState) serve(socket string) (struct{}, error) {
	functions := endpoint.NewRegistry()
	about := func(ctx context.Context, _ int) (traceSeen, error) {
		t, _ := intercept.TraceFrom(ctx)
		parent, _ := ctx.Value(parentKey{}).(string)
		return traceSeen{t.TraceID, t.SpanID, parent}, nil
	}
	for _, name := range []string{"trace", "for nobody", "for us"} {
		if err := endpoint.Register(functions, name, about); err != nil {
			return struct{}{}, err
		}
	}
	var err error
	o.server, err = endpoint.NewServer(endpoint.ServerOptions{
		Socket: socket, Registry: functions, AllowUIDs: []uint32{4242}, Logger: slog.New(slog.DiscardHandler),
		Interceptors: []endpoint.Interceptor{
			intercept.Tracing(func(ctx context.Context, _ *endpoint.Invocation) (context.Context, func(error)) {
				t, _ := intercept.TraceFrom(ctx)
				return context.WithValue(ctx, parentKey{}, t.SpanID), nil
			}),
			intercept.Logging(slog.New(slog.NewJSONHandler(&o.log, nil))),
			intercept.Only(intercept.Callers{UIDs: []uint32{65500}, GIDs: []uint32{65501}}, "for nobody"),
			intercept.Only(intercept.Callers{GIDs: []uint32{uint32(os.Getegid())}}, "for us"),
		},
	})
	if err == nil {
		go o.server.Serve(context.Background())
	}
	return struct{}{}, err
}

// stop closes the server and returns its log, one JSON object per call.
func (o *ownerState) stop(struct{}) (string, error) {
	err := o.server.Close() // waits for the calls
	return o.log.String(), err
}

// callerSaw is the result of each function for a client: a trace, or a refusal.
type callerSaw struct {
	Mine    traceSeen
	Got     map[string]traceSeen
	Refused []string
}

// callOwner calls every function once, within one trace.
func callOwner(socket string) (saw callerSaw, err error) {
	ctx := context.Background()
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{
		Socket: socket, AllowUIDs: []uint32{0}, Interceptors: []endpoint.Interceptor{intercept.Tracing(nil)},
	})
	if err != nil {
		return saw, err
	}
	mine := intercept.NewTrace()
	ctx = intercept.WithTrace(ctx, mine)
	saw = callerSaw{Mine: traceSeen{Trace: mine.TraceID, Span: mine.SpanID}, Got: map[string]traceSeen{}}
	for _, name := range []string{"trace", "for nobody", "for us"} {
		got, err := endpoint.Call[traceSeen](ctx, client, name, 1)
		switch {
		case errors.Is(err, endpoint.ErrPermission):
			saw.Refused = append(saw.Refused, name)
		case err != nil:
			return saw, fmt.Errorf("%s: %w", name, err)
		default:
			saw.Got[name] = got
		}
	}
	return saw, client.Close()
}

func TestOwnerAndClientsOfOtherUsers(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "st")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	socket := filepath.Join(dir, "s.sock")
	owner := owners.Start(t)
	serve.Must(owner, socket)
	call := func(uid uint32) callerSaw {
		return callAll.Must(callers.Start(t, func(cmd *exec.Cmd) {
			cmd.Path = "/proc/self/exe" // a path that every user may open
			if uid != 0 {
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, NoSetGroups: true}}
			}
		}), socket)
	}
	saw := call(0)
	require.Equal(t, []string{"for nobody"}, saw.Refused)
	spans := map[string]bool{saw.Mine.Span: true}
	for _, name := range []string{"trace", "for us"} {
		theirs := saw.Got[name]
		require.Equal(t, saw.Mine.Trace, theirs.Trace, "one trace over both processes")
		for _, span := range []string{theirs.Span, theirs.Parent} {
			require.Len(t, span, 16)
			require.False(t, spans[span], "each call has a span of its own on each side")
			spans[span] = true
		}
	}
	if os.Geteuid() == 0 { // only root can be another user
		saw = call(4242)
		require.Equal(t, []string{"for nobody", "for us"}, saw.Refused)
		require.Equal(t, saw.Mine.Trace, saw.Got["trace"].Trace)
	}
	log := logged.Must(owner, struct{}{})
	var refused, fine int
	for line := range strings.Lines(log) {
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

// A program's hook, such as OpenTelemetry's, can create the spans.
func TestCallsHaveSpansOfTheirHook(t *testing.T) {
	t.Parallel()
	functions := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(functions, "span", func(ctx context.Context, fail bool) (string, error) {
		if fail {
			return "", errors.New("as asked")
		}
		trace, _ := intercept.TraceFrom(ctx)
		return trace.String() + " " + trace.State, nil
	}))
	var mu sync.Mutex // both sides of the connection run a hook
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

// lines collects the lines of a logger.
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
