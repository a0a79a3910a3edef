package models

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/stall"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// errUpload reports that a body is not the announced file.
var errUpload = fmt.Errorf("%w: not a safetensors file as announced", ErrParams)

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
	body := stall.NewReader(w, r.Body, c.env.Stall).AtLeast(c.env.Admission.Rate.Bytes)
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
	sd, err := c.readModel(ctx, r, size)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, sd.Close()) }()
	if want != nil && !bytes.Equal(digest.Sum(nil), want) {
		return out, fmt.Errorf("%w: its SHA-256 is %s", errUpload, hex.EncodeToString(digest.Sum(nil)))
	}
	return c.publish(ctx, name, sd, source)
}

// readModel reads a file into a new slab. The caller closes the result.
func (c *Component) readModel(ctx context.Context, r io.Reader, size int64) (_ *module.StateDict, err error) {
	header, err := c.readHeader(r, size)
	if err != nil {
		return nil, err
	}
	ties, err := tiesOf(header)
	if err != nil {
		return nil, err
	}
	sd, err := module.Empty(c.uploads, specsOf(header, ties)) // fill writes all bytes
	if errors.Is(err, driver.ErrOutOfMemory) {
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", errUpload, err)
	}
	sd.Metadata = header.Metadata
	if err := fill(ctx, sd, header, r); err != nil {
		return nil, errors.Join(err, sd.Close())
	}
	return sd, nil
}

// specsOf returns the tensors of a file in file order, followed by the tied names.
func specsOf(header *safetensors.Header, ties []safetensors.Tie) []module.NamedSpec {
	specs := make([]module.NamedSpec, 0, len(header.Tensors)+len(ties))
	at := make(map[string]int, len(header.Tensors))
	for i, t := range header.Tensors {
		specs = append(specs, module.NamedSpec{Name: t.Name, DType: t.DType, Shape: t.Shape})
		at[t.Name] = i
	}
	for _, tie := range ties {
		kept := specs[at[tie.Kept]] // tiesOf has checked that it exists
		specs = append(specs, module.NamedSpec{Name: tie.Name, DType: kept.DType, Shape: kept.Shape, TiedTo: tie.Kept})
	}
	return specs
}

// tiesOf returns the tied names that a header records. Each must be a new name for a tensor that the file stores.
func tiesOf(header *safetensors.Header) ([]safetensors.Tie, error) {
	text, recorded := header.Metadata[safetensors.TiedKey]
	if !recorded {
		return nil, nil
	}
	ties, err := safetensors.ParseTies(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUpload, err)
	}
	stored := make(map[string]bool, len(header.Tensors))
	for i := range header.Tensors {
		stored[header.Tensors[i].Name] = true
	}
	for _, t := range ties {
		if stored[t.Name] || !stored[t.Kept] {
			return nil, fmt.Errorf("%w: %w: %q tied to %q", errUpload, safetensors.ErrTies, t.Name, t.Kept)
		}
	}
	return ties, nil
}

// fill reads the elements of all tensors, which are contiguous in the file.
func fill(ctx context.Context, sd *module.StateDict, header *safetensors.Header, r io.Reader) (err error) {
	w := startWriter()
	defer func() { err = errors.Join(err, w.finish()) }()
	for i := range header.Tensors {
		info := &header.Tensors[i]
		t, found := sd.Get(info.Name)
		if !found {
			return fmt.Errorf("tensor %q is gone", info.Name) // the state dict was made from the header
		}
		if err := fillOne(ctx, t, r, w); err != nil {
			return fmt.Errorf("%w: tensor %q: %w", errUpload, info.Name, err)
		}
	}
	return nil
}

func fillOne(ctx context.Context, t *tensor.Tensor, r io.Reader, w *writer) error {
	if t.DType().BitSize()%8 != 0 { // the last byte may have unused bits
		return t.FillFrom(r)
	}
	memory, begin := t.Storage().Memory(), t.Spec().ByteOffset
	for at := int64(0); at < t.Bytes(); {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		buffer, err := w.buffer()
		if err != nil {
			return err
		}
		n, err := io.ReadFull(r, buffer[:min(t.Bytes()-at, int64(len(buffer)))])
		w.write(piece{memory, begin + at, buffer[:n]})
		at += int64(n)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readHeader reads and validates the header of a file, and checks that the file can have the announced size.
func (c *Component) readHeader(r io.Reader, size int64) (*safetensors.Header, error) {
	var length [8]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, fmt.Errorf("%w: %w", errUpload, err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > uint64(min(safetensors.MaxHeaderBytes, c.env.MaxRequest)) || int64(n) > size-8 {
		return nil, fmt.Errorf("%w: a header of %d bytes in a file of %d", errUpload, n, size)
	}
	text := bytes.NewBuffer(length[:])
	if _, err := io.CopyN(text, r, int64(n)); err != nil {
		return nil, fmt.Errorf("%w: the header: %w", errUpload, io.ErrUnexpectedEOF)
	}
	header, err := safetensors.ReadHeader(bytes.NewReader(text.Bytes()), size)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUpload, err)
	}
	return header, nil
}
