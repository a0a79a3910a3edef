package cuda

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// staging is the set of pinned buffers through which files are loaded, each with a separate stream. While one buffer is
// read into, others are copied to the device. They are made at the first load and kept until the device is closed.
type staging struct {
	all  []*stage
	free chan *stage // buffers that no load uses
	stop sync.Once
}

type stage struct {
	host   *HostMemory
	stream *Stream
}

// stages returns the device's staging buffers, and makes them at the first call.
func (d *Device) stages() (*staging, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed.Load() {
		return nil, os.ErrClosed
	}
	if d.staging == nil {
		s, err := d.makeStaging()
		if err != nil {
			return nil, err
		}
		d.staging = s
	}
	return d.staging, nil
}

// makeStaging is called with d.mu held and the device open. The constructors it calls must not lock d.mu.
func (d *Device) makeStaging() (_ *staging, err error) {
	s := &staging{free: make(chan *stage, d.options.buffers)}
	var back undo
	defer back.onError(&err)
	for range d.options.buffers {
		host, err := d.pinnedHost(d.options.bufferBytes)
		if err != nil {
			return nil, err
		}
		back.add(host.discard)
		stream, err := d.newStream(StreamOptions{})
		if err != nil {
			return nil, err
		}
		back.add(stream.discard)
		b := &stage{host, stream}
		s.all = append(s.all, b)
		s.free <- b
	}
	return s, nil
}

// close waits for loads that have a buffer and frees the buffers. Loads that wait for a buffer fail. close can be
// called again after an error.
func (s *staging) close() error {
	if s == nil {
		return nil
	}
	s.stop.Do(func() {
		for range s.all {
			<-s.free
		}
		close(s.free)
	})
	var errs []error
	for _, b := range s.all {
		errs = append(errs, b.stream.close(), b.host.close())
	}
	return joinErrors(errs)
}

// LoadAt copies n bytes of src from offset srcOff to the memory at dstOff and returns when they are on the device.
// Reading and copying overlap. src must allow concurrent reads, as [io.ReaderAt] requires. See [driver.Loader].
func (m *Memory) LoadAt(src io.ReaderAt, srcOff, dstOff, n int64, progress func(bytes int64)) error {
	// The memory is kept open for one piece at a time. Close thus does not wait for the whole file, and progress may
	// call it.
	if err := m.use(); err != nil {
		return m.dev.opError("load", err)
	}
	m.done()
	if err := m.writableRange(dstOff, n); err != nil {
		return m.dev.opError("load", err)
	}
	if srcOff < 0 || srcOff+n < srcOff {
		return m.dev.opError("load", invalid("%d bytes at offset %d of the source", n, srcOff))
	}
	if n == 0 {
		return nil
	}
	s, err := m.dev.stages()
	if err != nil {
		return m.dev.opError("load", err)
	}
	l := load{n: n, piece: m.dev.options.bufferBytes, progress: progress}
	l.copyPiece = func(b *stage, at, size int64) error { return m.loadPiece(b, src, srcOff+at, dstOff+at, size) }
	return m.dev.opError("load", l.run(s))
}

// load is the state of one copy that several goroutines make in pieces, each with a stage.
type load struct {
	n         int64
	piece     int64
	copyPiece func(b *stage, at, size int64) error
	next      atomic.Int64 // offset of the next piece
	failed    atomic.Bool

	mu       sync.Mutex
	progress func(bytes int64)
	err      error
}

// run copies with one goroutine for each buffer that the load can use, and waits for the goroutines.
func (l *load) run(s *staging) error {
	workers := int(min(int64(len(s.all)), (l.n+l.piece-1)/l.piece))
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			b, ok := <-s.free
			if !ok {
				l.fail(os.ErrClosed)
				return
			}
			defer func() { s.free <- b }()
			l.work(b)
		})
	}
	group.Wait()
	return l.err
}

func (l *load) work(b *stage) {
	for !l.failed.Load() {
		at := l.next.Add(l.piece) - l.piece
		if at >= l.n {
			return
		}
		size := min(l.piece, l.n-at)
		if err := l.copyPiece(b, at, size); err != nil {
			l.fail(err)
			return
		}
		l.tell(size)
	}
}

// loadPiece reads a piece into the buffer of b, which the caller owns, and copies it to the device.
func (m *Memory) loadPiece(b *stage, src io.ReaderAt, srcOff, dstOff, size int64) error {
	buf := b.host.data[:size]
	if err := readFull(src, buf, srcOff); err != nil {
		return err
	}
	return m.call(func(c cu.Context) error {
		err := queueToDevice(c, m.ptr+cu.DevicePtr(dstOff), buf, b.stream.handle)
		if err == nil {
			err = check("cuStreamSynchronize", c.StreamSynchronize(b.stream.handle))
		}
		if err != nil { // the copy may be unfinished
			b.stream.track.mark(m.life)
			b.stream.track.mark(b.host.life)
		}
		return err
	})
}

// readFull fills buf. It returns [io.ErrUnexpectedEOF] if the source is shorter.
func readFull(src io.ReaderAt, buf []byte, off int64) error {
	n, err := src.ReadAt(buf, off)
	switch {
	case n == len(buf):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return fmt.Errorf("the source ends after %d bytes: %w", off+int64(n), io.ErrUnexpectedEOF)
	}
	return err
}

func (l *load) fail(err error) {
	l.failed.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

func (l *load) tell(bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.progress != nil {
		l.progress(bytes)
	}
}
