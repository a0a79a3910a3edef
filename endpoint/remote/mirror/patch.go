package mirror

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/delta"
	"github.com/sharedtensor/sharedtensor/module"
)

// patch is a tensor that is made of the one of the same name in the version before.
type patch struct {
	*download
	old    []byte
	digest module.Digest // of old
}

// pair is what the delta leads from and to.
func (p *patch) pair() deltaPair { return deltaPair{p.digest, p.entry.digest} }

// patcher fetches deltas to one version: from a mirror that was patched itself, or from the source, of a version that
// the source keeps.
type patcher struct {
	source  *source
	version uint64
	base    *lease  // nil where the source keeps none
	picker  *picker // of other mirrors; nil for none
	model   module.Digest
	kept    *keptDeltas // for other mirrors; nil for none
}

// patchFor is how a tensor can be patched; nil where it cannot, and is fetched. Without a lease at the source, mirrors
// may have deltas.
func (b *base) patchFor(d *download, peers bool) *patch {
	if b == nil || b.lease == nil && !peers {
		return nil
	}
	if old := b.byName[d.entry.Name]; len(old.data) == len(d.data) && old.digest != (module.Digest{}) {
		return &patch{d, old.data, old.digest}
	}
	return nil
}

// run makes one tensor of the one before and compares its digest. Where that does not come to pass, though the source
// can be reached, the error is errNoPatch, and the tensor has to be fetched.
func (p *patcher) run(ctx context.Context, one *patch) error {
	record, err := p.fromPeers(ctx, one)
	if record == nil && err == nil {
		record, err = p.fromSource(ctx, one)
	}
	if err != nil {
		p.kept.settle(one.pair(), nil)
		return fmt.Errorf("tensor %q: %w", one.entry.Name, err)
	}
	p.kept.settle(one.pair(), record.of(one))
	one.done.Add(int64(len(one.data)))
	one.offered.came(0, int64(len(one.data)))
	return nil
}

// fromPeers patches by deltas of other mirrors until one is right. It returns nil where the source has to be asked:
// because it is this mirror's turn, or because the mirror that it takes from was not made of the same version.
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
			p.source.retry(fmt.Errorf("tensor %q: the mirror at %s: %w", one.entry.Name, from.base.Host, errPeer{err}))
		}
	}
	return nil, context.Cause(ctx)
}

// fromPeer patches by the delta of a mirror, which is not believed.
func (p *patcher) fromPeer(ctx context.Context, from *source, one *patch) (*recording, error) {
	if err := one.slot.copyFrom(one.old); err != nil {
		return nil, err
	}
	a, err := from.do(ctx, http.MethodGet, peerPath(p.model, one.entry.digest)+"?base="+one.digest.String())
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

// counted counts what is read.
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

// fromSource patches by the delta of the source.
func (p *patcher) fromSource(ctx context.Context, one *patch) (*recording, error) {
	if p.base == nil {
		return nil, fmt.Errorf("%w: the source keeps no version before", errNoPatch)
	}
	if err := one.slot.copyFrom(one.old); err != nil {
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

// check compares the digest of a tensor that was patched.
func (p *patch) check() error {
	if got := module.Digest(sha256.Sum256(p.data)); got != p.entry.digest {
		return fmt.Errorf("%w: patched, it has %v", ErrDigest, got)
	}
	return nil
}

// read asks the source for the delta from a segment on and applies what comes. It returns the next segment.
func (p *patcher) read(ctx context.Context, one *patch, segment int64, record *recording) (int64, error) {
	query := url.Values{"lease": {p.base.ID}, "base": {one.digest.String()}, "segment": {fmt.Sprint(segment)}}
	path := p.source.path(p.version, "/deltas/"+url.PathEscape(one.entry.Name)+"?"+query.Encode())
	a, err := p.source.do(ctx, http.MethodGet, path)
	if err != nil {
		return segment, err
	}
	defer a.Close()
	return p.apply(one, segment, a, record)
}

// apply applies what comes from a segment on, and writes it down. It returns the next segment.
func (p *patcher) apply(one *patch, segment int64, from io.Reader, record *recording) (int64, error) {
	if record != nil {
		record.reads++
		from = io.TeeReader(from, record)
	}
	r := bufio.NewReaderSize(from, 256<<10)
	next, err := delta.Apply(one.data, delta.ElementBytes(one.entry.DType.BitSize()), segment, r)
	if errors.Is(err, delta.ErrFormat) {
		return next, fmt.Errorf("%w: %w", ErrSource, err)
	}
	if err == nil {
		_, _ = r.Peek(1) // the end of the body, so that the connection is used again
	}
	return next, err
}
