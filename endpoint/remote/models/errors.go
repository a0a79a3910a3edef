package models

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Errors of requests. Package jsonrpc uses the same.
var (
	// ErrParams reports invalid parameters.
	ErrParams = errors.New("invalid params")
	// ErrSerialization reports a value or memory that an answer cannot contain.
	ErrSerialization = errors.New("cannot be represented in JSON")
	// ErrTooLarge reports that a request or its answer is over a limit.
	ErrTooLarge = errors.New("too large")
	// ErrRefused reports that the client may not make this request.
	ErrRefused = errors.New("refused")
)

// failureRow maps an error to the code in the body of an answer, which is that of package jsonrpc, and to the HTTP
// status.
type failureRow struct {
	err          error
	code, status int
}

// failureRows are matched in order.
var failureRows = []failureRow{
	{ErrTooLarge, -32006, http.StatusRequestEntityTooLarge},
	{admission.ErrLimit, -32006, http.StatusTooManyRequests},
	{admission.ErrSlow, -32008, http.StatusGatewayTimeout},
	{ErrParams, -32602, http.StatusBadRequest},
	{admission.ErrReadOnly, -32007, http.StatusForbidden},
	{ErrRefused, -32007, http.StatusForbidden},
	{endpoint.ErrUnavailable, -32005, http.StatusServiceUnavailable},
	{endpoint.ErrNotFound, -32004, http.StatusNotFound},
	{context.DeadlineExceeded, -32008, http.StatusGatewayTimeout},
	{context.Canceled, -32008, http.StatusGatewayTimeout},
	{endpoint.ErrLimit, -32006, http.StatusTooManyRequests},
	{ErrSerialization, -32003, http.StatusUnprocessableEntity},
	{endpoint.ErrCapability, -32003, http.StatusUnprocessableEntity},
	{message.ErrEncoding, -32003, http.StatusUnprocessableEntity},
	{tensor.ErrDType, -32003, http.StatusUnprocessableEntity},
	{fs.ErrPermission, -32007, http.StatusForbidden},
	{endpoint.ErrInvalid, -32602, http.StatusBadRequest},
	{driver.ErrInvalid, -32602, http.StatusBadRequest},
	{nil, -32603, http.StatusInternalServerError},
}

// failureData describes an error of the owner, and identifies the request in logs.
type failureData struct {
	Type    string `json:"type,omitempty"`
	Code    int    `json:"code,omitempty"`
	TraceID string `json:"trace_id,omitempty"`
}

// failure is the JSON of an error, in the form that JSON-RPC uses.
type failure struct {
	Code    int         `json:"code"`
	Message string      `json:"message"`
	Data    failureData `json:"data"`
}

// WriteError answers a request with err as JSON.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client has left
	}
	row := failureRows[len(failureRows)-1]
	for _, one := range failureRows[:len(failureRows)-1] {
		if errors.Is(err, one.err) {
			row = one
			break
		}
	}
	bad := failure{Code: row.code, Message: err.Error()}
	if trace, ok := intercept.TraceFrom(r.Context()); ok {
		bad.Data.TraceID = trace.TraceID
	}
	var remote *message.Error
	if errors.As(err, &remote) {
		bad.Data.Type, bad.Data.Code = remote.Type, int(remote.Code)
	}
	for _, name := range []string{"ETag", "Repr-Digest", "X-Sharedtensor-Dtype", "X-Sharedtensor-Shape"} {
		w.Header().Del(name)
	}
	text, _ := json.Marshal(map[string]any{"error": bad}) // cannot fail: strings and numbers only
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(row.status)
	_, _ = w.Write(append(text, '\n'))
}
