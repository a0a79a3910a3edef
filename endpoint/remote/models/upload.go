package models

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
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
	if err := c.env.CheckWrite(ctx); err != nil {
		return out, err
	}
	if err := catalog.CheckName(p.Name); err != nil {
		return out, fmt.Errorf("%w: %w", ErrParams, err)
	}
	switch {
	case p.Version != 0:
		return out, fmt.Errorf("%w: the owner numbers versions: leave @%d out", ErrParams, p.Version)
	case r.ContentLength < 0:
		return out, fmt.Errorf("%w: the length has to be announced: send Content-Length", ErrParams)
	case r.ContentLength > int64(c.MaxModel):
		return out, fmt.Errorf("%w: a model has at most %v", ErrTooLarge, c.MaxModel)
	}
	want, err := announcedDigest(r.Header)
	if err != nil {
		return out, err
	}
	if _, err := c.env.Owner.Client(); err != nil {
		return out, err // before the peer sends the whole body
	}
	charge := c.arriving.Open(admission.Sender(ctx))
	defer charge.Close()
	body := admission.NewBodyReader(w, r.Body, c.env.Admission.Rate)
	defer func() { body.Release(err == nil) }()
	source := "upload"
	if id := gateway.IdentityFrom(ctx); id.Name != "" {
		source = "upload of " + id.Name
	}
	return c.publishStream(ctx, p.Name, charge.Reader(body), r.ContentLength, want, source)
}

// announcedDigest returns the SHA-256 in the request's RFC 9530 header field, or nil if there is none.
func announcedDigest(h http.Header) ([]byte, error) {
	for _, field := range []string{"Repr-Digest", "Content-Digest"} {
		for one := range strings.SplitSeq(h.Get(field), ",") {
			value, is := strings.CutPrefix(strings.TrimSpace(one), "sha-256=:")
			if !is {
				continue
			}
			digest, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(value, ":"))
			if err != nil || len(digest) != sha256.Size {
				return nil, fmt.Errorf("%w: %s holds no SHA-256", ErrParams, field)
			}
			return digest, nil
		}
	}
	return nil, nil
}

// publishStream reads a file of size bytes from r and publishes it. It validates the header before it allocates memory,
// reads the bytes into the slab, and verifies the digest, if any, before the version becomes visible.
func (c *Component) publishStream(ctx context.Context, name string, r io.Reader, size int64, want []byte, source string) (out Published, err error) {
	var digest hash.Hash
	if want != nil {
		digest = sha256.New()
		r = io.TeeReader(r, digest)
	}
	sd, err := modelwire.ReadFile(ctx, c.uploads, r, size, c.env.MaxRequest)
	if errors.Is(err, modelwire.ErrFile) {
		return out, fmt.Errorf("%w: %w", ErrParams, err)
	} else if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, sd.Close()) }()
	if want != nil && !bytes.Equal(digest.Sum(nil), want) {
		return out, fmt.Errorf("%w: %w: its SHA-256 is %s", ErrParams, modelwire.ErrFile, hex.EncodeToString(digest.Sum(nil)))
	}
	return c.publish(ctx, name, sd, source)
}
