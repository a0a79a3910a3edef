package models

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Errors of requests. Package jsonrpc uses the same.
var (
	// ErrParams reports invalid parameters.
	ErrParams = admission.NewError(admission.Invalid, "invalid params")
	// ErrSerialization reports a value or memory that an answer cannot contain.
	ErrSerialization = admission.NewError(admission.Serialization, "cannot be represented in JSON")
	// ErrTooLarge reports that a request or its answer is over a limit.
	ErrTooLarge = admission.NewError(admission.TooLarge, "too large")
	// ErrRefused reports that the client may not make this request.
	ErrRefused = admission.NewError(admission.Refused, "refused")
)

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
	kind := admission.KindOf(err)
	bad := failure{Code: kind.RPC, Message: err.Error()}
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
	w.WriteHeader(kind.HTTP)
	_, _ = w.Write(append(text, '\n'))
}
