package mirror

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// patch updates a tensor from the tensor with the same name in the previous version.
type patch struct {
	*modelwire.Destination
	old    []byte
	digest modelwire.Digest // digest of old
}

// pair identifies the delta by both digests.
func (p *patch) pair() deltaPair { return deltaPair{p.digest.Sum, p.Entry.Sum} }

// patcher fetches deltas to one version: from a mirror that applied them, or from the source if it holds a lease on the
// base.
type patcher struct {
	source  *source
	version uint64
	base    *lease  // nil if the source holds none
	picker  *picker // selects other mirrors; nil for none
	model   modelwire.Digest
	kept    *keptDeltas // for other mirrors; nil for none
}

// patchFor returns the patch for a tensor; nil if the tensor must be fetched. Without a lease at the source, a patch
// requires peers, which may have the delta.
func (b *base) patchFor(d *modelwire.Destination, peers bool) *patch {
	if b == nil || b.lease == nil && !peers {
		return nil
	}
	if old := b.byName[d.Entry.Name]; int64(len(old.data)) == d.Entry.Bytes && b.manifest.Digested {
		return &patch{d, old.data, old.sums.Digest}
	}
	return nil
}

// run makes one tensor from the previous one and verifies its digest. If that fails although the source can be reached,
// it returns errNoPatch, and the tensor must be fetched.
func (p *patcher) run(ctx context.Context, one *patch) error {
	record, err := p.fromPeers(ctx, one)
	if record == nil && err == nil {
		record, err = p.fromSource(ctx, one)
	}
	if err != nil {
		p.kept.settle(one.pair(), nil)
		return fmt.Errorf("tensor %q: %w", one.Entry.Name, err)
	}
	p.kept.settle(one.pair(), record.of(one))
	one.Record(0, one.Entry.Bytes)
	return nil
}

// fromPeers applies deltas of other mirrors until one is correct. It returns nil if the delta must be fetched from the
// source: this mirror has the source's slot, or the selected mirror was made from another version.
func (p *patcher) fromPeers(ctx context.Context, one *patch) (*recording, error) {
	for ctx.Err() == nil {
		from, who := p.picker.source(ctx, p.source.attempts)
		if from == nil {
			return nil, nil
		}
		record, err := p.fromPeer(ctx, from, one)
		switch {
		case err == nil:
			return record, nil
		case errors.Is(err, ErrNotFound):
			return nil, nil
		case ctx.Err() == nil:
			p.picker.drop(who, true)
			p.source.retry(fmt.Errorf("tensor %q: the mirror at %s: %w", one.Entry.Name, from.base.Host, errPeer{err}))
		}
	}
	return nil, context.Cause(ctx)
}

// fromPeer applies the delta of a mirror and verifies the result.
func (p *patcher) fromPeer(ctx context.Context, from *source, one *patch) (*recording, error) {
	if err := one.Store(0, one.old); err != nil {
		return nil, err
	}
	a, err := from.do(ctx, http.MethodGet, peerPath(p.model, one.Entry.Digest)+"?base="+one.digest.Sum.String())
	if err != nil {
		return nil, err
	}
	defer a.Close()
	record := p.kept.record()
	moved := &counted{from: a}
	_, err = p.apply(one, 0, moved, record)
	p.picker.moved.Add(moved.bytes)
	if err != nil {
		return nil, err
	}
	return record, one.check()
}

// counted counts the bytes read.
type counted struct {
	from  io.Reader
	bytes int64
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.bytes += int64(n)
	return n, err
}

// fromSource applies the delta of the source.
func (p *patcher) fromSource(ctx context.Context, one *patch) (*recording, error) {
	if p.base == nil {
		return nil, fmt.Errorf("%w: the source holds no previous version", errNoPatch)
	}
	if err := one.Store(0, one.old); err != nil {
		return nil, err
	}
	var segment int64
	record := p.kept.record()
	err := p.source.again(ctx, func() (bool, error) {
		next, err := p.read(ctx, one, segment, record)
		further := next > segment
		segment = next
		return further, err
	})
	if err != nil && (passing(err) || ctx.Err() != nil) {
		return nil, err
	}
	if err == nil {
		err = one.check()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoPatch, err)
	}
	return record, nil
}

// check verifies the digest of a patched tensor.
func (p *patch) check() error {
	got, err := modelwire.SumTensor(p.Entry.Hash, p.Entry.Bytes, func(begin, end int64) ([]byte, error) { return p.Data()[begin:end], nil })
	if err == nil && got.Digest != p.Entry.Digest {
		err = fmt.Errorf("%w: the patched tensor has %v", ErrDigest, got.Digest)
	}
	return err
}

// read requests the delta from the source, starting at a segment, and applies it. It returns the next segment.
func (p *patcher) read(ctx context.Context, one *patch, segment int64, record *recording) (int64, error) {
	query := url.Values{"lease": {p.base.ID}, "base": {one.digest.String()}, "segment": {fmt.Sprint(segment)}}
	path := p.source.path(p.version, "/deltas/"+url.PathEscape(one.Entry.Name)+"?"+query.Encode())
	a, err := p.source.do(ctx, http.MethodGet, path)
	if err != nil {
		return segment, err
	}
	defer a.Close()
	return p.apply(one, segment, a, record)
}

// apply applies and records a delta that starts at a segment. It returns the next segment.
func (p *patcher) apply(one *patch, segment int64, from io.Reader, record *recording) (int64, error) {
	if record != nil {
		record.reads++
		from = io.TeeReader(from, record)
	}
	r := bufio.NewReaderSize(from, 256<<10)
	next, err := modelwire.ApplyDelta(one.Data(), modelwire.ElementBytes(one.Entry.DType), segment, r)
	if errors.Is(err, modelwire.ErrDelta) {
		return next, fmt.Errorf("%w: %w", ErrSource, err)
	}
	if err == nil {
		_, _ = r.Peek(1) // read the end of the body, so that the connection can be reused
	}
	return next, err
}
