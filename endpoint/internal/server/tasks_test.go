package server

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// blockedEndpoint returns an endpoint whose runs end with what the test sends, or when they are cancelled.
func blockedEndpoint(name string) (*engine.Definition, chan error) {
	d, results := numberEndpoint(), make(chan error)
	d.Name = name
	d.Invoke = func(ctx context.Context, _ any) (any, error) {
		select {
		case err := <-results:
			return 1, err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return d, results
}

func submit(t *testing.T, s *Server, endpoint string) string {
	t.Helper()
	var info message.TaskInfo
	require.NoError(t, s.perform(t, message.OpSubmit, message.Call{Endpoint: endpoint}, &info, true))
	return info.ID
}

func TestTaskStates(t *testing.T) {
	t.Parallel()
	d, results := blockedEndpoint("slow")
	s := testServer(t, d)
	ask := func(op message.Op, id string) (info message.TaskInfo, err error) {
		err = s.perform(t, op, message.Task{ID: id}, &info, true)
		return info, err
	}
	id := submit(t, s, "slow")
	info, err := ask(message.OpTask, id)
	require.NoError(t, err)
	require.Contains(t, []string{"pending", "running"}, info.State)
	require.ErrorIs(t, s.perform(t, message.OpTaskResult, message.Task{ID: id}, new(message.Returned), true), task.ErrNotFinished)
	results <- nil
	info, err = ask(message.OpTaskWait, id)
	require.NoError(t, err)
	require.Equal(t, "completed", info.State)
	require.Positive(t, info.FinishedAt)
	completed := id

	id = submit(t, s, "slow")
	results <- errors.New("no room")
	info, err = ask(message.OpTaskWait, id)
	require.NoError(t, err, "waiting for a task that failed succeeds")
	require.Equal(t, "failed", info.State)
	require.Contains(t, info.Error.Message, "no room")
	require.ErrorContains(t, s.perform(t, message.OpTaskResult, message.Task{ID: id}, new(message.Returned), true), "no room")

	id = submit(t, s, "slow")
	cancel := func(id string) bool {
		var out message.TaskCancelled
		require.NoError(t, s.perform(t, message.OpTaskCancel, message.Task{ID: id}, &out, true))
		return out.Cancelled
	}
	require.True(t, cancel(id))
	info, err = ask(message.OpTaskWait, id)
	require.NoError(t, err)
	require.Equal(t, "cancelled", info.State)
	require.False(t, cancel(id), "it has ended")
	require.False(t, cancel(completed))
	_, err = ask(message.OpTask, "none")
	require.ErrorIs(t, err, task.ErrNotFound)
}

// A wait with a number returns at the next change after it.
func TestTaskWaitForChange(t *testing.T) {
	t.Parallel()
	d, results := blockedEndpoint("slow")
	s := testServer(t, d)
	id := submit(t, s, "slow")
	var info message.TaskInfo
	for info.State != "completed" {
		seq := info.Seq
		if info.State == "running" {
			results <- nil
		}
		require.NoError(t, s.perform(t, message.OpTaskWait, message.Task{ID: id, After: max(seq, 1)}, &info, true))
		require.Greater(t, info.Seq, seq)
		if info.State == "pending" {
			require.NoError(t, s.perform(t, message.OpTask, message.Task{ID: id}, &info, true))
		}
	}
}

// Lists are filtered by state, endpoint and submitter, and contain the beginning of long errors.
func TestTaskList(t *testing.T) {
	t.Parallel()
	failing, results := blockedEndpoint("failing")
	s := testServer(t, numberEndpoint(), failing)
	list := func(in message.Tasks) (names []string) {
		var out message.TasksListed
		require.NoError(t, s.perform(t, message.OpTasks, in, &out, true))
		for _, info := range out.Tasks {
			names = append(names, info.Endpoint+" "+info.State)
			if info.Error != nil {
				require.Less(t, len(info.Error.Message)+len(info.Error.Data), 10*listedError)
				require.Contains(t, info.Error.Message, "no room")
			}
		}
		return names
	}
	require.Empty(t, list(message.Tasks{}))
	ok, bad := submit(t, s, "number"), submit(t, s, "failing")
	results <- errors.New(strings.Repeat("no room ", 10_000))
	for _, id := range []string{ok, bad} {
		require.NoError(t, s.perform(t, message.OpTaskWait, message.Task{ID: id}, new(message.TaskInfo), true))
	}
	require.ElementsMatch(t, []string{"number completed", "failing failed"}, list(message.Tasks{}))
	require.Equal(t, []string{"failing failed"}, list(message.Tasks{States: []string{"failed", "cancelled"}}))
	require.Equal(t, []string{"number completed"}, list(message.Tasks{Endpoint: "number"}))
	a, err := s.Engine.ArgumentsOf(numberEndpoint(), nil, nil)
	require.NoError(t, err)
	other, err := s.Engine.Submit(t.Context(), task.Spec{Name: "of another client", Owner: 99}, numberEndpoint(), a, nil, nil, nil)
	require.NoError(t, err)
	require.NoError(t, other.Wait(t.Context()))
	require.Len(t, list(message.Tasks{}), 3)
	require.Len(t, list(message.Tasks{Mine: true}), 2)
	require.ErrorIs(t, s.perform(t, message.OpTasks, message.Tasks{States: []string{"lost"}}, new(message.TasksListed), true), status.ErrInvalid)
}
