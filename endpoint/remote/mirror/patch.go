package mirror

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
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

// patcher fetches deltas to one version from a version that the source keeps.
type patcher struct {
	source  *source
	version uint64
	base    *lease
}

// patchFor is how a tensor can be patched; nil where it cannot, and is fetched.
func (b *base) patchFor(d *download) *patch {
	if b == nil || b.lease == nil {
		return nil
	}
	if old := b.byName[d.entry.Name]; len(old.data) == len(d.data) {
		return &patch{d, old.data, old.digest}
	}
	return nil
}

// run makes one tensor of the one before and compares its digest. Where that does not come to pass, though the source
// can be reached, the error is errNoPatch, and the tensor has to be fetched.
func (p *patcher) run(ctx context.Context, one *patch) error {
	if err := one.slot.copyFrom(one.old); err != nil {
		return fmt.Errorf("tensor %q: %w", one.entry.Name, err)
	}
	var segment int64
	err := p.source.again(ctx, func() (bool, error) {
		next, err := p.read(ctx, one, segment)
		further := next > segment
		segment = next
		return further, err
	})
	if err != nil && (passing(err) || ctx.Err() != nil) {
		return fmt.Errorf("tensor %q: %w", one.entry.Name, err)
	}
	if err == nil {
		if got := module.Digest(sha256.Sum256(one.data)); got != one.entry.digest {
			err = fmt.Errorf("%w: patched, it has %v", ErrDigest, got)
		}
	}
	if err != nil {
		return fmt.Errorf("tensor %q: %w: %w", one.entry.Name, errNoPatch, err)
	}
	one.done.Add(int64(len(one.data)))
	one.offered.came(0, int64(len(one.data)))
	return nil
}

// read asks for the delta from a segment on and applies what comes. It returns the next segment.
func (p *patcher) read(ctx context.Context, one *patch, segment int64) (int64, error) {
	query := url.Values{"lease": {p.base.ID}, "base": {one.digest.String()}, "segment": {fmt.Sprint(segment)}}
	path := p.source.path(p.version, "/deltas/"+url.PathEscape(one.entry.Name)+"?"+query.Encode())
	a, err := p.source.do(ctx, http.MethodGet, path)
	if err != nil {
		return segment, err
	}
	defer a.Close()
	r := bufio.NewReaderSize(a, 256<<10)
	next, err := delta.Apply(one.data, delta.ElementBytes(one.entry.DType.BitSize()), segment, r)
	if errors.Is(err, delta.ErrFormat) {
		return next, fmt.Errorf("%w: %w", ErrSource, err)
	}
	if err == nil {
		_, _ = r.Peek(1) // the end of the body, so that the connection is used again
	}
	return next, err
}
