package models

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// handleModels registers the handlers of model files. Slashes in model names are escaped as %2F.
func (c *Component) handleModels(mux gateway.Mux) {
	handle := func(pattern string, fn func(w http.ResponseWriter, r *http.Request)) {
		mux.Handle(pattern, http.HandlerFunc(fn))
	}
	handle("GET /v1/models", c.serveModels)
	handle("GET /v1/models/{model}", c.serveModel)
	handle("DELETE /v1/models/{model}", c.deleteModel)
	handle("GET /v1/models/{model}/manifest", c.serveManifest)
	handle("GET /v1/models/{model}/tensors/{tensor...}", c.serveTensor)
	handle("GET /v1/models/{model}/model.safetensors", c.serveFile)
	handle("PUT /v1/models/{model}/model.safetensors", c.upload)
	handle("GET /v1/models/{model}/deltas/{tensor...}", c.serveDelta)
	handle("GET /v1/models/{model}/changes", c.serveChanges)
	handle("POST /v1/models/{model}/leases", c.takeLease)
	handle("POST /v1/leases/{id}", c.renewLease)
	handle("DELETE /v1/leases/{id}", c.endLease)
}

// modelOf parses NAME[@VERSION] from the path.
func modelOf(r *http.Request) Ref {
	name, version := rights.SplitVersion(r.PathValue("model"))
	return Ref{name, version}
}

func (c *Component) serveModels(w http.ResponseWriter, r *http.Request) {
	list, err := c.List(r.Context())
	answerJSON(w, r, list, err)
}

func (c *Component) serveModel(w http.ResponseWriter, r *http.Request) {
	p := modelOf(r)
	if err := c.env.Allow(r.Context(), access.List, p.Name); err != nil {
		WriteError(w, r, err)
		return
	}
	client, ctx, unbind, err := c.owner(r.Context())
	if err != nil {
		WriteError(w, r, err)
		return
	}
	defer unbind()
	info, err := client.Info(ctx, p.Name)
	answerJSON(w, r, info, err)
}

func (c *Component) deleteModel(w http.ResponseWriter, r *http.Request) {
	p := modelOf(r)
	if p.Version != 0 {
		WriteError(w, r, fmt.Errorf("%w: a name is withdrawn with all its versions", ErrParams))
		return
	}
	wanted, err := conditionsOf(r.Header)
	if err == nil {
		_, err = c.withdraw(r.Context(), &p, wanted)
	}
	if err != nil {
		WriteError(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (c *Component) serveManifest(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Has("digests") {
		c.serveDigests(w, r)
		return
	}
	p := modelOf(r)
	out, err := c.Inspect(r.Context(), &p)
	answerJSON(w, r, out.Manifest, err)
}

// attach acquires the requested version. The caller closes the handle.
func (c *Component) attach(r *http.Request) (*endpoint.Handle, error) {
	p := modelOf(r)
	if err := c.env.Allow(r.Context(), access.Acquire, p.Name); err != nil {
		return nil, err
	}
	client, ctx, unbind, err := c.owner(r.Context())
	if err != nil {
		return nil, err
	}
	defer unbind()
	return client.Acquire(ctx, p.Name, endpoint.AcquireOptions{Version: p.Version})
}

func (c *Component) serveTensor(w http.ResponseWriter, r *http.Request) {
	h, err := c.attach(r)
	if err != nil {
		WriteError(w, r, err)
		return
	}
	defer h.Close() // best effort: the response has been sent
	name := r.PathValue("tensor")
	t, found := h.StateDict().Get(name)
	if !found {
		WriteError(w, r, fmt.Errorf("%s@%d has no tensor %q: %w", h.Name(), h.Version(), name, endpoint.ErrNotFound))
		return
	}
	source, err := modelwire.TensorContent(t)
	if err != nil {
		WriteError(w, r, err)
		return
	}
	hash := hashOf(r, "digest")
	digest, ok := c.digested(w, r, h,
		func(v modelwire.Version) (modelwire.Hashing, bool) {
			return c.env.Digests.TensorProgress(hash, v, name)
		},
		func(ctx context.Context, h *endpoint.Handle) (modelwire.Digest, error) {
			sums, err := c.tensorDigest(ctx, h, name, hash)
			return sums.Digest, err
		})
	if !ok {
		return
	}
	setTensorHeaders(w.Header(), t)
	serveVersion(w, r, h, source, digest)
}

func (c *Component) serveFile(w http.ResponseWriter, r *http.Request) {
	h, err := c.attach(r)
	if err != nil {
		WriteError(w, r, err)
		return
	}
	defer h.Close() // best effort: the response has been sent
	source, err := modelwire.FileContent(h.StateDict())
	if err != nil {
		WriteError(w, r, err)
		return
	}
	digest, ok := c.digested(w, r, h, c.env.Digests.FileProgress, func(ctx context.Context, h *endpoint.Handle) (modelwire.Digest, error) {
		source, err := modelwire.FileContent(h.StateDict())
		if err != nil {
			return modelwire.Digest{}, err
		}
		return c.env.Digests.File(ctx, versionOf(h), source)
	})
	if !ok {
		return
	}
	serveVersion(w, r, h, source, digest)
}

// serveVersion sends a part of a version.
func serveVersion(w http.ResponseWriter, r *http.Request, h *endpoint.Handle, source *modelwire.Content, digest modelwire.Digest) {
	if _, tcp := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); tcp && r.TLS == nil {
		source.UseFiles() // safe because versions are immutable
		defer source.Close()
	}
	header := w.Header()
	header.Set("X-Sharedtensor-Version", strconv.FormatUint(h.Version(), 10))
	header.Set("X-Sharedtensor-Server", h.ServerID())
	if modelOf(r).Version != 0 {
		// Another owner may use the same version numbers for other content, so clients must revalidate with the ETag.
		header.Set("Cache-Control", "no-cache")
	}
	source.Serve(w, r, digest)
}

// ServeTensor answers GET and HEAD with the bytes of t, including ranges and conditional requests. digest is their
// SHA-256. It borrows t.
func ServeTensor(w http.ResponseWriter, r *http.Request, t *tensor.Tensor, digest module.Digest) {
	source, err := modelwire.TensorContent(t)
	if err != nil {
		WriteError(w, r, err)
		return
	}
	setTensorHeaders(w.Header(), t)
	source.Serve(w, r, modelwire.Digest{Sum: digest})
}

// setTensorHeaders sets the headers that describe the tensor.
func setTensorHeaders(h http.Header, t *tensor.Tensor) {
	shape, _ := json.Marshal(append([]int64{}, t.Shape()...)) // cannot fail for integers
	h.Set("X-Sharedtensor-Dtype", t.DType().String())
	h.Set("X-Sharedtensor-Shape", string(shape))
}

// answerJSON answers with v, or with err if it is not nil.
func answerJSON(w http.ResponseWriter, r *http.Request, v any, err error) {
	if err != nil {
		WriteError(w, r, err)
		return
	}
	text, err := json.Marshal(v)
	if err != nil {
		WriteError(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(text, '\n'))
}

// encodeJSON writes v after the header. The client may have left.
func encodeJSON(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
