package jsonrpc

import (
	"context"
	"errors"

	"github.com/creachadair/jrpc2"

	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Error codes in addition to the codes of JSON-RPC. The first three are the codes of shared-tensor 0.1.
const (
	// CodeImport means that the function is not registered.
	CodeImport jrpc2.Code = -32001
	// CodeExecution means that the function returned an error.
	CodeExecution jrpc2.Code = -32002
	// CodeSerialization means that an argument or result cannot be represented or shared.
	CodeSerialization jrpc2.Code = -32003
	// CodeNotFound means that the model, version, tensor or task does not exist.
	CodeNotFound jrpc2.Code = -32004
	// CodeUnavailable means that there is no owner, or that it left before it answered.
	CodeUnavailable jrpc2.Code = -32005
	// CodeLimit means that the request exceeds a limit.
	CodeLimit jrpc2.Code = -32006
	// CodeRefused means that the client may not make this request.
	CodeRefused jrpc2.Code = -32007
	// CodeTimeout means that the deadline of the call expired.
	CodeTimeout jrpc2.Code = -32008
	// CodeTask means that the task failed, was cancelled or has not ended.
	CodeTask jrpc2.Code = -32009
)

// Outcomes of calls.
const (
	notRun  = "not_run"
	unknown = "unknown"
	failed  = "failed"
)

// errorData is the data of an error response.
type errorData struct {
	// Type is the owner's name for the kind of error. It may be empty.
	Type string `json:"type,omitempty"`
	// Code is the owner's error code, 1 to 8 as in shared-tensor 0.2. It is 0 if the error is not from the owner.
	Code int `json:"code,omitempty"`
	// Outcome is "not_run", "failed" or "unknown" for calls, otherwise empty.
	Outcome string `json:"outcome,omitempty"`
	// TraceID identifies the request in logs.
	TraceID string `json:"trace_id,omitempty"`
}

// callError is an error of a call together with its outcome.
type callError struct {
	err     error
	outcome string
}

// Error returns the text of the cause.
func (e *callError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *callError) Unwrap() error { return e.err }

// rpcError converts err to the error that the caller receives.
func rpcError(ctx context.Context, err error) *jrpc2.Error {
	var own *jrpc2.Error
	if errors.As(err, &own) {
		return own
	}
	data := errorData{}
	if trace, ok := intercept.TraceFrom(ctx); ok {
		data.TraceID = trace.TraceID
	}
	var remote *message.Error
	if errors.As(err, &remote) {
		data.Type, data.Code = remote.Type, int(remote.Code)
	}
	code := jrpc2.InternalError
	var call *callError
	isCall := errors.As(err, &call)
	if isCall {
		data.Outcome, code = call.outcome, CodeExecution
	}
	for kind := range admission.Kinds(err) {
		// An error that a function returned is an execution error, whatever its kind. Tasks, and arguments or results that
		// could not be transferred, keep their own codes.
		own := kind == admission.TaskState || kind == admission.Serialization || kind == admission.TooLarge
		if isCall && (call.outcome == failed && !own || kind == admission.Invalid && !errors.Is(err, models.ErrParams)) {
			continue
		}
		code = jrpc2.Code(kind.RPC)
		break
	}
	return (&jrpc2.Error{Code: code, Message: err.Error()}).WithData(data)
}

// codeLabel returns the metric label of a code.
func codeLabel(code jrpc2.Code) string {
	switch code {
	case jrpc2.ParseError:
		return "parse"
	case jrpc2.InvalidRequest:
		return "invalid_request"
	case jrpc2.MethodNotFound:
		return "method_not_found"
	case jrpc2.InvalidParams:
		return "invalid_params"
	case CodeImport:
		return "no_function"
	case CodeExecution:
		return "execution"
	case CodeSerialization:
		return "serialization"
	case CodeNotFound:
		return "not_found"
	case CodeUnavailable:
		return "unavailable"
	case CodeLimit:
		return "limit"
	case CodeRefused:
		return "refused"
	case CodeTimeout:
		return "timeout"
	case CodeTask:
		return "task"
	}
	return "internal"
}
