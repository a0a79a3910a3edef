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
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Limits of the results kept for GET /v1/results, and how long after the last fetch they expire.
const (
	resultTTL  = 5 * time.Minute
	maxResults = 10000
)

// resultStore keeps result tensors until they are released or expire. The memory belongs to the owner or the function,
// and stays mapped while the tensor is kept.
type resultStore struct {
	memory *admission.Pool // bytes of tensors
	slots  *admission.Pool // one slot for each tensor

	mu   sync.Mutex
	byID map[string]*keptResult
}

// keptResult is one kept tensor.
type keptResult struct {
	id, sha256 string
	t          *tensor.Tensor
	until      time.Time
	readers    int
	gone       bool // dropped while it was being read

	memory, slot *admission.Charge
}

// charge charges a tensor to its client.
func (s *resultStore) charge(id admission.Identity, bytes int64) (memory, slot *admission.Charge, err error) {
	memory, slot = s.memory.Open(id), s.slots.Open(id)
	if err = memory.Add(bytes); err == nil {
		err = slot.Add(1)
	}
	if err != nil {
		memory.Close()
		slot.Close()
		return nil, nil, fmt.Errorf("%w: too many results are kept: fetch or release them: %w", models.ErrTooLarge, err)
	}
	return memory, slot, nil
}

// keep keeps a tensor of a sender under a random id that cannot be guessed. It borrows t.
func (s *resultStore) keep(sender admission.Identity, t *tensor.Tensor) (*keptResult, error) {
	digest, err := module.TensorDigest(context.Background(), t)
	if err != nil {
		return nil, err
	}
	memory, slot, err := s.charge(sender, t.Bytes())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = map[string]*keptResult{}
	}
	kept := &keptResult{id: rand.Text(), sha256: digest.String(), t: t.Alias(), until: time.Now().Add(resultTTL), memory: memory, slot: slot}
	s.byID[kept.id] = kept
	return kept, nil
}

// open returns a kept tensor for reading until release.
func (s *resultStore) open(id string) (*keptResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.byID[id]
	if kept == nil {
		return nil, fmt.Errorf("result %q: %w: it does not exist or is older than %v", id, endpoint.ErrNotFound, resultTTL)
	}
	kept.readers++
	kept.until = time.Now().Add(resultTTL)
	return kept, nil
}

func (s *resultStore) release(kept *keptResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kept.readers--; kept.readers == 0 && kept.gone {
		_ = kept.t.Close() // best effort: the result was dropped
	}
}

// forget drops the results for which old returns true.
func (s *resultStore) forget(old func(*keptResult) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for id, kept := range s.byID {
		if !old(kept) {
			continue
		}
		delete(s.byID, id)
		kept.memory.Close()
		kept.slot.Close()
		if kept.gone = true; kept.readers == 0 {
			errs = append(errs, kept.t.Close())
		}
	}
	return errors.Join(errs...)
}

// expire drops results that have not been fetched for a while. It runs until ctx ends.
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

// serveResult handles GET /v1/results/{id}.
func (c *Component) serveResult(w http.ResponseWriter, r *http.Request) {
	kept, err := c.results.open(r.PathValue("id"))
	if err != nil {
		models.WriteError(w, r, err)
		return
	}
	defer c.results.release(kept)
	models.ServeTensor(w, r, kept.t, kept.sha256)
}

// deleteResult handles DELETE /v1/results/{id}.
func (c *Component) deleteResult(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if err := c.results.forget(func(k *keptResult) bool { return k.id == id }); err != nil {
		models.WriteError(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

var _ gateway.Component = (*Component)(nil)
