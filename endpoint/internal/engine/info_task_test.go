package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// inEachState returns tasks of a server with one worker by the state in which they stay.
func inEachState(t *testing.T, s *endpoint.Server) map[endpoint.TaskState]string {
	t.Helper()
	ctx := context.Background()
	ids := map[endpoint.TaskState]string{}
	submit := func(state endpoint.TaskState, name string, in any) {
		info, err := s.Submit(ctx, name, in)
		require.NoError(t, err)
		ids[state] = info.ID
	}
	submit(endpoint.TaskCompleted, "model task", fixture.ModelIn{Size: 2})
	submit(endpoint.TaskFailed, "raise task", "out of memory")
	submit(endpoint.TaskRunning, "steps", fixture.GateIn{Gate: "end", N: 3})
	submit(endpoint.TaskPending, "gated task", fixture.GateIn{Gate: "end"})
	submit(endpoint.TaskCancelled, "gated task", fixture.GateIn{Gate: "end", N: 1})
	cancelled, err := s.Task(ids[endpoint.TaskCancelled]).Cancel(ctx)
	require.NoError(t, err)
	require.True(t, cancelled)
	proctest.Eventually(t, fixture.WaitLimit, "the one that runs has reported", func() bool {
		info, err := s.Task(ids[endpoint.TaskRunning]).Info(ctx)
		require.NoError(t, err)
		return info.Done == 3
	})
	t.Cleanup(func() { require.NoError(t, s.Call(ctx, "open", "end", nil)) })
	return ids
}

// The information about a task is the same for its owner and for others, and in JSON.
func TestTaskInfoInAllRoles(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	ctx := context.Background()
	dev := fixture.Device(t)
	s := fixture.Serve(t, endpoint.ServerOptions{
		Registry: fixture.Registry(dev, &fixture.Counters{}), Tasks: endpoint.TaskOptions{Workers: 1}, Logger: fixture.Discard(),
	})
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), Devices: fixture.DriversOf(dev)})
	require.NoError(t, err)
	defer c.Close()
	ids := inEachState(t, s)
	ref, err := endpoint.ResultManaged[*tensor.Tensor](ctx, c.Task(ids[endpoint.TaskCompleted]))
	require.NoError(t, err)
	defer ref.Close()

	list, err := c.Tasks(ctx, endpoint.TaskFilter{})
	require.NoError(t, err)
	require.Len(t, list, 5)
	for state, id := range ids {
		t.Run(string(state), func(t *testing.T) {
			here, err := s.Task(id).Info(ctx)
			require.NoError(t, err)
			there, err := c.Task(id).Info(ctx)
			require.NoError(t, err)
			require.Equal(t, here, there)
			require.Contains(t, list, there)
			require.Equal(t, state, there.State)
			require.Equal(t, id, there.ID)
			checkTask(t, there, ref.ID())

			text, err := json.Marshal(there)
			require.NoError(t, err)
			var names map[string]any
			require.NoError(t, json.Unmarshal(text, &names))
			require.Equal(t, id, names["task_id"])
			require.Equal(t, string(state), names["status"])
			require.Equal(t, state.Terminal(), names["completed_at"] != nil)
			require.Equal(t, there.Err() != nil, names["error_type"] != nil)
			require.Equal(t, there.Err() != nil, names["error_message"] != nil)
			var again endpoint.TaskInfo
			require.NoError(t, json.Unmarshal(text, &again))
			second, err := json.Marshal(again)
			require.NoError(t, err)
			require.Equal(t, string(text), string(second))
			checkTask(t, again, ref.ID())
		})
	}
}

// checkTask checks the information about a task in its state.
func checkTask(t *testing.T, info endpoint.TaskInfo, object string) {
	t.Helper()
	require.NotEmpty(t, info.Endpoint)
	require.NotZero(t, info.Seq)
	require.NotZero(t, info.Session)
	require.False(t, info.CreatedAt.IsZero())
	require.Equal(t, info.State == endpoint.TaskPending || info.State == endpoint.TaskCancelled, info.StartedAt.IsZero())
	require.Equal(t, info.State.Terminal(), !info.FinishedAt.IsZero())
	err := info.Err()
	switch info.State {
	case endpoint.TaskFailed:
		require.Equal(t, "out of memory", info.ErrorType)
		require.Contains(t, info.Error, "layer 3")
		require.ErrorIs(t, err, task.ErrFailed)
		require.ErrorIs(t, err, driver.ErrOutOfMemory)
		require.ErrorIs(t, err, message.CodeTask)
		require.EqualError(t, err, info.Error)
	case endpoint.TaskCancelled:
		require.Equal(t, "cancelled", info.ErrorType)
		require.ErrorIs(t, err, task.ErrCancelled)
		require.NotErrorIs(t, err, task.ErrFailed)
		require.EqualError(t, err, info.Error)
	default:
		require.NoError(t, err)
		require.Empty(t, info.Error+info.ErrorType)
	}
	switch info.State {
	case endpoint.TaskCompleted:
		require.Equal(t, object, info.ObjectID)
	case endpoint.TaskRunning:
		require.Equal(t, "step 3", info.Message)
		require.EqualValues(t, 3, info.Total)
		fallthrough
	default:
		require.Empty(t, info.ObjectID)
	}
}

// A caller that stops waiting receives the current state of the task; for an ended task, its end.
func TestTaskWaitContextEnds(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	for path, c := range paths(t) {
		t.Run(path, func(t *testing.T) {
			ctx := context.Background()
			info, err := c.Submit(ctx, "steps", fixture.GateIn{Gate: path, N: 3})
			require.NoError(t, err)
			proctest.Eventually(t, fixture.WaitLimit, "it has reported", func() bool {
				now, err := info.Info(ctx)
				require.NoError(t, err)
				return now.Done == 3
			})
			cause := errors.New("no patience")
			for _, end := range []time.Duration{0, time.Millisecond} {
				short, cancel := context.WithTimeoutCause(ctx, end, cause)
				defer cancel()
				proctest.Eventually(t, fixture.WaitLimit, "it has the time to ask", func() bool {
					got, err := info.Wait(short)
					require.True(t, errors.Is(err, cause) || errors.Is(err, context.DeadlineExceeded), "%v", err)
					require.Equal(t, info.ID, got.ID)
					return got.State == endpoint.TaskRunning && got.Done == 3
				})
				<-short.Done() // the owner's clock may be first
				var last endpoint.TaskInfo
				for now, err := range info.Events(short) {
					last = now
					require.Error(t, err)
				}
				require.Zero(t, last, "there was no time to ask")
			}
			left, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			seen := 0
			for now, err := range info.Events(left) {
				require.Equal(t, info.ID, now.ID, "also with the error")
				if seen++; seen == 1 {
					cancel(cause)
					continue
				}
				require.ErrorIs(t, err, cause)
			}
			require.Equal(t, 2, seen)

			require.NoError(t, c.Call(ctx, "open", path, nil))
			end, err := info.Wait(ctx)
			require.NoError(t, err)
			require.Equal(t, endpoint.TaskCompleted, end.State)
			proctest.Eventually(t, fixture.WaitLimit, "what has ended has ended", func() bool {
				got, err := info.Wait(left)
				return err == nil && got.State == end.State
			})
			_, err = c.Task("nothing").Wait(left)
			require.ErrorIs(t, err, cause)
		})
	}
}

// JSON from others is parsed without trusting the texts of errors.
func TestTaskInfoFromJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		is   error
	}{
		{`{"status":"failed","error_message":"m","error_type":"ValueError"}`, task.ErrFailed},
		{`{"status":"failed"}`, task.ErrFailed},
		{`{"status":"cancelled","error_type":"canceled"}`, context.Canceled},
		{`{"status":"completed","error_type":"out of memory"}`, nil},
	} {
		var info endpoint.TaskInfo
		require.NoError(t, json.Unmarshal([]byte(c.text), &info))
		if c.is == nil {
			require.NoError(t, info.Err())
			continue
		}
		require.ErrorIs(t, info.Err(), c.is, fmt.Sprint(c.text))
	}
	require.Error(t, json.Unmarshal([]byte(`{"status":7}`), new(endpoint.TaskInfo)))
}

// The label of a submission is kept with the task, for all clients. The owner refuses a longer one, and a client refuses one that it
// cannot send; no task runs then.
func TestTaskLabel(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	fixture.RequireFeature(t, message.FeatureTaskLabels)
	ctx := context.Background()
	dev := fixture.Device(t)
	counters := &fixture.Counters{}
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: fixture.Registry(dev, counters), Logger: fixture.Discard()})
	c, other := fixture.SocketClient(t, s), fixture.SocketClient(t, s)
	submitted := 0
	for _, submitter := range []endpoint.Caller{s, c} {
		for _, label := range []string{"", "token:alice", "zoë\x00\n", strings.Repeat("l", message.MaxTaskLabel)} {
			for _, in := range []any{nil, fixture.ModelIn{Size: 2}} {
				name := map[bool]string{true: "fail", false: "model task"}[in == nil]
				labelled := endpoint.WithTaskLabel(ctx, label)
				started, err := submitter.Submit(labelled, name, in)
				require.NoError(t, err)
				submitted++
				require.Equal(t, label, started.Submitted.Label)
				info, err := other.Task(started.ID).Wait(ctx)
				require.NoError(t, err)
				require.Equal(t, label, info.Label)
				list, err := other.Tasks(ctx, endpoint.TaskFilter{})
				require.NoError(t, err)
				require.Equal(t, label, list[len(list)-1].Label)
				require.NoError(t, submitter.Call(labelled, "model task", fixture.ModelIn{Size: 2}, nil)) // is not a submission
				submitted++
			}
		}
		for _, label := range []string{strings.Repeat("l", message.MaxTaskLabel+1), "\xff"} {
			_, err := submitter.Submit(endpoint.WithTaskLabel(ctx, label), "model task", fixture.ModelIn{Size: 2})
			require.ErrorIs(t, err, endpoint.ErrInvalid, "%q", label)
		}
	}
	server, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	require.EqualValues(t, submitted, server.Stats.TaskSubmissions)
}

// A client submits a task with a label only to an owner that keeps it.
func TestTaskLabelNotKept(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	ctx := context.Background()
	dev := fixture.Device(t)
	before := transport.Disable(nil)
	transport.Disable(append(slices.Clip(before), message.FeatureTaskLabels))
	defer transport.Disable(before)
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: fixture.Registry(dev, &fixture.Counters{}), Logger: fixture.Discard()})
	c := fixture.SocketClient(t, s)
	_, err := c.Submit(endpoint.WithTaskLabel(ctx, "token:alice"), "model task", fixture.ModelIn{Size: 2})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = c.Submit(endpoint.WithTaskLabel(ctx, ""), "model task", fixture.ModelIn{Size: 2})
	require.NoError(t, err)
	info, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, info.Stats.TaskSubmissions)
}
