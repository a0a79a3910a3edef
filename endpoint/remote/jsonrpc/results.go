package jsonrpc

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// What is kept of results for GET /v1/results, and for how long after it was last fetched.
const (
	resultTTL  = 5 * time.Minute
	maxResults = 10000
)

// resultStore keeps tensors of results until they are fetched or forgotten. The memory is the owner's or the
// function's; keeping a tensor keeps it mapped.
type resultStore struct {
	limit int64 // bytes

	mu    sync.Mutex
	bytes int64
	byID  map[string]*keptResult
}

// keptResult is one tensor.
type keptResult struct {
	id, sha256 string
	t          *tensor.Tensor
	until      time.Time
	readers    int
	gone       bool // forgotten while it was read
}

// keep keeps a tensor under an id that cannot be guessed. It borrows t.
func (s *resultStore) keep(t *tensor.Tensor) (*keptResult, error) {
	digest, err := module.TensorDigest(context.Background(), t)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes+t.Bytes() > s.limit || len(s.byID) >= maxResults {
		return nil, fmt.Errorf("%w: results that wait to be fetched have %d bytes already: fetch them, wait, or raise --max-results", errTooLarge, s.bytes)
	}
	if s.byID == nil {
		s.byID = map[string]*keptResult{}
	}
	kept := &keptResult{id: rand.Text(), sha256: digest.String(), t: t.Clone(), until: time.Now().Add(resultTTL)}
	s.byID[kept.id] = kept
	s.bytes += t.Bytes()
	return kept, nil
}

// open lends a kept tensor until release.
func (s *resultStore) open(id string) (*keptResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.byID[id]
	if kept == nil {
		return nil, fmt.Errorf("result %q: %w: it was never there, or is older than %v", id, endpoint.ErrNotFound, resultTTL)
	}
	kept.readers++
	kept.until = time.Now().Add(resultTTL)
	return kept, nil
}

func (s *resultStore) release(kept *keptResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kept.readers--; kept.readers == 0 && kept.gone {
		_ = kept.t.Close() // nobody is left to be told
	}
}

// forget drops what answers true.
func (s *resultStore) forget(old func(*keptResult) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for id, kept := range s.byID {
		if !old(kept) {
			continue
		}
		delete(s.byID, id)
		s.bytes -= kept.t.Bytes()
		if kept.gone = true; kept.readers == 0 {
			errs = append(errs, kept.t.Close())
		}
	}
	return errors.Join(errs...)
}

// expire forgets what nobody has fetched for long, until ctx ends.
func (s *resultStore) expire(ctx context.Context) {
	tick := time.NewTicker(resultTTL / 10)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			_ = s.forget(func(k *keptResult) bool { return k.readers == 0 && now.After(k.until) })
		}
	}
}

func (s *resultStore) close() error { return s.forget(func(*keptResult) bool { return true }) }

// serveResult is GET /v1/results/{id}.
func (c *Component) serveResult(w http.ResponseWriter, r *http.Request) {
	kept, err := c.results.open(r.PathValue("id"))
	if err != nil {
		httpError(w, r, err)
		return
	}
	defer c.results.release(kept)
	source, err := tensorContent(kept.t)
	if err != nil {
		httpError(w, r, err)
		return
	}
	setTensorHeaders(w.Header(), kept.t)
	c.serveContent(w, r, source, kept.sha256, time.Time{})
}

// deleteResult is DELETE /v1/results/{id}: the caller needs it no more.
func (c *Component) deleteResult(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if err := c.results.forget(func(k *keptResult) bool { return k.id == id }); err != nil {
		httpError(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

var _ gateway.Component = (*Component)(nil)
