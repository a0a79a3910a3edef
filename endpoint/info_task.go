package endpoint

import (
	"encoding/json"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// TaskState is the state of a task.
//
//	pending ──> running ──> completed
//	   │           ├──────> failed
//	   └───────────┴──────> cancelled
type TaskState string

// The states of tasks.
const (
	// TaskPending means that the task waits for a worker.
	TaskPending TaskState = "pending"
	// TaskRunning means that the task's function is running.
	TaskRunning TaskState = "running"
	// TaskCompleted means that the function returned a result.
	TaskCompleted TaskState = "completed"
	// TaskFailed means that the function returned an error or panicked.
	TaskFailed TaskState = "failed"
	// TaskCancelled means that the task was cancelled.
	TaskCancelled TaskState = "cancelled"
)

// Terminal reports whether the state is final.
func (s TaskState) Terminal() bool {
	return s == TaskCompleted || s == TaskFailed || s == TaskCancelled
}

// TaskInfo describes a task at one moment. Its JSON names are those of shared-tensor 0.2, with object_id at the top
// level instead of within metadata. Unmarshalling restores Err.
type TaskInfo struct {
	// ID is the id of the task. It cannot be guessed.
	ID string `json:"task_id"`
	// Endpoint is the name of the endpoint.
	Endpoint string `json:"endpoint"`
	// State is its state.
	State TaskState `json:"status"`
	// Seq counts changes of the state and the progress.
	Seq uint64 `json:"seq"`
	// CreatedAt is the time of submission.
	CreatedAt time.Time `json:"created_at"`
	// StartedAt is the time when its function was called; zero before.
	StartedAt time.Time `json:"started_at,omitzero"`
	// FinishedAt is the time when it ended; zero before.
	FinishedAt time.Time `json:"completed_at,omitzero"`
	// Done and Total are its progress in units of the endpoint's choice. Total is 0 if unknown.
	Done  int64 `json:"done,omitempty"`
	Total int64 `json:"total,omitempty"`
	// Message is its progress in words.
	Message string `json:"message,omitempty"`
	// ErrorType classifies the error of a failed or cancelled task: a word from the table in wire/PROTOCOL.md, such as
	// "out of memory", or the owner's Go type of an error without one. Error is the text.
	ErrorType string `json:"error_type,omitempty"`
	Error     string `json:"error_message,omitempty"`
	// Session is the number of the session that submitted it.
	Session uint64 `json:"session,omitempty"`
	// ObjectID is the id of its result as a managed object. It is empty if the result is not managed or has not been
	// fetched.
	ObjectID string `json:"object_id,omitempty"`
	// Label is the label of the submission ([WithTaskLabel]).
	Label string `json:"label,omitempty"`

	err error
}

// Err returns nil unless the task failed or was cancelled. Otherwise errors.Is matches task.ErrFailed or
// task.ErrCancelled, and the function's error.
func (t TaskInfo) Err() error { return t.err }

// UnmarshalJSON parses the JSON of a TaskInfo. It restores Err from the text, as far as possible.
func (t *TaskInfo) UnmarshalJSON(data []byte) error {
	type plain TaskInfo
	if err := json.Unmarshal(data, (*plain)(t)); err != nil {
		return err
	}
	t.err = nil
	if t.State != TaskFailed && t.State != TaskCancelled {
		return nil
	}
	e := &message.Error{Code: message.CodeTask, Type: string(t.State), Message: t.Error}
	t.err = status.Codes.Decode(e, status.Codes.Named(t.ErrorType)...)
	return nil
}

// TaskFilter selects tasks. The zero value selects all.
type TaskFilter struct {
	// States selects tasks in one of these states. Empty selects all states.
	States []TaskState
	// Endpoint selects tasks of one endpoint. Empty selects all endpoints.
	Endpoint string
	// Mine selects tasks submitted on this connection.
	Mine bool
}

// decodeTask converts a task from its wire form.
func decodeTask(in message.TaskInfo) TaskInfo {
	out := TaskInfo{
		ID: in.ID, Endpoint: in.Endpoint, State: TaskState(in.State), Seq: in.Seq,
		CreatedAt: fromNanos(in.CreatedAt), StartedAt: fromNanos(in.StartedAt), FinishedAt: fromNanos(in.FinishedAt),
		Done: in.Done, Total: in.Total, Message: in.Message, Session: in.Session, ObjectID: in.Object, Label: in.Label,
	}
	if in.Error != nil {
		out.err = status.DecodeError(in.Error)
		out.ErrorType, out.Error = in.Error.Type, in.Error.Message
		if cause := in.Error.Details().Cause; cause != nil {
			out.ErrorType = cause.Type
		}
	}
	return out
}

// fromNanos converts a time from its wire form; 0 is the zero time.
func fromNanos(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}
