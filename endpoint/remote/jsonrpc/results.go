package jsonrpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
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
	*admission.Kept[*keptResult]
	memory *admission.Pool // bytes of tensors
}

// keptResult is one kept tensor.
type keptResult struct {
	digest module.Digest
	tensor *admission.Held[*tensor.Tensor]
}

func newResultStore(bytes int64) resultStore {
	return resultStore{
		admission.NewKept(maxResults, nil, nil, func(r *keptResult) error { return r.tensor.Close() }),
		admission.NewPool(admission.Limits{Bytes: bytes, ReadOnly: max(1, bytes/4), Setting: "--max-results"}),
	}
}

// keep keeps a tensor of a sender. It borrows t.
func (s *resultStore) keep(sender rights.Identity, t *tensor.Tensor) (*admission.Entry[*keptResult], error) {
	digest, err := module.TensorDigest(context.Background(), t)
	if err != nil {
		return nil, err
	}
	charge := s.memory.Open(sender)
	r := &keptResult{digest, admission.Hold(t.Alias(), charge)}
	if err = charge.Add(t.Bytes()); err == nil {
		var kept *admission.Entry[*keptResult]
		if kept, err = s.Add(sender, r, resultTTL); err == nil {
			return kept, nil
		}
	}
	_ = r.tensor.Close() // best effort: the caller receives the error
	if !errors.Is(err, admission.ErrLimit) {
		return nil, err
	}
	return nil, fmt.Errorf("%w: too many results are kept: fetch or release them: %w", models.ErrTooLarge, err)
}

// serveResult handles GET /v1/results/{id}.
func (c *Component) serveResult(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	kept := c.results.OpenOf(rights.Sender(r.Context()), id)
	if kept == nil {
		models.WriteError(w, r, fmt.Errorf("result %q: %w: it does not exist or is older than %v", id, endpoint.ErrNotFound, resultTTL))
		return
	}
	defer c.results.Release(kept)
	models.ServeTensor(w, r, kept.Value.tensor.Value, kept.Value.digest)
}

// deleteResult handles DELETE /v1/results/{id}.
func (c *Component) deleteResult(w http.ResponseWriter, r *http.Request) {
	if _, err := c.results.RemoveOf(rights.Sender(r.Context()), r.PathValue("id")); err != nil {
		models.WriteError(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

var _ gateway.Component = (*Component)(nil)
