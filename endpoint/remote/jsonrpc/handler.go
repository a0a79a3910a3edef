package jsonrpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/creachadair/jrpc2"

	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/nonfinite"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/stall"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
)

// Limits of a batch: the number of requests, and the number that run concurrently.
const (
	maxBatch      = 1000
	batchParallel = 16
)

// rpcHandler serves POST /jsonrpc. The jrpc2 library parses and checks requests. The handler supplies the context and
// identity of the HTTP request and schedules the calls.
type rpcHandler struct {
	*Component
	methods map[string]jrpc2.Handler
}

// ServeHTTP implements http.Handler.
func (h *rpcHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Accept-Post", "application/json")
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "JSON-RPC requires POST", http.StatusMethodNotAllowed)
		return
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		http.Error(w, "the content type must be application/json", http.StatusUnsupportedMediaType)
		return
	}
	charge := h.env.Admission.Requests.Open(admission.Sender(r.Context()))
	defer charge.Close()
	body, err := h.readBody(w, r, charge)
	if err != nil {
		return
	}
	batch := bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("["))
	requests, err := parseRequests(body, batch)
	if err != nil {
		// Python encoders write NaN and Infinity as bare words. This package represents them as objects.
		if replaced, ok := nonfinite.Replace(body, func(word string) string { return `{"` + floatKey + `":"` + word + `"}` }); ok {
			requests, err = parseRequests(replaced, batch)
		}
	}
	switch {
	case errors.Is(err, errBatch):
		refuse(w, jrpc2.InvalidRequest, "%v", err)
	case err != nil:
		refuse(w, jrpc2.ParseError, "the body is not JSON")
	default:
		h.answer(w, r, requests, batch)
	}
}

// errBatch reports an empty or too large batch.
var errBatch = fmt.Errorf("a batch has 1 to %d requests", maxBatch)

// parseRequests parses the requests of a body.
func parseRequests(body []byte, batch bool) ([]*jrpc2.ParsedRequest, error) {
	if batch {
		n, err := batchSize(body)
		if err != nil {
			return nil, err
		}
		if n == 0 || n > maxBatch {
			return nil, errBatch
		}
	}
	return jrpc2.ParseRequests(body)
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

// readBody reads a request up to the limit. If it fails, it has already sent the error response.
func (h *rpcHandler) readBody(w http.ResponseWriter, r *http.Request, charge *admission.Charge) ([]byte, error) {
	reader := stall.NewReader(w, r.Body, h.env.Stall).AtLeast(h.env.Admission.Rate.Bytes)
	limited := http.MaxBytesReader(w, io.NopCloser(reader), h.env.MaxRequest)
	body, err := charge.ReadAll(limited)
	reader.Release(err == nil)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, admission.ErrLimit):
		w.WriteHeader(http.StatusTooManyRequests)
		refuse(w, CodeLimit, "%v", err)
	case errors.As(err, &tooLarge):
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		refuse(w, CodeLimit, "a request has at most %d bytes: upload models to /v1/models/NAME/model.safetensors", h.env.MaxRequest)
	}
	return body, err
}

// answer runs the requests and writes their responses.
func (h *rpcHandler) answer(w http.ResponseWriter, r *http.Request, requests []*jrpc2.ParsedRequest, batch bool) {
	all := &allowance{}
	all.left.Store(h.env.MaxRequest)
	replies := make([]*reply, len(requests))
	if len(requests) == 1 {
		replies[0] = h.one(r.Context(), requests[0], all)
	} else {
		h.several(r.Context(), requests, replies, all)
	}
	replies = slices.DeleteFunc(replies, func(one *reply) bool { return one == nil })
	if len(replies) == 0 {
		w.WriteHeader(http.StatusNoContent) // all requests were notifications
		return
	}
	writeReplies(w, batch, replies)
}

// several runs the requests of a batch, which share one allowance for their responses.
func (h *rpcHandler) several(ctx context.Context, requests []*jrpc2.ParsedRequest, replies []*reply, all *allowance) {
	var running sync.WaitGroup
	places := make(chan struct{}, batchParallel)
	for i, request := range requests {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			if all.left.Load() <= 0 {
				replies[i] = h.overLimit(ctx, request, notRun)
				return
			}
			replies[i] = h.one(ctx, request, all)
			if replies[i] != nil && !all.take(int64(len(replies[i].text))) {
				_ = replies[i].close() // best effort: the caller receives the error
				replies[i] = h.overLimit(ctx, request, failed)
			}
		})
	}
	running.Wait()
}

// overLimit returns the response to a batch request whose response exceeds the limit. It returns nil for a
// notification.
func (h *rpcHandler) overLimit(ctx context.Context, request *jrpc2.ParsedRequest, outcome string) *reply {
	if request.ID == "" && request.Error == nil {
		return nil
	}
	one := &reply{}
	one.fail(idOf(request), rpcError(ctx, &callError{
		fmt.Errorf("%w: the responses of a batch have at most %d bytes: send smaller batches", models.ErrTooLarge, h.env.MaxRequest), outcome,
	}))
	return one
}

// idOf returns the id of a request as JSON.
func idOf(request *jrpc2.ParsedRequest) string {
	if request.ID == "" {
		return "null"
	}
	return request.ID
}

// one runs a request and returns its response, or nil for a notification.
func (h *rpcHandler) one(ctx context.Context, parsed *jrpc2.ParsedRequest, all *allowance) *reply {
	begin, id := time.Now(), idOf(parsed)
	answer := &reply{allowance: all}
	bad := parsed.Error
	if bad == nil && parsed.Method == "" {
		bad = &jrpc2.Error{Code: jrpc2.InvalidRequest, Message: "the method is missing"}
	}
	if bad != nil {
		invalid := *bad
		if invalid.Code == jrpc2.ParseError {
			invalid.Code = jrpc2.InvalidRequest // valid JSON, but not a request
		}
		h.env.Calls.Observe("jsonrpc", "none", codeLabel(invalid.Code), time.Since(begin))
		answer.fail(id, &invalid)
		return answer
	}
	method := parsed.Method
	run, known := h.methods[method]
	if !known {
		method = "none" // metric labels must not hold arbitrary names
	}
	result, err := h.run(withReply(ctx, answer), run, parsed)
	code := "ok"
	if err == nil {
		err = answer.succeed(id, result)
	}
	if err != nil {
		bad := rpcError(ctx, err)
		code = codeLabel(bad.Code)
		answer.fail(id, bad)
	}
	h.env.Calls.Observe("jsonrpc", method, code, time.Since(begin))
	if parsed.ID == "" {
		_ = answer.close() // best effort: a notification has no response
		return nil
	}
	return answer
}

// run runs a method. A panic becomes an error of the request.
func (h *rpcHandler) run(ctx context.Context, method jrpc2.Handler, parsed *jrpc2.ParsedRequest) (result any, err error) {
	defer func() {
		if p := recover(); p != nil {
			trace, _ := intercept.TraceFrom(ctx)
			h.env.Logger.Error("a method panicked", "method", parsed.Method, "trace_id", trace.TraceID, "panic", p, "stack", string(debug.Stack()))
			err = (&jrpc2.Error{Code: jrpc2.InternalError, Message: "internal error; the gateway's log has more"}).WithData(errorData{TraceID: trace.TraceID})
		}
	}()
	if method == nil {
		return nil, &jrpc2.Error{Code: jrpc2.MethodNotFound, Message: fmt.Sprintf("there is no method %q", parsed.Method)}
	}
	return method(ctx, parsed.ToRequest())
}

// refuse answers an HTTP request that contains no JSON-RPC request.
func refuse(w http.ResponseWriter, code jrpc2.Code, format string, args ...any) {
	one := &reply{}
	one.fail("null", &jrpc2.Error{Code: code, Message: fmt.Sprintf(format, args...)})
	writeReplies(w, false, []*reply{one})
}

// writeReplies sends the responses and releases their tensors.
func writeReplies(w http.ResponseWriter, batch bool, replies []*reply) {
	defer func() {
		for _, one := range replies {
			_ = one.close() // best effort: the responses are sent
		}
	}()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	separator := "["
	for _, one := range replies {
		if batch {
			_, _ = io.WriteString(w, separator) // if the connection failed, the next write fails too
			separator = ","
		}
		if one.writeTo(w) != nil {
			panic(http.ErrAbortHandler) // close the connection: the client must not mistake a partial response for a complete one
		}
	}
	if batch {
		_, _ = io.WriteString(w, "]") // best effort: a failed connection needs no more output
	}
}
