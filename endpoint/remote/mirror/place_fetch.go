package mirror

import (
	"context"
	"fmt"
	"io"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/internal/store"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// fillPlace puts all bytes into place. It copies files that the base already has and fetches the rest.
func (m *Mirror) fillPlace(ctx context.Context, f *found, a *modelwire.Arrival, moved int64, result *Result) error {
	defer m.watchProgress(0, moved, a)()
	var list []*modelwire.Download
	for i := range f.model.Files {
		d := m.fileDownload(f, i, a)
		copied, err := copyFile(f.Files[i], d, m.base)
		if err != nil {
			return err
		}
		if result.Copied += copied; copied == 0 {
			list = append(list, d)
		}
	}
	if err := modelwire.Fetch(ctx, list, m.fetchOptions()); err != nil {
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
		f.manifest.TieDigests()
	}
	return nil
}

// fileDownload returns the download of the file with the given number. Its tensors are stored in file order.
func (m *Mirror) fileDownload(f *found, number int, a *modelwire.Arrival) *modelwire.Download {
	file, begin := f.Files[number], f.model.Files[number].Header.DataOffset
	d := &modelwire.Download{Name: file.Path, Head: f.heads[number], SHA256: file.SHA256, TensorDigests: m.wantsDigests()}
	d.Open = func(ctx context.Context, begin, end int64) (io.ReadCloser, error) {
		return m.attempts.open(ctx, func(ctx context.Context) (io.ReadCloser, error) { return file.Open(ctx, begin, end) })
	}
	for i := range f.model.Tensors {
		t := &f.model.Tensors[i] // in the order of the manifest
		switch {
		case t.File != number:
		case a.Tensors[i] == nil: // it is empty
			sums, _ := modelwire.SumTensor(modelwire.SHA256, 0, nil) // nothing is read
			f.manifest.Tensors[i].TensorSums = sums
		default:
			d.Parts = append(d.Parts, &modelwire.Part{Destination: a.Tensors[i], Begin: begin + t.Begin, End: begin + t.End})
		}
	}
	return d
}

// copyFile copies all tensors from a version that was made from the same file. It returns the number of bytes copied,
// or 0 if the base lacks the file.
func copyFile(file *store.File, d *modelwire.Download, b *base) (copied int64, err error) {
	if b == nil || !b.files[file.Identity] {
		return 0, nil
	}
	for _, p := range d.Parts {
		if int64(len(b.byName[p.Entry.Name].data)) != p.Entry.Bytes {
			return 0, nil
		}
	}
	for _, p := range d.Parts {
		here := b.byName[p.Entry.Name]
		if err := p.Write(0, here.data); err != nil {
			return copied, fmt.Errorf("tensor %q: %w", p.Entry.Name, err)
		}
		p.Entry.TensorSums = here.sums
		copied += p.Entry.Bytes
	}
	return copied, nil
}
