package models

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// serveDelta handles GET /v1/models/{model}/deltas/{tensor}?lease=ID&base=SHA256&segment=K. It sends the difference
// between this tensor and the tensor of the same name in the leased version, as modelwire.WriteDelta, starting
// at segment K. The digest is HEX, or blake3:HEX.
func (c *Component) serveDelta(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	name := r.PathValue("tensor")
	first, err := strconv.ParseInt("0"+query.Get("segment"), 10, 64)
	if err != nil {
		WriteError(w, r, fmt.Errorf("%w: segment: %w", ErrParams, err))
		return
	}
	l, err := c.leases.get(rights.Sender(r.Context()), query.Get("lease"))
	if err != nil {
		WriteError(w, r, err)
		return
	}
	defer c.leases.Release(l)
	h, err := c.attach(r)
	if err != nil {
		WriteError(w, r, err)
		return
	}
	defer h.Close() // best effort: the response has been sent
	want, err := modelwire.ParseDigest(query.Get("base"))
	if err != nil {
		WriteError(w, r, fmt.Errorf("%w: base: %w", ErrParams, err))
		return
	}
	got, err := c.tensorDigest(r.Context(), l.Value.handle, name, want.Hash)
	if err == nil && got.Digest != want {
		err = fmt.Errorf("tensor %q of the lease has %v: %w", name, got.Digest, endpoint.ErrNotFound)
	}
	if err != nil {
		WriteError(w, r, err)
		return
	}
	base, next, size, err := pairOf(l.Value.handle, h, name)
	if err != nil {
		WriteError(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Cache-Control", "no-store")
	var oldBuffer, newBuffer []byte
	err = modelwire.WriteDelta(w, next.Bytes(), size, first, func(begin, end int64) (old, now []byte, err error) {
		if old, oldBuffer, err = base.View(begin, end, oldBuffer); err == nil {
			now, newBuffer, err = next.View(begin, end, newBuffer)
		}
		return old, now, err
	})
	if err != nil {
		panic(http.ErrAbortHandler) // abort the connection: a peer takes a response that ends cleanly for a complete one
	}
}

// pairOf returns the bytes of a tensor in two versions, and the size of its elements.
func pairOf(old, now *endpoint.Handle, name string) (base, next *modelwire.Content, size int, err error) {
	a, foundA := old.StateDict().Get(name)
	b, foundB := now.StateDict().Get(name)
	switch {
	case !foundA || !foundB:
		return nil, nil, 0, fmt.Errorf("tensor %q is not in both versions: %w", name, endpoint.ErrNotFound)
	case a.DType() != b.DType() || a.Bytes() != b.Bytes():
		return nil, nil, 0, fmt.Errorf("tensor %q differs in type or size between the versions: %w", name, endpoint.ErrNotFound)
	}
	base, errA := modelwire.TensorContent(a)
	next, errB := modelwire.TensorContent(b)
	return base, next, modelwire.ElementBytes(b.DType()), errors.Join(errA, errB)
}
