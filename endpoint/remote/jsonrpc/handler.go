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
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/nonfinite"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// rpcHandler serves POST /jsonrpc. Calls run with the context and identity of the HTTP request.
type rpcHandler struct {
	*Component
	methods map[string]handler
}

// valueBytes is the memory of a number in a list of parameters.
const valueBytes = 96

// mediaTypes are the media types of requests.
var mediaTypes = []string{"application/json", "application/json-rpc", "application/jsonrequest"}

// ServeHTTP implements http.Handler. Each failure has the error object of JSON-RPC as its body.
func (h *rpcHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Accept-Post", strings.Join(mediaTypes, ", "))
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		refuse(w, http.StatusMethodNotAllowed, CodeInvalidRequest, "JSON-RPC requires POST")
		return
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || !slices.Contains(mediaTypes, kind) {
		refuse(w, http.StatusUnsupportedMediaType, CodeInvalidRequest, "the content type must be application/json")
		return
	}
	charge := h.env.Admission.Requests.Open(rights.Sender(r.Context()))
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
		refuse(w, http.StatusOK, CodeInvalidRequest, "%v", err)
	case err != nil:
		refuse(w, http.StatusOK, CodeParse, "the body is not JSON")
	default:
		h.answer(w, r, requests, batch, charge)
	}
}

// readBody reads a request up to the limit. If it fails, it has already sent the error response.
func (h *rpcHandler) readBody(w http.ResponseWriter, r *http.Request, charge *admission.Charge) ([]byte, error) {
	decoded, err := charge.Decode(h.env.Admission.Rate.Reader(r.Body), r.Header.Get("Content-Encoding"))
	var body []byte
	if err == nil {
		body, err = charge.ReadAll(http.MaxBytesReader(w, decoded, h.env.RequestLimit(r.Context())))
		_ = decoded.Close() // best effort: it was only read
	}
	if err == nil {
		err = charge.Add(admission.JSONBytes(body, valueBytes))
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, admission.ErrEncoding):
		refuse(w, http.StatusUnsupportedMediaType, CodeParse, "%v", err)
	case errors.Is(err, admission.ErrLimit):
		refuse(w, http.StatusTooManyRequests, CodeLimit, "%v", err)
	case errors.As(err, &tooLarge):
		refuse(w, http.StatusRequestEntityTooLarge, CodeLimit, "a request has at most %d bytes: upload models to /v1/models/NAME/model.safetensors", h.env.RequestLimit(r.Context()))
	case err != nil && r.Header.Get("Content-Encoding") != "":
		refuse(w, http.StatusBadRequest, CodeParse, "the compressed body: %v", err)
	case errors.Is(err, admission.ErrSlow), errors.Is(err, os.ErrDeadlineExceeded):
		refuse(w, http.StatusRequestTimeout, CodeTimeout, "%v", err)
	case err != nil:
		refuse(w, http.StatusBadRequest, CodeParse, "the body cannot be read: %v", err)
	}
	return body, err
}

// answer runs the requests and writes their responses.
func (h *rpcHandler) answer(w http.ResponseWriter, r *http.Request, requests []*request, batch bool, charge *admission.Charge) {
	all := &allowance{charge: charge}
	all.left.Store(h.env.RequestLimit(r.Context()))
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
	writeReplies(w, http.StatusOK, batch, replies)
}

// several runs the requests of a batch, which share one allowance for their responses.
func (h *rpcHandler) several(ctx context.Context, requests []*request, replies []*reply, all *allowance) {
	var running sync.WaitGroup
	places := admission.NewSlots(batchParallel, -1)
	for i, request := range requests {
		if i > 0 { // the call counted the first
			if err := h.env.Admission.Request(rights.Sender(ctx)); err != nil {
				replies[i] = h.refused(ctx, request, &callError{err, notRun})
				continue
			}
		}
		_ = places.Enter(context.WithoutCancel(ctx)) // waits for requests of this batch only, which end with ctx
		contain.In(&running, func() {
			defer places.Leave()
			if all.left.Load() <= 0 {
				replies[i] = h.overLimit(ctx, request, notRun)
				return
			}
			replies[i] = h.one(ctx, request, all)
			if replies[i] != nil && !replies[i].fits() {
				replies[i] = h.overLimit(ctx, request, failed)
			}
		}, func(err error) { replies[i] = h.refused(ctx, request, &callError{err, failed}) })
	}
	running.Wait()
}

// overLimit returns the response to a batch request whose response exceeds the limit. It returns nil for a
// notification.
func (h *rpcHandler) overLimit(ctx context.Context, request *request, outcome string) *reply {
	return h.refused(ctx, request, &callError{
		fmt.Errorf("%w: the responses of a batch have at most %d bytes: send smaller batches", models.ErrTooLarge, h.env.RequestLimit(ctx)), outcome,
	})
}

// refused returns the response to a batch request that fails with err. It returns nil for a notification.
func (h *rpcHandler) refused(ctx context.Context, request *request, err error) *reply {
	if request.id == "" && request.bad == nil {
		return nil
	}
	one := &reply{}
	one.fail(request.idText(), rpcError(ctx, err))
	return one
}

// one runs a request and returns its response, or nil for a notification.
func (h *rpcHandler) one(ctx context.Context, parsed *request, all *allowance) *reply {
	begin, id := time.Now(), parsed.idText()
	answer := &reply{allowance: all}
	if parsed.bad != nil {
		h.env.Calls.Observe("jsonrpc", "none", codeLabel(parsed.bad.Code), time.Since(begin))
		answer.fail(id, parsed.bad)
		return answer
	}
	method := parsed.method
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
	if parsed.id == "" {
		_ = answer.close() // best effort: a notification has no response
		return nil
	}
	return answer
}

// run runs a method. A panic becomes an error of the request.
func (h *rpcHandler) run(ctx context.Context, method handler, parsed *request) (result any, err error) {
	defer func() {
		if p := recover(); p != nil {
			trace, _ := intercept.TraceFrom(ctx)
			h.env.Logger.Error("a method panicked", "method", parsed.method, "trace_id", trace.TraceID, "panic", p, "stack", string(debug.Stack()))
			err = &Error{Code: CodeInternal, Message: "internal error; the gateway's log has more", Data: &errorData{TraceID: trace.TraceID}}
		}
	}()
	if method == nil {
		return nil, &Error{Code: CodeMethodNotFound, Message: fmt.Sprintf("there is no method %q", parsed.method)}
	}
	need := rights.Methods[parsed.method]
	if err := h.env.Check(ctx, need, ""); err != nil {
		return nil, &callError{err, notRun} // before the parameters are parsed
	}
	result, err = method(ctx, parsed.params)
	if errors.Is(err, models.ErrParams) {
		var named struct{ Name string }
		if json.Unmarshal(parsed.params, &named) == nil && named.Name != "" {
			if err := h.env.Check(ctx, need, named.Name); err != nil {
				return nil, &callError{err, notRun} // more important than what is wrong with the parameters
			}
		}
	}
	return result, err
}

// refuse answers an HTTP request that contains no JSON-RPC request.
func refuse(w http.ResponseWriter, status, code int, format string, args ...any) {
	one := &reply{}
	one.fail("null", &Error{Code: code, Message: fmt.Sprintf(format, args...)})
	writeReplies(w, status, false, []*reply{one})
}

// writeReplies sends the responses and releases their tensors.
func writeReplies(w http.ResponseWriter, status int, batch bool, replies []*reply) {
	defer func() {
		for _, one := range replies {
			_ = one.close() // best effort: the responses are sent
		}
	}()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
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
