package models

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// asyncWait is how long a request with "Prefer: respond-async" waits before it is answered with 202.
const asyncWait = 5 * time.Second

// asyncTick is the interval at which a request checks whether another one has computed its digest.
const asyncTick = 20 * time.Millisecond

// maxAsyncWait limits the wait that a client requests.
const maxAsyncWait = time.Minute

// hashing is the answer to a request whose digest is being computed.
type hashing struct {
	Status string `json:"status"`
	// Hashed is the number of bytes that were hashed, and Bytes the number of all bytes.
	Hashed int64 `json:"hashed_bytes"`
	Bytes  int64 `json:"bytes"`
}

// wantsAsync returns how long a client waits before it prefers a 202 (RFC 7240). ok is false if it waits for the content.
func wantsAsync(r *http.Request) (wait time.Duration, ok bool) {
	wait = asyncWait
	for _, field := range r.Header.Values("Prefer") {
		for one := range strings.FieldsFuncSeq(field, func(c rune) bool { return c == ',' || c == ';' || c == ' ' }) {
			if strings.EqualFold(one, "respond-async") {
				ok = true
			}
			if text, is := strings.CutPrefix(strings.ToLower(one), "wait="); is {
				if seconds, err := strconv.Atoi(text); err == nil && seconds >= 0 {
					wait = min(time.Duration(seconds)*time.Second, maxAsyncWait)
				}
			}
		}
	}
	return wait, ok
}

// digested computes a digest of a version that h holds. If the client prefers it, digested answers with 202 while the
// digest is computed in the background, and returns false. It also returns false after an error, which it answers.
func (c *Component) digested(
	w http.ResponseWriter, r *http.Request, h *endpoint.Handle, progress func(modelwire.Version) (modelwire.Hashing, bool),
	compute func(ctx context.Context, h *endpoint.Handle) (modelwire.Digest, error),
) (modelwire.Digest, bool) {
	wait, async := wantsAsync(r)
	if !async {
		digest, err := compute(r.Context(), h)
		if err != nil {
			WriteError(w, r, err)
		}
		return digest, err == nil
	}
	type outcome struct {
		digest modelwire.Digest
		err    error
	}
	done := make(chan outcome, 1)
	finish := func(ctx context.Context, h *endpoint.Handle) {
		var o outcome
		o.digest, o.err = compute(ctx, h)
		done <- o
	}
	start := func() error {
		own, err := c.again(r.Context(), h)
		if err != nil {
			return err
		}
		contain.In(&c.hashing, func() {
			defer own.Close() // best effort: the digest is known
			finish(c.ctx, own)
		}, func(err error) { done <- outcome{err: err} })
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	tick := time.NewTicker(asyncTick)
	defer tick.Stop()
	for started := false; ; {
		p, found := progress(versionOf(h))
		if p.Done && !started {
			digest, err := compute(r.Context(), h) // returns the known digest
			if err != nil {
				WriteError(w, r, err)
			}
			return digest, err == nil
		}
		if !found && !started {
			if err := start(); err != nil {
				WriteError(w, r, err)
				return modelwire.Digest{}, false
			}
			started = true
		}
		select {
		case o := <-done:
			if o.err != nil {
				WriteError(w, r, o.err)
			}
			return o.digest, o.err == nil
		case <-r.Context().Done():
			return modelwire.Digest{}, false // the client has left
		case <-tick.C: // another request may have completed the digest
			continue
		case <-timer.C:
		}
		break
	}
	p, _ := progress(versionOf(h))
	w.Header().Set("Preference-Applied", "respond-async")
	w.Header().Set("Retry-After", "1")
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusAccepted)
	encodeJSON(w, hashing{"hashing", p.Read, p.Bytes})
	return modelwire.Digest{}, false
}

// again acquires the version of a handle once more, for work that outlasts the request.
func (c *Component) again(ctx context.Context, h *endpoint.Handle) (*endpoint.Handle, error) {
	client, ctx, unbind, err := c.owner(ctx)
	if err != nil {
		return nil, err
	}
	defer unbind()
	return client.Acquire(ctx, h.Name(), endpoint.AcquireOptions{Version: h.Version()})
}
