package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/internal/store"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// fetcher fetches tensors of one version of a gateway.
type fetcher struct {
	source  *source
	version uint64
	picker  *picker // selects other mirrors; nil for none
	model   modelwire.Digest
}

// tensorSource opens ranges of one tensor, at another mirror if one has it.
type tensorSource struct {
	*fetcher
	entry    *modelwire.Entry
	fromPeer atomic.Bool // another mirror has sent bytes of it
	alone    atomic.Bool // other mirrors are not used, because one has sent wrong bytes
}

// download returns the download of a tensor.
func (f *fetcher) download(to *modelwire.Destination) *modelwire.Download {
	t := &tensorSource{fetcher: f, entry: to.Entry}
	d := &modelwire.Download{
		Name: fmt.Sprintf("tensor %q", to.Entry.Name), Parts: []*modelwire.Part{{Destination: to, End: to.Entry.Bytes}}, Open: t.open, Untrusted: t.untrusted,
	}
	if to.Entry.Hash == modelwire.BLAKE3 {
		d.Chunks = to.Entry.Chunks
	} else {
		d.SHA256 = to.Entry.Sum
	}
	return d
}

// open requests a range.
func (t *tensorSource) open(ctx context.Context, begin, end int64) (io.ReadCloser, error) {
	if !t.alone.Load() {
		if from, who := t.picker.source(ctx, t.source.attempts); from != nil {
			t.fromPeer.Store(true)
			body := &peerBody{ctx: ctx, picker: t.picker, who: who, host: from.base.Host, left: end - begin}
			var err error
			if body.answer, err = t.request(ctx, from, peerPath(t.model, t.entry.Digest), begin, end); err != nil {
				return nil, body.failed(err)
			}
			return body, nil
		}
	}
	path := modelwire.TensorPath(t.source.name, t.version, t.entry.Name)
	if t.entry.Hash == modelwire.BLAKE3 {
		path += "?digest=" + t.entry.Hash.String()
	}
	return t.request(ctx, t.source, path, begin, end)
}

// request requests a range of the tensor from one source.
func (t *tensorSource) request(ctx context.Context, from *source, path string, begin, end int64) (*answer, error) {
	size := t.entry.Bytes
	var fields []string
	if begin > 0 || end < size {
		fields = []string{"Range", fmt.Sprintf("bytes=%d-%d", begin, end-1)}
	}
	a, err := from.do(ctx, http.MethodGet, path, fields...)
	if errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("%w: %w", errChanged, err)
	}
	if err != nil {
		return nil, err
	}
	err = store.CheckRange(a.Response, begin, end, size)
	if tag := a.Header.Get("ETag"); err == nil && tag != "" && tag != t.entry.ETag() {
		err = fmt.Errorf("%w: %w: got the bytes of %s", errChanged, ErrDigest, store.Shortened(tag))
	}
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// untrusted reports whether wrong bytes may come from another mirror. They are then fetched from the source.
func (t *tensorSource) untrusted(err error) bool {
	if !t.fromPeer.Load() {
		return false
	}
	t.alone.Store(true)
	t.picker.drop(t.picker.from.Load(), true)
	t.source.retry(fmt.Errorf("tensor %q: a mirror sent wrong bytes: %w", t.entry.Name, err))
	return true
}

// peerBody is a range sent by another mirror. After an error, the other mirror is not used again.
type peerBody struct {
	*answer
	ctx    context.Context
	picker *picker
	who    *peer
	host   string
	left   int64
}

// Read implements io.Reader.
func (b *peerBody) Read(p []byte) (int, error) {
	n, err := b.answer.Read(p)
	b.left -= int64(n)
	b.picker.moved.Add(int64(n))
	if err != nil && b.left > 0 {
		err = b.failed(err)
	}
	return n, err
}

func (b *peerBody) failed(err error) error {
	if b.ctx.Err() != nil {
		return err
	}
	b.picker.drop(b.who, true)
	return fmt.Errorf("the mirror at %s: %w", b.host, errPeer{err})
}
