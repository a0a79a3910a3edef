package models

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// signOfLife is the interval at which a blank, which JSON allows, is sent while digests are computed. Computing them
// takes as long as reading all bytes.
const signOfLife = 5 * time.Second

// hashOf returns the hash function that a request names in a query parameter: blake3, or otherwise SHA-256.
func hashOf(r *http.Request, parameter string) modelwire.Hash {
	if r.URL.Query().Get(parameter) == modelwire.BLAKE3.String() {
		return modelwire.BLAKE3
	}
	return modelwire.SHA256
}

// serveDigests handles GET /v1/models/{model}/manifest?digests[=blake3]: the manifest with the digest of each tensor.
// Digests that are not known are computed.
func (c *Component) serveDigests(w http.ResponseWriter, r *http.Request) {
	h, err := c.attach(r)
	if err != nil {
		WriteError(w, r, err)
		return
	}
	defer h.Close() // best effort: the response has been sent
	client, ctx, unbind, err := c.owner(r.Context())
	if err != nil {
		WriteError(w, r, err)
		return
	}
	defer unbind()
	raw, err := client.Manifest(ctx, h.Name(), h.Version())
	if err != nil {
		WriteError(w, r, err)
		return
	}
	out, err := modelwire.ManifestOf(h.Name(), h.Version(), h.ServerID(), raw)
	if err != nil {
		WriteError(w, r, err)
		return
	}
	if hash := hashOf(r, "digests"); hash != out.Hash {
		out.Hash, out.Digested = hash, false
	}
	done := make(chan error, 1)
	contain.Go(func() { done <- c.addDigests(ctx, h, out) }, func(err error) { done <- err })
	begun := false
	for {
		select {
		case err := <-done:
			if err != nil && begun {
				panic(http.ErrAbortHandler) // the status has been sent
			}
			if begun {
				_ = json.NewEncoder(w).Encode(out)
				return
			}
			answerJSON(w, r, out, err)
			return
		case <-time.After(signOfLife):
			if !begun {
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Cache-Control", "no-store")
			}
			begun = true
			_, _ = w.Write([]byte("\n")) // if the peer has left, the request's context ends
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// addDigests sets the digests of all tensors unless the publisher has claimed them. It computes several concurrently.
func (c *Component) addDigests(ctx context.Context, h *endpoint.Handle, m *modelwire.Manifest) error {
	if m.Digested {
		return nil
	}
	err := modelwire.Parallel(ctx, runtime.GOMAXPROCS(0), len(m.Tensors), func(ctx context.Context, i int) (err error) {
		if one := &m.Tensors[i]; one.TiedTo == "" {
			one.TensorSums, err = c.tensorDigest(ctx, h, one.Name, m.Hash)
		}
		return err
	})
	if err == nil {
		m.TieDigests()
	}
	return err
}

// tensorDigest returns the digest of a version's tensor. It uses the SHA-256 that the publisher has claimed, if any.
func (c *Component) tensorDigest(ctx context.Context, h *endpoint.Handle, name string, hash modelwire.Hash) (modelwire.TensorSums, error) {
	t, found := h.StateDict().Get(name)
	if !found {
		return modelwire.TensorSums{}, fmt.Errorf("%s@%d has no tensor %q: %w", h.Name(), h.Version(), name, endpoint.ErrNotFound)
	}
	if claimed, known := h.StateDict().Digest(name); known && hash == modelwire.SHA256 {
		return modelwire.TensorSums{Digest: modelwire.Digest{Sum: claimed}}, nil
	}
	source, err := modelwire.TensorContent(t)
	if err != nil {
		return modelwire.TensorSums{}, err
	}
	return c.env.Digests.Tensor(ctx, hash, versionOf(h), name, source)
}

// versionOf identifies an acquired version.
func versionOf(h *endpoint.Handle) modelwire.Version {
	return modelwire.Version{ServerID: h.ServerID(), Name: h.Name(), Version: h.Version()}
}
