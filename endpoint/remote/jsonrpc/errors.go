package jsonrpc

import (
	"context"
	"errors"

	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Error codes. The first five are those of JSON-RPC, the next three those of shared-tensor 0.1.
const (
	// CodeParse means that the body is not JSON.
	CodeParse = -32700
	// CodeInvalidRequest means that the body is JSON but no request.
	CodeInvalidRequest = -32600
	// CodeMethodNotFound means that the method does not exist.
	CodeMethodNotFound = -32601
	// CodeInvalidParams means that the parameters do not fit the method.
	CodeInvalidParams = -32602
	// CodeInternal means that the gateway failed.
	CodeInternal = -32603
	// CodeImport means that the function is not registered.
	CodeImport = -32001
	// CodeExecution means that the function returned an error.
	CodeExecution = -32002
	// CodeSerialization means that an argument or result cannot be represented or shared.
	CodeSerialization = -32003
	// CodeNotFound means that the model, version, tensor or task does not exist.
	CodeNotFound = -32004
	// CodeUnavailable means that there is no owner, or that it left before it answered.
	CodeUnavailable = -32005
	// CodeLimit means that the request exceeds a limit.
	CodeLimit = -32006
	// CodeRefused means that the client may not make this request.
	CodeRefused = -32007
	// CodeTimeout means that the deadline of the call expired.
	CodeTimeout = -32008
	// CodeTask means that the task failed, was cancelled or has not ended.
	CodeTask = -32009
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
func rpcError(ctx context.Context, err error) *Error {
	var coded *Error
	if errors.As(err, &coded) {
		return coded
	}
	data := errorData{}
	if trace, ok := intercept.TraceFrom(ctx); ok {
		data.TraceID = trace.TraceID
	}
	var remote *message.Error
	if errors.As(err, &remote) {
		data.Type, data.Code = remote.Type, int(remote.Code)
	}
	code := CodeInternal
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
		code = kind.RPC
		break
	}
	return &Error{Code: code, Message: err.Error(), Data: &data}
}

// codeLabels are the metric labels of the codes.
var codeLabels = map[int]string{
	CodeParse: "parse", CodeInvalidRequest: "invalid_request", CodeMethodNotFound: "method_not_found", CodeInvalidParams: "invalid_params",
	CodeImport: "no_function", CodeExecution: "execution", CodeSerialization: "serialization", CodeNotFound: "not_found",
	CodeUnavailable: "unavailable", CodeLimit: "limit", CodeRefused: "refused", CodeTimeout: "timeout", CodeTask: "task",
}

// codeLabel returns the metric label of a code.
func codeLabel(code int) string {
	if label := codeLabels[code]; label != "" {
		return label
	}
	return "internal"
}
