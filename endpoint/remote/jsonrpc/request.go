package jsonrpc

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// handler runs a method with the parameters of a request: an object, a list, or nothing.
type handler func(ctx context.Context, params json.RawMessage) (any, error)

// request is one request of an HTTP body.
type request struct {
	id     string // as JSON, also null; empty for a notification
	method string
	params json.RawMessage
	bad    *Error // set if the request is invalid; the other fields may then be missing
}

// idText returns the id for the response. It is null if the request has none.
func (r *request) idText() string {
	if r.id == "" {
		return "null"
	}
	return r.id
}

// Limits of a batch: the number of requests, and the number that run concurrently.
const (
	maxBatch      = 1000
	batchParallel = 16
)

// errBatch reports an empty or too large batch.
var errBatch = fmt.Errorf("a batch has 1 to %d requests", maxBatch)

// parseRequests parses a body, which has one request or a batch. Invalid requests of valid JSON have bad set.
func parseRequests(body []byte, batch bool) ([]*request, error) {
	if !batch {
		var one json.RawMessage
		if err := json.Unmarshal(body, &one); err != nil {
			return nil, err
		}
		return []*request{parseRequest(one)}, nil
	}
	n, err := batchSize(body)
	if err != nil {
		return nil, err
	}
	if n == 0 || n > maxBatch {
		return nil, errBatch
	}
	list := make([]json.RawMessage, 0, n)
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	requests := make([]*request, len(list))
	for i, text := range list {
		requests[i] = parseRequest(text)
	}
	return requests, nil
}

// batchSize counts the elements of a list and stops at one more than the limit. It runs before parsing because a parsed
// list of small values takes many times the memory of its text.
func batchSize(body []byte) (n int, err error) {
	d := json.NewDecoder(bytes.NewReader(body))
	if _, err := d.Token(); err != nil {
		return 0, err
	}
	var element json.RawMessage
	for n <= maxBatch && d.More() {
		if err := d.Decode(&element); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// parseRequest parses a request. The map keeps the id of a request with other invalid fields, and rejects names that
// differ in case.
func parseRequest(text []byte) *request {
	r := &request{}
	fail := func(format string, args ...any) {
		if r.bad == nil {
			r.bad = &Error{Code: CodeInvalidRequest, Message: fmt.Sprintf(format, args...)}
		}
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(text, &fields) != nil || fields == nil {
		fail("request is not a JSON object")
		return r
	}
	if id := string(fields["id"]); id != "" {
		if id == "null" || strings.ContainsRune(`"-0123456789`, rune(id[0])) {
			r.id = id
		} else {
			fail("invalid request ID")
		}
	}
	if string(fields["jsonrpc"]) != `"2.0"` {
		fail("invalid version marker")
	}
	if method, given := fields["method"]; given && json.Unmarshal(method, &r.method) != nil {
		fail("invalid method name")
	}
	if r.method == "" {
		fail("the method is missing")
	}
	if params := fields["params"]; len(params) > 0 && string(params) != "null" {
		if r.params = params; params[0] != '[' && params[0] != '{' {
			fail("parameters must be array or object")
		}
	}
	for name := range fields {
		switch name {
		case "jsonrpc", "id", "method", "params":
		default:
			fail("extra field %q in request", name)
		}
	}
	return r
}

// Error is the error of a response.
type Error struct {
	Code    int        `json:"code"`
	Message string     `json:"message"`
	Data    *errorData `json:"data,omitempty"`
}

// Error implements error.
func (e *Error) Error() string { return e.Message }
