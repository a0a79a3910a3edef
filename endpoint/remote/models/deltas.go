package models

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// view returns the bytes from begin to end. Host memory is returned without a copy. Other memory is read into buffer,
// which is returned as kept, possibly grown.
func (c *content) view(begin, end int64, buffer []byte) (data, kept []byte, err error) {
	if len(c.parts) == 1 && c.parts[0].data != nil {
		return c.parts[0].data[begin:end], buffer, nil
	}
	if int64(len(buffer)) < end-begin {
		buffer = make([]byte, end-begin)
	}
	c.pos = begin
	_, err = io.ReadFull(c, buffer[:end-begin])
	return buffer[:end-begin], buffer, err
}

// serveDelta handles GET /v1/models/{model}/deltas/{tensor}?lease=ID&base=SHA256&segment=K. It sends the difference
// between this tensor and the tensor of the same name in the leased version, as modelwire.WriteDelta, starting
// at segment K.
func (c *Component) serveDelta(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	name := r.PathValue("tensor")
	first, err := strconv.ParseInt("0"+query.Get("segment"), 10, 64)
	if err != nil {
		WriteError(w, r, fmt.Errorf("%w: segment: %w", ErrParams, err))
		return
	}
	l, err := c.leases.get(query.Get("lease"))
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
	digest, err := c.tensorDigest(r.Context(), l.Value.handle, name)
	if err == nil && digest != query.Get("base") {
		err = fmt.Errorf("tensor %q of the lease has SHA-256 %s: %w", name, digest, endpoint.ErrNotFound)
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
	err = modelwire.WriteDelta(w, next.size, size, first, func(begin, end int64) (old, now []byte, err error) {
		if old, oldBuffer, err = base.view(begin, end, oldBuffer); err == nil {
			now, newBuffer, err = next.view(begin, end, newBuffer)
		}
		return old, now, err
	})
	if err != nil {
		panic(http.ErrAbortHandler) // abort the connection: a peer takes a response that ends cleanly for a complete one
	}
}

// pairOf returns the bytes of a tensor in two versions, and the size of its elements.
func pairOf(old, now *endpoint.Handle, name string) (base, next *content, size int, err error) {
	a, foundA := old.StateDict().Get(name)
	b, foundB := now.StateDict().Get(name)
	switch {
	case !foundA || !foundB:
		return nil, nil, 0, fmt.Errorf("tensor %q is not in both versions: %w", name, endpoint.ErrNotFound)
	case a.DType() != b.DType() || a.Bytes() != b.Bytes():
		return nil, nil, 0, fmt.Errorf("tensor %q differs in type or size between the versions: %w", name, endpoint.ErrNotFound)
	}
	base, errA := tensorContent(a)
	next, errB := tensorContent(b)
	return base, next, modelwire.ElementBytes(b.DType()), errors.Join(errA, errB)
}
