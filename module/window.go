package module

import (
	"context"
	"io"

	"github.com/sharedtensor/sharedtensor/internal/ended"
)

// windowBytes is the size of each of the two buffers between file and device.
const windowBytes = 8 << 20

// window is a part of the slab, filled from the files.
type window struct {
	// data are the bytes for dst; the gaps between tensors are zero.
	data []byte
	dst  int64
	// read is how many bytes of data came from files.
	read int64
	// file is the file that could not be read, and err is the reason.
	file int
	err  error
}

// copyWindows copies through two buffers: one is filled from the files while the other is written to the memory. Small
// tensors share a window, so that a device sees few large writes. The reading goroutine is gone when it returns.
func (c *copier) copyWindows(ctx context.Context, extents []extent) error {
	ctx, cancel := context.WithCancelCause(ctx)
	free, full := make(chan []byte, 2), make(chan window)
	for range cap(free) {
		free <- make([]byte, min(windowBytes, c.mem.Bytes()))
	}
	go func() {
		defer close(full)
		c.fill(ctx, extents, free, full)
	}()
	// Closing full is the last thing that the goroutine does.
	defer func() {
		cancel(nil)
		for range full {
		}
	}()
	for w := range full {
		if w.err != nil {
			return c.fail(w.file, w.err)
		}
		if _, err := c.mem.WriteAt(w.data, w.dst); err != nil {
			return err
		}
		c.advance(w.read)
		free <- w.data[:cap(w.data)]
	}
	return nil
}

// fill reads one window after the other until all extents are read, reading failed, or ctx ended.
func (c *copier) fill(ctx context.Context, extents []extent, free <-chan []byte, full chan<- window) {
	for len(extents) > 0 {
		w := window{file: extents[0].file}
		select {
		case buffer := <-free:
			if w.err = ended.Cause(ctx); w.err == nil {
				extents = c.read(&w, buffer, extents)
			}
		case <-ctx.Done():
			w.err = ended.Cause(ctx)
		}
		full <- w
		if w.err != nil {
			return
		}
	}
}

// read fills one window from as many extents as fit, and returns what is left of them.
func (c *copier) read(w *window, buffer []byte, extents []extent) []extent {
	w.dst = extents[0].dst
	used := int64(0)
	for len(extents) > 0 {
		e := &extents[0]
		at := e.dst - w.dst
		n := min(e.bytes, int64(len(buffer))-at)
		if n <= 0 {
			break
		}
		clear(buffer[used:at])
		used = at + n
		if err := readFull(c.model.Files[e.file].Source(), buffer[at:used], e.src); err != nil {
			w.file, w.err = e.file, err
			return nil
		}
		w.read += n
		e.src, e.dst, e.bytes = e.src+n, e.dst+n, e.bytes-n
		if e.bytes > 0 {
			break
		}
		extents = extents[1:]
	}
	w.data = buffer[:used]
	return extents
}

// readFull fills p from offset off. A source may return io.EOF with its last bytes.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case err == nil:
		return io.ErrUnexpectedEOF
	}
	return err
}
