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
	"sync"
	"time"

	"github.com/creachadair/jrpc2"

	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/stall"
)

// Bounds of a batch: how many requests it may have, and how many of them run at once.
const (
	maxBatch      = 1000
	batchParallel = 16
)

// rpcHandler answers POST /jsonrpc. The library parses and checks requests; which HTTP request they came in, whose
// context and identity they have and when they run is decided here.
type rpcHandler struct {
	*Component
	methods map[string]jrpc2.Handler
}

// ServeHTTP implements http.Handler.
func (h *rpcHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Accept-Post", "application/json")
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "JSON-RPC takes POST", http.StatusMethodNotAllowed)
		return
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		http.Error(w, "the content type has to be application/json", http.StatusUnsupportedMediaType)
		return
	}
	body, err := h.readBody(w, r)
	if err != nil {
		return
	}
	requests, err := jrpc2.ParseRequests(body)
	if err != nil {
		writeResponses(w, false, []json.RawMessage{failure("null", &jrpc2.Error{Code: jrpc2.ParseError, Message: "the body is not JSON"})})
		return
	}
	h.answer(w, r, requests, bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("[")))
}

// readBody reads a request within the limit, or answers why it did not.
func (h *rpcHandler) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	reader := stall.NewReader(w, r.Body, h.env.Stall)
	limited := http.MaxBytesReader(w, io.NopCloser(reader), h.env.MaxRequest)
	var body bytes.Buffer
	if n := r.ContentLength; n > 0 && n <= h.env.MaxRequest {
		body.Grow(int(min(n, 1<<20))) // what is really sent decides beyond that
	}
	_, err := body.ReadFrom(limited)
	reader.Release(err == nil)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		writeResponses(w, false, []json.RawMessage{failure("null", &jrpc2.Error{
			Code: CodeLimit, Message: fmt.Sprintf("a request has at most %d bytes: upload models to /v1/models/NAME/model.safetensors", h.env.MaxRequest),
		})})
	}
	return body.Bytes(), err
}

// answer runs the requests and writes their responses.
func (h *rpcHandler) answer(w http.ResponseWriter, r *http.Request, requests []*jrpc2.ParsedRequest, batch bool) {
	if batch && (len(requests) == 0 || len(requests) > maxBatch) {
		writeResponses(w, false, []json.RawMessage{failure("null", &jrpc2.Error{
			Code: jrpc2.InvalidRequest, Message: fmt.Sprintf("a batch has 1 to %d requests", maxBatch),
		})})
		return
	}
	answers := make([]json.RawMessage, len(requests))
	if len(requests) == 1 {
		answers[0] = h.one(r.Context(), requests[0])
	} else {
		h.several(r.Context(), requests, answers)
	}
	wanted := answers[:0]
	for _, a := range answers {
		if a != nil {
			wanted = append(wanted, a)
		}
	}
	if len(wanted) == 0 {
		w.WriteHeader(http.StatusNoContent) // there were only notifications
		return
	}
	writeResponses(w, batch, wanted)
}

func (h *rpcHandler) several(ctx context.Context, requests []*jrpc2.ParsedRequest, answers []json.RawMessage) {
	var running sync.WaitGroup
	places := make(chan struct{}, batchParallel)
	for i, request := range requests {
		places <- struct{}{}
		running.Go(func() {
			answers[i] = h.one(ctx, request)
			<-places
		})
	}
	running.Wait()
}

// one runs a request and returns its response; nil for a notification.
func (h *rpcHandler) one(ctx context.Context, parsed *jrpc2.ParsedRequest) json.RawMessage {
	begin, id := time.Now(), parsed.ID
	if id == "" {
		id = "null"
	}
	if parsed.Error != nil {
		bad := *parsed.Error
		if bad.Code == jrpc2.ParseError {
			bad.Code = jrpc2.InvalidRequest // it is JSON, and no request
		}
		h.env.Calls.Observe("jsonrpc", "none", word(bad.Code), time.Since(begin))
		return failure(id, &bad)
	}
	method := parsed.Method
	run, known := h.methods[method]
	if !known {
		method = "none" // names that peers make up are not counted apart
	}
	result, err := h.run(ctx, run, parsed)
	code := "ok"
	var answer json.RawMessage
	if err == nil {
		answer, err = success(id, result)
	}
	if err != nil {
		bad := rpcError(ctx, err)
		code, answer = word(bad.Code), failure(id, bad)
	}
	h.env.Calls.Observe("jsonrpc", method, code, time.Since(begin))
	if parsed.ID == "" {
		return nil
	}
	return answer
}

// run runs a method. A panic is an error of the request.
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

// success is the response with a result.
func success(id string, result any) (json.RawMessage, error) {
	var b bytes.Buffer
	b.WriteString(`{"jsonrpc":"2.0","id":` + id + `,"result":`)
	if raw, ok := result.(json.RawMessage); ok {
		b.Write(raw)
	} else {
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(result); err != nil {
			return nil, fmt.Errorf("%w: %w", errSerialization, err)
		}
		b.Truncate(b.Len() - 1) // the line's end
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// failure is the response with an error.
func failure(id string, bad *jrpc2.Error) json.RawMessage {
	text, err := json.Marshal(bad)
	if err != nil {
		text = []byte(`{"code":-32603,"message":"internal error"}`)
	}
	return json.RawMessage(`{"jsonrpc":"2.0","id":` + id + `,"error":` + string(text) + `}`)
}

// writeResponses answers; what cannot be written is the peer's loss.
func writeResponses(w http.ResponseWriter, batch bool, answers []json.RawMessage) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !batch {
		_, _ = w.Write(answers[0])
		return
	}
	_, _ = w.Write([]byte{'['})
	_, _ = w.Write(bytes.Join(rawSlices(answers), []byte{','}))
	_, _ = w.Write([]byte{']'})
}

func rawSlices(answers []json.RawMessage) [][]byte {
	list := make([][]byte, len(answers))
	for i, a := range answers {
		list[i] = a
	}
	return list
}
