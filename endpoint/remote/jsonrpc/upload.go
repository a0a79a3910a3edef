package jsonrpc

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
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/stall"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// errUpload is a body that is not the file that it says it is.
var errUpload = fmt.Errorf("%w: not a safetensors file as announced", errParams)

// upload is PUT /v1/models/{model}/model.safetensors: the body becomes the next version of the name, all of it or
// nothing.
func (c *Component) upload(w http.ResponseWriter, r *http.Request) {
	out, err := c.receive(w, r)
	if err != nil {
		// What is left of the body is not read: the peer is told and cut off.
		w.Header().Set("Connection", "close")
		httpError(w, r, err)
		return
	}
	text, _ := json.Marshal(out) // a struct of strings and numbers
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(append(text, '\n'))
}

func (c *Component) receive(w http.ResponseWriter, r *http.Request) (out published, err error) {
	ctx := r.Context()
	p := modelOf(r)
	if err := c.env.CheckWrite(ctx); err != nil {
		return out, err
	}
	switch {
	case p.Version != 0:
		return out, fmt.Errorf("%w: the owner numbers versions: leave @%d out", errParams, p.Version)
	case r.ContentLength < 0:
		return out, fmt.Errorf("%w: the length has to be announced: send Content-Length", errParams)
	case r.ContentLength > int64(c.MaxModel):
		return out, fmt.Errorf("%w: a model has at most %v", errTooLarge, c.MaxModel)
	}
	release, err := c.arriving.reserve(r.ContentLength, int64(c.MaxModel))
	if err != nil {
		return out, err
	}
	defer release()
	want, err := announcedDigest(r.Header)
	if err != nil {
		return out, err
	}
	if _, err := c.env.Owner.Client(); err != nil {
		return out, err // before the peer sends it all
	}
	body := stall.NewReader(w, r.Body, c.env.Stall)
	defer func() { body.Release(err == nil) }()
	source := "upload"
	if id := gateway.IdentityFrom(ctx); id.Name != "" {
		source = "upload of " + id.Name
	}
	return c.publishStream(ctx, p.Name, body, r.ContentLength, want, source)
}

// budget bounds what all transfers in flight have announced: memory is taken for a model before its bytes are here.
type budget struct {
	mu    sync.Mutex
	taken int64
}

// reserve takes n bytes of limit. The caller gives them back with release.
func (b *budget) reserve(n, limit int64) (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > limit-b.taken {
		return nil, fmt.Errorf("%w: other models of %d bytes are on their way, and all may have %d: try again", endpoint.ErrLimit, b.taken, limit)
	}
	b.taken += n
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.taken -= n
	}, nil
}

// announcedDigest is the SHA-256 that a request says its body has, in the field that RFC 9530 has for it; nil where it
// says none.
func announcedDigest(h http.Header) ([]byte, error) {
	for _, field := range []string{"Repr-Digest", "Content-Digest"} {
		for one := range strings.SplitSeq(h.Get(field), ",") {
			value, is := strings.CutPrefix(strings.TrimSpace(one), "sha-256=:")
			if !is {
				continue
			}
			digest, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(value, ":"))
			if err != nil || len(digest) != sha256.Size {
				return nil, fmt.Errorf("%w: %s holds no SHA-256", errParams, field)
			}
			return digest, nil
		}
	}
	return nil, nil
}

// publishStream publishes a file of size bytes that comes as a stream: its header is checked before memory is taken,
// the bytes go straight into the slab, and the digest, where there is one, is compared before anybody can see the
// version.
func (c *Component) publishStream(ctx context.Context, name string, r io.Reader, size int64, want []byte, source string) (out published, err error) {
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

// readModel reads a file into one new slab. The caller owns what it returns.
func (c *Component) readModel(ctx context.Context, r io.Reader, size int64) (_ *module.StateDict, err error) {
	header, err := c.readHeader(r, size)
	if err != nil {
		return nil, err
	}
	ties, err := tiesOf(header)
	if err != nil {
		return nil, err
	}
	sd, err := module.Uninitialized(c.uploads, specsOf(header, ties)) // fill writes all of it
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

// specsOf describes the tensors of a file in its order, and then the tied names.
func specsOf(header *safetensors.Header, ties []safetensors.Tie) []module.NamedSpec {
	specs := make([]module.NamedSpec, 0, len(header.Tensors)+len(ties))
	at := make(map[string]int, len(header.Tensors))
	for i, t := range header.Tensors {
		specs = append(specs, module.NamedSpec{Name: t.Name, DType: t.DType, Shape: t.Shape})
		at[t.Name] = i
	}
	for _, tie := range ties {
		kept := specs[at[tie.Kept]] // tiesOf made sure that it is there
		specs = append(specs, module.NamedSpec{Name: tie.Name, DType: kept.DType, Shape: kept.Shape, TiedTo: tie.Kept})
	}
	return specs
}

// tiesOf are the tied names that a header records. Each has to be a new name for a tensor that the file stores.
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

// fill reads the elements of all tensors, which follow each other in the file.
func fill(ctx context.Context, sd *module.StateDict, header *safetensors.Header, r io.Reader) (err error) {
	w := startWriter()
	defer func() { err = errors.Join(err, w.finish()) }()
	for i := range header.Tensors {
		info := &header.Tensors[i]
		t, found := sd.Get(info.Name)
		if !found {
			return fmt.Errorf("tensor %q is gone", info.Name) // the state dict was made of the header
		}
		if err := fillOne(ctx, t, r, w); err != nil {
			return fmt.Errorf("%w: tensor %q: %w", errUpload, info.Name, err)
		}
	}
	return nil
}

func fillOne(ctx context.Context, t *tensor.Tensor, r io.Reader, w *writer) error {
	if t.DType().BitSize()%8 != 0 { // whose last byte may have bits that are none of the tensor's
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

// readHeader reads the beginning of a file and checks it, and that the file can be as long as it is said to be.
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
