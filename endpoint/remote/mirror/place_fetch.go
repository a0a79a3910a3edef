package mirror

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"sort"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/internal/store"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/module"
)

// fileDownload is a file of a place that is being fetched. Its ranges are stored in the memory of consecutive tensors.
type fileDownload struct {
	file    *store.File
	head    []byte
	begin   int64            // offset of the tensors in the file
	tensors []tensorDownload // tensors with elements, in file order, without gaps
	done    *atomic.Int64    // bytes in place, of all files
	sum     *runningDigest   // digest of the file; nil if the expected digest is unknown
	step    int64            // length of a range
	whole   bool             // ranges are ignored: the file is read from the beginning
	digests bool             // compute the digests of the tensors
}

// tensorDownload is one tensor of a file.
type tensorDownload struct {
	slot
	entry      *tensorEntry
	begin, end int64          // in the file
	sum        *runningDigest // nil if its digest is not needed
}

// fillPlace puts all bytes into place. It copies files that the base already has and fetches the rest.
func (m *Mirror) fillPlace(ctx context.Context, f *found, sd *module.StateDict, moved int64, result *Result) error {
	var done atomic.Int64
	defer m.watchProgress(0, f.manifest.bytes, moved, &done)()
	var list []*fileDownload
	for i, file := range f.model.Files {
		d := &fileDownload{file: f.Files[i], head: f.heads[i], begin: file.Header.DataOffset, done: &done, digests: m.wantsDigests()}
		if err := d.place(f, i, sd); err != nil {
			return err
		}
		copied, err := d.copyFrom(m.base)
		if err != nil {
			return err
		}
		if copied > 0 {
			result.Copied += copied
			continue
		}
		list = append(list, d)
	}
	if err := m.fetchFiles(ctx, list, m.options.RangeBytes, false); errors.Is(err, errNoRanges) {
		err = m.fetchFiles(ctx, list, 1<<62, true)
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	for _, file := range f.Files {
		if file.Unchanged != nil {
			if err := file.Unchanged(); err != nil {
				return err
			}
		}
	}
	if m.wantsDigests() {
		f.manifest.tieDigests()
		f.manifest.digested = true
	}
	return nil
}

// place finds the memory for the tensors of the file with the given number.
func (d *fileDownload) place(f *found, number int, sd *module.StateDict) error {
	for i := range f.model.Tensors {
		t, entry := &f.model.Tensors[i], &f.manifest.tensors[i] // both are in the model's order
		if t.File != number {
			continue
		}
		if entry.bytes == 0 {
			entry.digest = sha256.Sum256(nil) // the digest of an empty tensor
			continue
		}
		at, err := slotOf(sd, entry)
		if err != nil {
			return err
		}
		d.tensors = append(d.tensors, tensorDownload{slot: at, entry: entry, begin: d.begin + t.Begin, end: d.begin + t.End})
	}
	return nil
}

// copyFrom copies all tensors from a version that was made from the same file. It returns the number of bytes copied,
// or 0 if the base lacks the file.
func (d *fileDownload) copyFrom(b *base) (copied int64, err error) {
	if b == nil || !b.files[d.file.Identity] {
		return 0, nil
	}
	for i := range d.tensors {
		if t := &d.tensors[i]; len(b.byName[t.entry.Name].data) != len(t.data) {
			return 0, nil
		}
	}
	for i := range d.tensors {
		t := &d.tensors[i]
		here := b.byName[t.entry.Name]
		if err := t.slot.copyFrom(here.data); err != nil {
			return copied, err
		}
		t.entry.digest = here.digest
		copied += int64(len(here.data))
	}
	d.done.Add(copied)
	return copied, nil
}

// tieDigests sets the digests of tied names to those of their tensors.
func (m *manifest) tieDigests() {
	digests := map[string]module.Digest{}
	for i := range m.tensors {
		if t := &m.tensors[i]; t.TiedTo == "" {
			digests[t.Name] = t.digest
		} else {
			t.digest = digests[t.TiedTo]
		}
	}
}

// fileJob is one range of one file.
type fileJob struct {
	*fileDownload
	piece int
}

// fetchFiles fetches files with concurrent range requests. It returns when all bytes match the digests that the place
// provides. The digests of the tensors are then known.
func (m *Mirror) fetchFiles(ctx context.Context, list []*fileDownload, step int64, whole bool) error {
	for _, d := range list {
		if err := d.plan(step, whole); err != nil {
			return err
		}
	}
	jobs := inTurns(list, m.options.Connections, (*fileDownload).pieces)
	return modelwire.Parallel(ctx, m.options.Connections, len(jobs), func(ctx context.Context, i int) error {
		one := fileJob{jobs[i].of, jobs[i].number}
		if err := one.run(ctx, m.attempts); err != nil {
			return fmt.Errorf("%s: %w", one.file.Path, err)
		}
		return nil
	})
}

// plan divides the file into ranges.
func (d *fileDownload) plan(step int64, whole bool) error {
	d.step, d.whole = step, whole
	for i := range d.tensors {
		t := &d.tensors[i]
		if d.digests {
			first := step - (t.begin-d.begin)%step
			t.sum = newRunningDigest(int64(len(t.data)), first, step, writeBytes(t.data))
		}
	}
	if d.file.SHA256 == (module.Digest{}) {
		return nil
	}
	if len(d.tensors) == 0 { // the file consists of its header only
		return checkFile(d.file, sha256.Sum256(d.head))
	}
	d.sum = newRunningDigest(d.dataBytes(), step, step, d.write)
	d.sum.hash.Write(d.head)
	return nil
}

// dataBytes returns the size of the tensors.
func (d *fileDownload) dataBytes() int64 {
	if len(d.tensors) == 0 {
		return 0
	}
	return d.tensors[len(d.tensors)-1].end - d.begin
}

// pieces returns the number of ranges.
func (d *fileDownload) pieces() int {
	if len(d.tensors) == 0 {
		return 0
	}
	return int((d.dataBytes()-1)/d.step) + 1
}

// each calls do with the part of each tensor between begin and end of the file, in order, until one call fails.
func (d *fileDownload) each(begin, end int64, do func(t *tensorDownload, from, to int64) error) error {
	i := sort.Search(len(d.tensors), func(i int) bool { return d.tensors[i].end > begin })
	for ; i < len(d.tensors) && d.tensors[i].begin < end; i++ {
		t := &d.tensors[i]
		if err := do(t, max(begin, t.begin)-t.begin, min(end, t.end)-t.begin); err != nil {
			return err
		}
	}
	return nil
}

// write passes bytes of the tensors to the file's hash. Offsets are relative to the first tensor.
func (d *fileDownload) write(h hash.Hash, begin, end int64) {
	_ = d.each(d.begin+begin, d.begin+end, func(t *tensorDownload, from, to int64) error { // a hash never fails
		_, err := h.Write(t.data[from:to])
		return err
	})
}

// run fetches one range with retries, and verifies the file's digest if it was the last range.
func (j fileJob) run(ctx context.Context, a *attempts) error {
	begin := j.begin + int64(j.piece)*j.step
	end := j.begin + min(int64(j.piece+1)*j.step, j.dataBytes())
	if j.whole {
		end = j.begin + j.dataBytes()
	}
	at := begin
	err := a.again(ctx, func() (bool, error) {
		n, err := j.read(ctx, a, at, end)
		at += n
		return n > 0, err
	})
	if err != nil {
		return err
	}
	err = j.each(begin, end, func(t *tensorDownload, _, _ int64) error {
		if t.sum != nil && t.sum.arrived(j.piece-int((t.begin-j.begin)/j.step)) {
			t.entry.digest = t.sum.digest()
		}
		return nil
	})
	if err == nil && j.sum != nil && j.sum.arrived(j.piece) {
		return checkFile(j.file, j.sum.digest())
	}
	return err
}

func checkFile(f *store.File, got module.Digest) error {
	if got != f.SHA256 {
		return fmt.Errorf("%s: %w: got %v, the source has %v", f.Path, ErrDigest, got, f.SHA256)
	}
	return nil
}

// read fetches a range into its destinations. It returns the number of bytes received.
func (d *fileDownload) read(ctx context.Context, a *attempts, begin, end int64) (n int64, err error) {
	from := begin
	if d.whole {
		from = 0
	}
	body, err := a.open(ctx, func(ctx context.Context) (io.ReadCloser, error) { return d.file.Open(ctx, from, end) })
	if err != nil {
		return 0, err
	}
	defer body.Close()
	if _, err := io.CopyN(io.Discard, body, begin-from); err != nil {
		return 0, unexpected(err)
	}
	err = d.each(begin, end, func(t *tensorDownload, from, to int64) error {
		got, err := t.receive(body, from, to, func(at int64, p []byte) {
			d.done.Add(int64(len(p)))
			if t.sum != nil {
				t.sum.feed(at, p)
			}
			if d.sum != nil {
				d.sum.feed(t.begin+at-d.begin, p)
			}
		})
		n += got
		return err
	})
	if err == nil {
		_, _ = body.Read(make([]byte, 1)) // read the end of the body, so that the connection can be reused
	}
	return n, err
}

// unexpected converts io.EOF to io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
