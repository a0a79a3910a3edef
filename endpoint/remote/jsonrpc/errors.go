package jsonrpc

import (
	"context"
	"errors"
	"io/fs"

	"github.com/creachadair/jrpc2"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// The codes of errors, beside those of JSON-RPC itself. The first three are those of shared-tensor 0.1.
const (
	// CodeImport is a function that is not registered.
	CodeImport jrpc2.Code = -32001
	// CodeExecution is an error that a function returned.
	CodeExecution jrpc2.Code = -32002
	// CodeSerialization is an argument or a result that cannot be represented or shared.
	CodeSerialization jrpc2.Code = -32003
	// CodeNotFound is a model, version, tensor or task that is not there.
	CodeNotFound jrpc2.Code = -32004
	// CodeUnavailable is an owner that is not there, or went away before it answered.
	CodeUnavailable jrpc2.Code = -32005
	// CodeLimit is a request beyond a limit.
	CodeLimit jrpc2.Code = -32006
	// CodeRefused is a request that its sender may not make.
	CodeRefused jrpc2.Code = -32007
	// CodeTimeout is a call whose time was over.
	CodeTimeout jrpc2.Code = -32008
	// CodeTask is a task that failed, was cancelled or has not ended.
	CodeTask jrpc2.Code = -32009
)

// Outcomes of calls.
const (
	notRun  = "not_run"
	unknown = "unknown"
	failed  = "failed"
)

// errorData is the data of an error.
type errorData struct {
	// Type is what kind of error it is, as the owner names it; it may be empty.
	Type string `json:"type,omitempty"`
	// Code is the owner's code of the error, 1 to 8 as in shared-tensor 0.2; 0 where the owner had no part in it.
	Code int `json:"code,omitempty"`
	// Outcome is, of a call, "not_run", "failed" or "unknown".
	Outcome string `json:"outcome,omitempty"`
	// TraceID finds the request in logs.
	TraceID string `json:"trace_id,omitempty"`
}

// callError is an error of a call, with what is known of its outcome.
type callError struct {
	err     error
	outcome string
}

// Error is that of the cause.
func (e *callError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *callError) Unwrap() error { return e.err }

// codeRow says which code an error has.
type codeRow struct {
	err  error
	code jrpc2.Code
}

// codeRows are looked through in order.
var codeRows = []codeRow{
	{errParams, jrpc2.InvalidParams},
	{endpoint.ErrNoEndpoint, CodeImport},
	{gateway.ErrReadOnly, CodeRefused},
	{errRefused, CodeRefused},
	{endpoint.ErrUnavailable, CodeUnavailable},
	{task.ErrNotFound, CodeNotFound},
	{task.ErrNotFinished, CodeTask},
	{task.ErrFailed, CodeTask},
	{task.ErrCancelled, CodeTask},
	{endpoint.ErrNotFound, CodeNotFound},
	{context.DeadlineExceeded, CodeTimeout},
	{context.Canceled, CodeTimeout},
	{errTooLarge, CodeLimit},
	{endpoint.ErrLimit, CodeLimit},
	{task.ErrCapacity, CodeLimit},
	{errSerialization, CodeSerialization},
	{endpoint.ErrCapability, CodeSerialization},
	{message.ErrEncoding, CodeSerialization},
	{tensor.ErrDType, CodeSerialization},
	{fs.ErrPermission, CodeRefused},
}

// Errors that this package finds itself.
var (
	errParams        = errors.New("invalid params")
	errSerialization = errors.New("this cannot be put into JSON")
	errTooLarge      = errors.New("too large")
	errRefused       = errors.New("refused")
)

// rpcError makes what a caller is told of an error.
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
	for _, row := range codeRows {
		// What a function returned is an error of its run, whatever it looks like; but not what kept its argument or
		// result from crossing.
		if errors.Is(err, row.err) && (!isCall || call.outcome != failed || row.code == CodeTask || row.code == CodeSerialization) {
			code = row.code
			break
		}
	}
	if !isCall && code == jrpc2.InternalError && (errors.Is(err, endpoint.ErrInvalid) || errors.Is(err, driver.ErrInvalid)) {
		code = jrpc2.InvalidParams
	}
	return (&jrpc2.Error{Code: code, Message: err.Error()}).WithData(data)
}

// word is a code as a metric's label.
func word(code jrpc2.Code) string {
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
