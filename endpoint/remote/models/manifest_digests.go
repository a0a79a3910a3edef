package models

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// signOfLife is the interval at which a blank, which JSON allows, is sent while digests are computed. Computing them
// takes as long as reading all bytes.
const signOfLife = 5 * time.Second

// serveDigests handles GET /v1/models/{model}/manifest?digests: the manifest with the SHA-256 of each tensor. Digests
// that are not cached are computed.
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
	out, err := manifestOf(h.Name(), h.Version(), h.ServerID(), raw)
	if err != nil {
		WriteError(w, r, err)
		return
	}
	done := make(chan error, 1)
	go func() { done <- c.addDigests(ctx, h, out) }()
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

// addDigests sets the digests of all tensors that are not tied, several concurrently.
func (c *Component) addDigests(ctx context.Context, h *endpoint.Handle, m *Manifest) error {
	return modelwire.Parallel(ctx, runtime.GOMAXPROCS(0), len(m.Tensors), func(ctx context.Context, i int) (err error) {
		if one := &m.Tensors[i]; one.TiedTo == "" {
			one.SHA256, err = c.tensorDigest(ctx, h, one.Name)
		}
		return err
	})
}

// tensorDigest returns the digest of a version's tensor in hexadecimal.
func (c *Component) tensorDigest(ctx context.Context, h *endpoint.Handle, name string) (string, error) {
	t, found := h.StateDict().Get(name)
	if !found {
		return "", fmt.Errorf("%s@%d has no tensor %q: %w", h.Name(), h.Version(), name, endpoint.ErrNotFound)
	}
	source, err := tensorContent(t)
	if err != nil {
		return "", err
	}
	return c.digests.get(ctx, keyOf(h, "tensor "+name), source)
}
