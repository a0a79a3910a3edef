//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"time"
)

// errOutcome means that a replica received a request and ended before its answer was complete.
var errOutcome = errors.New("its outcome is not known")

// front passes requests to replicas.
type front struct {
	options
	pool  *pool
	slots chan struct{} // one token for each request in flight
	proxy *httputil.ReverseProxy
}

func newFront(o options, p *pool) http.Handler {
	f := &front{options: o, pool: p, slots: make(chan struct{}, o.requests)}
	f.proxy = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetXForwarded()
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "replica", r.In.Host
		},
		Transport:    f,
		ErrorHandler: refuse,
		ErrorLog:     log.Default(),
	}
	routes := http.NewServeMux()
	routes.HandleFunc("GET /replicas", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(p.statuses())
	})
	routes.HandleFunc("/", f.serve)
	return routes
}

// bodyKey is the key of the request's body in its context: all bytes, so that they can be sent again.
type bodyKey struct{}

// serve reads the request and passes it on.
func (f *front) serve(w http.ResponseWriter, r *http.Request) {
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	default:
		refuse(w, r, fmt.Errorf("%w: %d requests are in flight", errNoReplica, f.requests))
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(f.wait)) // of the body
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, f.body))
	if err != nil {
		status := http.StatusBadRequest
		if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
			status = http.StatusRequestEntityTooLarge
		}
		http.Error(w, err.Error(), status)
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	ctx, cancel := context.WithTimeout(context.WithValue(r.Context(), bodyKey{}, body), f.timeout)
	defer cancel()
	f.proxy.ServeHTTP(w, r.WithContext(ctx))
}

// repeatable reports whether a request may run twice: its method changes nothing by definition, or its path is declared.
func (f *front) repeatable(r *http.Request) bool {
	safe := []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace}
	return slices.Contains(safe, r.Method) || slices.Contains(f.repeat, r.URL.Path)
}

// RoundTrip sends a request to a replica. It sends it to the next one if the replica cannot be reached, or if the request is
// repeatable and the replica ended before its answer was complete.
func (f *front) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	body, _ := ctx.Value(bodyKey{}).([]byte)
	repeatable, lost := f.repeatable(r), 0
	for {
		replica, pid, err := f.pool.pick(ctx)
		if err != nil {
			return nil, err
		}
		sent := false // or a part of it
		out := r.Clone(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent = true }}))
		out.Body, out.ContentLength = http.NoBody, int64(len(body))
		if len(body) > 0 {
			out.Body = io.NopCloser(bytes.NewReader(body))
		}
		if !repeatable {
			sendOnce(out.Header)
		}
		answer, err := replica.client.RoundTrip(out)
		if err == nil && repeatable && answer.StatusCode != http.StatusSwitchingProtocols {
			err = hold(answer, f.answer)
		}
		if err == nil {
			answer.Header.Set("Replica", strconv.Itoa(replica.number))
			return answer, nil
		}
		if ctx.Err() != nil { // the client has left, or the time is over: the replica is not at fault
			if sent && !repeatable {
				return nil, fmt.Errorf("%w: %w", context.Cause(ctx), errOutcome)
			}
			return nil, context.Cause(ctx)
		}
		f.pool.suspect(replica, pid)
		if sent {
			lost++
		}
		if sent && !repeatable {
			return nil, fmt.Errorf("replica %d ended before it had answered %s, and %w: declare the path with -repeat if it may run twice (%w)",
				replica.number, r.URL.Path, errOutcome, err)
		}
		if lost >= f.attempts {
			return nil, fmt.Errorf("%d replicas ended while they processed this request, and %w (%w)", lost, errOutcome, err)
		}
	}
}

// sendOnce renames the headers for which http.Transport sends a request without a body again. Names of headers have no case.
func sendOnce(header http.Header) {
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, found := header[name]; found {
			delete(header, name)
			header[strings.ToLower(name)] = values
		}
	}
}

// hold reads the answer of a repeatable request completely, so that an answer that breaks off never reaches the client. Streams of
// events and answers over the limit pass as they arrive, and end with their replica.
func hold(answer *http.Response, limit int64) error {
	if strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream") || answer.ContentLength > limit {
		return nil
	}
	begin, err := io.ReadAll(io.LimitReader(answer.Body, limit+1))
	if err != nil {
		answer.Body.Close()
		return err
	}
	rest := answer.Body
	answer.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(begin), rest), rest}
	return nil
}

// refuse answers a request that no replica has answered.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusBadGateway
	switch {
	case r.Context().Err() == context.Canceled:
		return // the client has left
	case errors.Is(err, errNoReplica):
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	case errors.Is(err, context.DeadlineExceeded):
		status = http.StatusGatewayTimeout
	}
	log.Printf("%s %s: %v", r.Method, r.URL.Path, err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
}
