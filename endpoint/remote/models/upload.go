package models

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/module/catalog"
)

// upload handles PUT /v1/models/{model}/model.safetensors. The body is published atomically as the next version of the
// name.
func (c *Component) upload(w http.ResponseWriter, r *http.Request) {
	out, err := c.receive(w, r)
	if err != nil {
		// The rest of the body is not read, so the connection cannot be reused.
		w.Header().Set("Connection", "close")
		WriteError(w, r, err)
		return
	}
	text, _ := json.Marshal(out) // cannot fail: strings and numbers only
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(append(text, '\n'))
}

func (c *Component) receive(w http.ResponseWriter, r *http.Request) (out Published, err error) {
	ctx := r.Context()
	p := modelOf(r)
	if err := c.env.Allow(ctx, access.Publish, p.Name); err != nil {
		return out, err
	}
	if err := catalog.CheckName(p.Name); err != nil {
		return out, fmt.Errorf("%w: %w", ErrParams, err)
	}
	switch {
	case p.Version != 0:
		return out, fmt.Errorf("%w: the owner numbers versions: leave @%d out", ErrParams, p.Version)
	case r.ContentLength > int64(c.MaxModel):
		return out, fmt.Errorf("%w: a model has at most %v", ErrTooLarge, c.MaxModel)
	}
	want, err := announcedDigests(r.Header)
	if err != nil {
		return out, err
	}
	wanted, err := conditionsOf(r.Header)
	if err != nil {
		return out, err
	}
	if err := c.checkFirst(ctx, p.Name, wanted); err != nil {
		return out, err // before the peer sends the whole body
	}
	charge := c.arriving.Open(rights.Sender(ctx))
	defer charge.Close()
	encoding := r.Header.Get("Content-Encoding")
	size := r.ContentLength
	if encoding != "" && encoding != "identity" {
		size = -1 // of the file
	}
	source := "upload"
	if id := gateway.IdentityFrom(ctx); id.Name != "" {
		source = "upload of " + id.Name
	}
	// A digest covers the bytes that are sent: compressed ones if the body is compressed (RFC 9530).
	verified := newVerifier(c.env.Admission.Rate.Reader(r.Body), want...)
	decoder := c.env.Admission.Requests.Open(rights.Sender(ctx))
	defer decoder.Close()
	decoded, err := decoder.Decode(verified, encoding)
	if errors.Is(err, admission.ErrEncoding) || errors.Is(err, admission.ErrLimit) {
		return out, err
	} else if err != nil {
		return out, fmt.Errorf("%w: the compressed body: %w", ErrParams, err)
	}
	defer decoded.Close() // best effort: it was only read
	out, err = c.publishStream(ctx, p.Name, charge.Reader(decoded), size, verified.check, source, wanted)
	return out, err
}

// checkFirst evaluates the conditions of an upload before its body is read. They are evaluated again afterwards.
func (c *Component) checkFirst(ctx context.Context, name string, wanted conditions) error {
	client, ctx, unbind, err := c.owner(ctx)
	if err != nil {
		return err
	}
	defer unbind()
	if wanted.needed() {
		_, err = c.check(ctx, client, name, wanted)
	}
	return err
}

// publishStream reads a file of size bytes, or of an unknown size if it is -1, from r and publishes it. It validates the
// header before it allocates memory, reads the bytes into the slab, and calls check before the version becomes visible.
func (c *Component) publishStream(ctx context.Context, name string, r io.Reader, size int64, check func() error, source string, wanted conditions) (out Published, err error) {
	sd, err := modelwire.ReadFile(ctx, c.uploads, r, modelwire.FileLimits{Size: size, Bytes: int64(c.MaxModel), Header: c.env.MaxRequest})
	if errors.Is(err, modelwire.ErrFileSize) {
		return out, fmt.Errorf("%w: %w: a model has at most %v", ErrTooLarge, err, c.MaxModel)
	}
	if errors.Is(err, admission.ErrLimit) || errors.Is(err, admission.ErrSlow) {
		return out, err
	}
	if errors.Is(err, modelwire.ErrFile) {
		return out, fmt.Errorf("%w: %w", ErrParams, err)
	} else if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, sd.Close()) }()
	if err := check(); err != nil {
		return out, err
	}
	return c.publish(ctx, name, sd, source, wanted)
}
