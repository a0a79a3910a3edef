package mirror

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/internal/store"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/module"
)

// download is a tensor that is being fetched.
type download struct {
	slot
	entry *tensorEntry
	done  *atomic.Int64 // bytes in place, of all tensors
	sum   *runningDigest
	// offered is the tensor as offered to other mirrors; nil if it is not. fromPeer is set if a peer sent bytes of it.
	offered  *offeredTensor
	fromPeer atomic.Bool
}

// fetcher fetches tensors of one version.
type fetcher struct {
	source     *source
	version    uint64
	rangeBytes int64
	workers    int
	picker     *picker // selects other mirrors; nil for none
	model      module.Digest
}

// rangeJob is one range of one tensor.
type rangeJob struct {
	*download
	piece int
}

// fetch fills the tensors with concurrent range requests. It returns when all bytes match the digests of the manifest.
func (f *fetcher) fetch(ctx context.Context, list []*download) error {
	err := f.fetchRanges(ctx, list)
	if errors.Is(err, errNoRanges) {
		// A proxy ignores ranges, so each tensor is fetched with one request.
		whole := *f
		whole.rangeBytes = 1 << 62
		return whole.fetchRanges(ctx, list)
	}
	return err
}

func (f *fetcher) fetchRanges(ctx context.Context, list []*download) error {
	for _, d := range list {
		d.sum = newRunningDigest(int64(len(d.data)), f.rangeBytes, f.rangeBytes, writeBytes(d.data))
	}
	jobs := inTurns(list, f.workers, func(d *download) int { return d.sum.pieces() })
	return modelwire.Parallel(ctx, f.workers, len(jobs), func(ctx context.Context, i int) error {
		return f.run(ctx, rangeJob{jobs[i].of, jobs[i].number})
	})
}

// turn is one piece of an item.
type turn[T any] struct {
	of     T
	number int
}

// inTurns interleaves the pieces of as many items as there are workers, followed by the next items. Each worker then
// mostly processes one item in order. This lets several digests be computed in parallel, because a digest must be
// computed from the beginning to the end.
func inTurns[T any](list []T, workers int, pieces func(T) int) (out []turn[T]) {
	for group := range slices.Chunk(list, max(workers, 1)) {
		for number, more := 0, true; more; number++ {
			more = false
			for _, one := range group {
				if number < pieces(one) {
					out = append(out, turn[T]{one, number})
					more = true
				}
			}
		}
	}
	return out
}

// run fetches one range with retries, and verifies the digest if it was the last range of its tensor.
func (f *fetcher) run(ctx context.Context, j rangeJob) error {
	begin := int64(j.piece) * f.rangeBytes
	end := min(begin+f.rangeBytes, int64(len(j.data)))
	at := begin
	err := f.source.again(ctx, func() (bool, error) {
		n, err := f.read(ctx, j.download, at, end)
		at += n
		return n > 0, err
	})
	if err != nil {
		return fmt.Errorf("tensor %q: %w", j.entry.Name, err)
	}
	if !j.sum.arrived(j.piece) {
		return nil
	}
	got := j.sum.digest()
	if got != j.entry.digest && j.fromPeer.Load() {
		if got, err = f.fetchAnew(ctx, j.download); err != nil {
			return fmt.Errorf("tensor %q: %w", j.entry.Name, err)
		}
	}
	if got != j.entry.digest {
		return fmt.Errorf("tensor %q: %w: got %v, the manifest has %v", j.entry.Name, ErrDigest, got, j.entry.digest)
	}
	return nil
}

// fetchAnew fetches a tensor from the source after a mirror has sent wrong bytes. Mirrors are no longer used after
// that.
func (f *fetcher) fetchAnew(ctx context.Context, d *download) (module.Digest, error) {
	f.picker.drop(f.picker.from.Load(), true)
	f.source.retry(fmt.Errorf("tensor %q: a mirror sent wrong bytes: %w", d.entry.Name, ErrDigest))
	alone, at := *f, int64(0)
	alone.picker = nil
	d.done.Add(-int64(len(d.data)))
	err := f.source.again(ctx, func() (bool, error) {
		n, err := alone.read(ctx, d, at, int64(len(d.data)))
		at += n
		return n > 0, err
	})
	return module.Digest(sha256.Sum256(d.data)), err
}

// read fetches a range into its destination, from another mirror if one has it. It returns the number of bytes
// received.
func (f *fetcher) read(ctx context.Context, d *download, begin, end int64) (int64, error) {
	from, who := f.picker.source(ctx, f.source.attempts)
	if from == nil {
		return f.readFrom(ctx, f.source, f.source.path(f.version, "/tensors/"+url.PathEscape(d.entry.Name)), d, begin, end)
	}
	d.fromPeer.Store(true)
	n, err := f.readFrom(ctx, from, peerPath(f.model, d.entry.digest), d, begin, end)
	f.picker.moved.Add(n)
	if err != nil && ctx.Err() == nil {
		f.picker.drop(who, true)
		err = fmt.Errorf("the mirror at %s: %w", from.base.Host, errPeer{err})
	}
	return n, err
}

// readFrom is read from one particular source.
func (f *fetcher) readFrom(ctx context.Context, from *source, path string, d *download, begin, end int64) (int64, error) {
	size := int64(len(d.data))
	var fields []string
	if begin > 0 || end < size {
		fields = []string{"Range", fmt.Sprintf("bytes=%d-%d", begin, end-1)}
	}
	a, err := from.do(ctx, http.MethodGet, path, fields...)
	if errors.Is(err, ErrNotFound) {
		return 0, fmt.Errorf("%w: %w", errChanged, err)
	}
	if err != nil {
		return 0, err
	}
	defer a.Close()
	if err := store.CheckRange(a.Response, begin, end, size); err != nil {
		return 0, err
	}
	if tag := a.Header.Get("ETag"); tag != "" && tag != etag(d.entry.digest) {
		return 0, fmt.Errorf("%w: %w: got the bytes of %s", errChanged, ErrDigest, store.Shortened(tag))
	}
	n, err := d.receive(a, begin, end, func(at int64, p []byte) {
		d.offered.markReceived(at, int64(len(p)))
		d.done.Add(int64(len(p)))
		d.sum.feed(at, p)
	})
	if err == nil {
		// Reading the end of the body lets the connection be reused. The length guarantees that no data follows.
		_, _ = a.Read(make([]byte, 1))
	}
	return n, err
}
