package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/internal/store"
)

// readBytes is how much of a connection is read at once.
const readBytes = 1 << 20

// download is one tensor on its way.
type download struct {
	entry *tensorEntry
	data  []byte        // its memory in the slab
	done  *atomic.Int64 // bytes in place, of all
	sum   *runningDigest
}

// fetcher fetches tensors of one version.
type fetcher struct {
	source     *source
	version    uint64
	rangeBytes int64
	workers    int
}

// rangeJob is one range of one tensor.
type rangeJob struct {
	*download
	piece int
}

// fetch fills the tensors, several ranges at once, and returns when all bytes have the digests of the manifest.
func (f *fetcher) fetch(ctx context.Context, list []*download) error {
	err := f.fetchRanges(ctx, list)
	if errors.Is(err, errNoRanges) {
		// Something between here and the source does not know ranges: then each tensor comes by one request.
		whole := *f
		whole.rangeBytes = 1 << 62
		return whole.fetchRanges(ctx, list)
	}
	return err
}

func (f *fetcher) fetchRanges(ctx context.Context, list []*download) error {
	var jobs []rangeJob
	for _, d := range list {
		d.sum = newRunningDigest(int64(len(d.data)), f.rangeBytes, f.rangeBytes, writeBytes(d.data))
		for piece := range d.sum.pieces() {
			jobs = append(jobs, rangeJob{d, piece})
		}
	}
	return inParallel(ctx, f.workers, len(jobs), func(ctx context.Context, i int) error { return f.run(ctx, jobs[i]) })
}

// inParallel runs n jobs, some at once, until one fails, whose error it returns.
func inParallel(ctx context.Context, workers, n int, job func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var running sync.WaitGroup
	for range min(workers, n) {
		running.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := job(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	running.Wait()
	return context.Cause(ctx)
}

// run fetches one range, however often its connection breaks, and compares the digest if it was the last of its tensor.
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
	if got := j.sum.digest(); got != j.entry.digest {
		return fmt.Errorf("tensor %q: %w: its bytes have %v, and the manifest says %v", j.entry.Name, ErrDigest, got, j.entry.digest)
	}
	return nil
}

// read asks for a range and reads it into its place. It returns how many bytes came.
func (f *fetcher) read(ctx context.Context, d *download, begin, end int64) (int64, error) {
	size := int64(len(d.data))
	var fields []string
	if begin > 0 || end < size {
		fields = []string{"Range", fmt.Sprintf("bytes=%d-%d", begin, end-1)}
	}
	a, err := f.source.do(ctx, http.MethodGet, f.source.path(f.version, "/tensors/"+url.PathEscape(d.entry.Name)), fields...)
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
		return 0, fmt.Errorf("%w: %w: the bytes are those of %s", errChanged, ErrDigest, store.Shortened(tag))
	}
	at := begin
	for at < end {
		n, err := a.Read(d.data[at:min(at+readBytes, end)])
		at += int64(n)
		d.done.Add(int64(n))
		if err == io.EOF && at < end { //nolint:errorlint // as io.Reader has it
			err = io.ErrUnexpectedEOF
		}
		if err != nil && at < end {
			return at - begin, err
		}
	}
	// The end of the body is read too, so that the connection is used again; by its length nothing can come behind it.
	_, _ = a.Read(make([]byte, 1))
	return at - begin, nil
}
