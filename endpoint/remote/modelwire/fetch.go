package modelwire

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"sort"

	"github.com/sharedtensor/sharedtensor/module"
)

// ErrNoRanges means that a server, or a proxy before it, ignores ranges and sends a whole file.
var ErrNoRanges = errors.New("ranges are ignored")

// Download is a remote file that contains the bytes of consecutive tensors without gaps: one tensor at a gateway or a
// peer, or a safetensors file.
type Download struct {
	// Name names the file in errors.
	Name string
	// Parts are the tensors in the order of the file.
	Parts []*Part
	// Head holds the bytes of the file before the first tensor.
	Head []byte
	// SHA256 is the digest of the file with Head. Zero means that it is unknown. It is not used with Chunks.
	SHA256 Sum
	// Chunks holds the BLAKE3 of each chunk of the only part.
	Chunks []Sum
	// TensorDigests means that the SHA-256 of each part is computed and stored in its entry.
	TensorDigests bool
	// Open requests the bytes from begin to end of the file.
	Open func(ctx context.Context, begin, end int64) (io.ReadCloser, error)
	// Untrusted is called if the bytes differ from their digest, which err reports. If it returns true, they are
	// requested again. nil means never.
	Untrusted func(err error) bool

	step  int64          // length of a range
	whole bool           // ranges are ignored: the file is read from the beginning
	sum   *runningDigest // of the file; nil if SHA256 is unknown or chunks are verified
}

// Part is a tensor in a Download.
type Part struct {
	*Destination
	// Begin and End are its position in the file.
	Begin, End int64

	sum *runningDigest // nil if its digest is not computed
}

// FetchOptions configures Fetch.
type FetchOptions struct {
	// Workers is the number of concurrent requests, and RangeBytes the size of each.
	Workers    int
	RangeBytes int64
	// Again repeats an attempt until it succeeds or fails permanently.
	Again func(ctx context.Context, attempt func() (progressed bool, err error)) error
}

// Fetch downloads files with concurrent range requests. It returns when all bytes match the digests. It fails with
// module.ErrDigest for wrong bytes.
func Fetch(ctx context.Context, list []*Download, o FetchOptions) error {
	err := fetchRanges(ctx, list, o, false)
	if errors.Is(err, ErrNoRanges) { // a proxy ignores ranges, so each file is fetched with one request
		o.RangeBytes = 1 << 62
		return fetchRanges(ctx, list, o, true)
	}
	return err
}

func fetchRanges(ctx context.Context, list []*Download, o FetchOptions, whole bool) error {
	for _, d := range list {
		d.whole = whole
		if err := d.plan(o.RangeBytes); err != nil {
			return fmt.Errorf("%s: %w", d.Name, err)
		}
	}
	jobs := inTurns(list, o.Workers, (*Download).ranges)
	return Parallel(ctx, o.Workers, len(jobs), func(ctx context.Context, i int) error {
		d := jobs[i].of
		if err := d.fetch(ctx, jobs[i].number, o); err != nil {
			return fmt.Errorf("%s: %w", d.Name, err)
		}
		return nil
	})
}

// turn is one piece of an item.
type turn[T any] struct {
	of     T
	number int
}

// inTurns interleaves the pieces of as many items as there are workers, followed by the next items. Each worker then
// mostly processes one item in order. This lets several running digests be computed in parallel, because each is
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

// plan divides the file into ranges.
func (d *Download) plan(step int64) error {
	if d.step = step; d.Chunks != nil { // ranges begin and end with a chunk
		d.step = BLAKE3.RangeBytes(step)
	}
	d.sum = nil
	for _, p := range d.Parts {
		if p.sum = nil; d.TensorDigests {
			first := step - (p.Begin-d.begin())%step
			p.sum = newRunningDigest(p.Entry.Bytes, first, step, writeBytes(p.data))
		}
	}
	switch {
	case d.Chunks != nil || d.SHA256 == (Sum{}):
		return nil
	case len(d.Parts) == 0: // the file consists of its header only
		h := SHA256.New()
		_, _ = h.Write(d.Head) // a hash never fails
		return d.check(Sum(h.Sum(nil)), d.SHA256)
	}
	d.sum = newRunningDigest(d.bytes(), d.step, d.step, d.hashTo)
	_, _ = d.sum.hash.Write(d.Head) // a hash never fails
	return nil
}

func (d *Download) check(got, want Sum) error {
	if got != want {
		return fmt.Errorf("%w: got %v, the source has %v", module.ErrDigest, got, want)
	}
	return nil
}

// begin returns the position of the first tensor in the file.
func (d *Download) begin() int64 { return d.Parts[0].Begin }

// bytes returns the size of the tensors.
func (d *Download) bytes() int64 {
	if len(d.Parts) == 0 {
		return 0
	}
	return d.Parts[len(d.Parts)-1].End - d.begin()
}

// ranges returns the number of ranges.
func (d *Download) ranges() int {
	if len(d.Parts) == 0 {
		return 0
	}
	return int((d.bytes()-1)/d.step) + 1
}

// each calls do with the part of each tensor between begin and end of the file, in order, until one call fails.
func (d *Download) each(begin, end int64, do func(p *Part, from, to int64) error) error {
	i := sort.Search(len(d.Parts), func(i int) bool { return d.Parts[i].End > begin })
	for ; i < len(d.Parts) && d.Parts[i].Begin < end; i++ {
		p := d.Parts[i]
		if err := do(p, max(begin, p.Begin)-p.Begin, min(end, p.End)-p.Begin); err != nil {
			return err
		}
	}
	return nil
}

// hashTo passes bytes of the tensors to a hash. Offsets are relative to the first tensor.
func (d *Download) hashTo(h hash.Hash, begin, end int64) {
	_ = d.each(d.begin()+begin, d.begin()+end, func(p *Part, from, to int64) error { // a hash never fails
		_, err := h.Write(p.data[from:to])
		return err
	})
}

// fetch fetches one range with retries and verifies it. Running digests are verified with the last range.
func (d *Download) fetch(ctx context.Context, number int, o FetchOptions) error {
	begin := d.begin() + int64(number)*d.step
	end := min(begin+d.step, d.begin()+d.bytes())
	if d.Chunks != nil {
		return d.fetchChunks(ctx, begin, end, o)
	}
	if err := d.fetchRange(ctx, begin, end, o, d.feed); err != nil {
		return err
	}
	err := d.each(begin, end, func(p *Part, _, _ int64) error {
		if p.sum != nil && p.sum.arrived(number-int((p.Begin-d.begin())/d.step)) {
			p.Entry.Digest = Digest{Sum: p.sum.digest()}
		}
		return nil
	})
	if err != nil || d.sum == nil || !d.sum.arrived(number) {
		return err
	}
	return d.verify(ctx, o)
}

// verify compares the digest of the whole file. If a peer has sent wrong bytes, it fetches all of them again.
func (d *Download) verify(ctx context.Context, o FetchOptions) error {
	err := d.check(d.sum.digest(), d.SHA256)
	if err == nil || d.Untrusted == nil || !d.Untrusted(err) {
		return err
	}
	h := SHA256.New()
	_, _ = h.Write(d.Head) // a hash never fails
	d.Parts[0].done.Add(-d.bytes())
	begin := d.begin()
	if err := d.fetchRange(ctx, begin, begin+d.bytes(), o, func(_ *Part, _ int64, p []byte) { _, _ = h.Write(p) }); err != nil {
		return err
	}
	return d.check(Sum(h.Sum(nil)), d.SHA256)
}

// feed passes received bytes to the running digests.
func (d *Download) feed(p *Part, at int64, data []byte) {
	if p.sum != nil {
		p.sum.feed(at, data)
	}
	if d.sum != nil {
		d.sum.feed(p.Begin+at-d.begin(), data)
	}
}

// fetchChunks fetches whole chunks and verifies each as it arrives. Wrong chunks of a peer are fetched again.
func (d *Download) fetchChunks(ctx context.Context, begin, end int64, o FetchOptions) error {
	part := d.Parts[0]
	h, wrong := BLAKE3.New(), []int64(nil)
	seen := func(_ *Part, at int64, data []byte) {
		for len(data) > 0 {
			n := min(int64(len(data)), ChunkBytes-at%ChunkBytes)
			_, _ = h.Write(data[:n]) // a hash never fails
			data, at = data[n:], at+n
			if at%ChunkBytes != 0 && at != part.Entry.Bytes {
				continue
			}
			if first := (at - 1) / ChunkBytes; Sum(h.Sum(nil)) != d.Chunks[first] {
				wrong = append(wrong, first)
			}
			h.Reset()
		}
	}
	if err := d.fetchRange(ctx, begin, end, o, seen); err != nil {
		return err
	}
	for len(wrong) > 0 {
		number := wrong[0]
		err := fmt.Errorf("%w: chunk %d", module.ErrDigest, number)
		if d.Untrusted == nil || !d.Untrusted(err) {
			return err
		}
		wrong = wrong[1:]
		from, to := number*ChunkBytes, min((number+1)*ChunkBytes, part.Entry.Bytes)
		part.done.Add(from - to)
		before := len(wrong)
		if err := d.fetchRange(ctx, part.Begin+from, part.Begin+to, o, seen); err != nil {
			return err
		}
		if len(wrong) > before {
			return fmt.Errorf("%w: chunk %d", module.ErrDigest, number)
		}
	}
	return nil
}

// fetchRange fetches a range with retries, each of which continues after the bytes in place.
func (d *Download) fetchRange(ctx context.Context, begin, end int64, o FetchOptions, seen func(p *Part, at int64, data []byte)) error {
	at := begin
	return o.Again(ctx, func() (bool, error) {
		n, err := d.read(ctx, at, end, seen)
		at += n
		return n > 0, err
	})
}

// read makes one request. It returns the number of bytes in place.
func (d *Download) read(ctx context.Context, begin, end int64, seen func(p *Part, at int64, data []byte)) (n int64, err error) {
	from := begin
	if d.whole {
		from = 0
	}
	body, err := d.Open(ctx, from, end)
	if err != nil {
		return 0, err
	}
	defer func() { _ = body.Close() }() // best effort: the bytes are verified
	if _, err := io.CopyN(io.Discard, body, begin-from); err != nil {
		return 0, unexpected(err)
	}
	err = d.each(begin, end, func(p *Part, from, to int64) error {
		got, err := p.Receive(body, from, to, func(at int64, data []byte) { seen(p, at, data) })
		n += got
		return err
	})
	if err == nil {
		// Reading the end of the body lets the connection be reused. The length guarantees that no data follows.
		_, _ = body.Read(make([]byte, 1))
	}
	return n, err
}
