package modelwire

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// readBytes is the size of one read from a connection. It is small enough that the data is still in the CPU cache when
// it is hashed and copied.
const readBytes = 256 << 10

// buffers holds buffers of readBytes.
var buffers = sync.Pool{New: func() any { return new([readBytes]byte) }}

// Arrival is a version whose bytes arrive in one new slab of memory.
type Arrival struct {
	// Manifest describes the version. Borrowed.
	Manifest *Manifest
	// Tensors holds the destination of each tensor of the manifest; nil for tied and empty tensors.
	Tensors []*Destination
	// Done is the number of bytes in place.
	Done atomic.Int64

	sd            *module.StateDict
	last          driver.Memory
	lastAllocated bool
}

// Destination is the memory of one tensor of an Arrival. Different ranges may be written concurrently.
type Destination struct {
	Entry *Entry

	memory driver.Memory
	begin  int64
	data   []byte // the same bytes in the mapping; nil if the CPU cannot address them
	direct bool   // connections are read into data
	done   *atomic.Int64
	got    *received
}

// NewArrival allocates the memory for a version on dev. Parts of step bytes of each tensor may be written in any order;
// 0 means that each tensor is written from its beginning. The caller closes the Arrival.
func NewArrival(dev driver.Device, m *Manifest, step int64) (*Arrival, error) {
	sd, err := module.Empty(dev, m.Specs()) // all of it is written before others see it
	if err != nil {
		return nil, err
	}
	sd.Metadata = m.Metadata
	a := &Arrival{Manifest: m, Tensors: make([]*Destination, len(m.Tensors)), sd: sd}
	for i := range m.Tensors {
		e := &m.Tensors[i]
		if e.TiedTo != "" || e.Bytes == 0 {
			continue
		}
		t, found := sd.Get(e.Name)
		if !found {
			return nil, fmt.Errorf("tensor %q is gone", e.Name) // the state dict was created from the manifest
		}
		d := &Destination{Entry: e, memory: t.Storage().Memory(), begin: t.Spec().ByteOffset, done: &a.Done}
		if data, err := tensor.RawData(t); err == nil {
			d.data = data[:e.Bytes]
			d.direct = a.allocated(d.memory)
		}
		part := step
		if part <= 0 || part > e.Bytes {
			part = e.Bytes
		}
		d.got = newReceived(e.Bytes, part)
		a.Tensors[i] = d
	}
	return a, nil
}

// allocated reports whether all pages of a memory are allocated, as in memory that is reused. The last answer is kept,
// because all tensors are usually in one slab.
func (a *Arrival) allocated(memory driver.Memory) bool {
	if memory != a.last {
		at, err := memory.Describe()
		a.last, a.lastAllocated = memory, err == nil && at.Size > 0 && at.Allocated >= at.Size
	}
	return a.lastAllocated
}

// StateDict returns the tensors, borrowed from the Arrival.
func (a *Arrival) StateDict() *module.StateDict { return a.sd }

// Take returns the tensors, owned by the caller. Close has no effect afterwards.
func (a *Arrival) Take() *module.StateDict {
	sd := a.sd
	a.sd = nil
	return sd
}

// Close frees the memory.
func (a *Arrival) Close() error {
	if a == nil || a.sd == nil {
		return nil
	}
	return a.Take().Close()
}

// Data returns the bytes of the tensor in host memory, or nil if the CPU cannot address them.
func (d *Destination) Data() []byte { return d.data }

// Write stores bytes at an offset and records that they are in place.
func (d *Destination) Write(at int64, p []byte) error {
	// WriteAt can write to pages that are not allocated yet.
	if _, err := d.memory.WriteAt(p, d.begin+at); err != nil {
		return err
	}
	d.Record(at, int64(len(p)))
	return nil
}

// Store stores bytes at an offset without recording them. The caller calls Record when all bytes of the tensor are
// final.
func (d *Destination) Store(at int64, p []byte) error {
	_, err := d.memory.WriteAt(p, d.begin+at)
	return err
}

// Record records that n bytes at an offset are in place.
func (d *Destination) Record(at, n int64) {
	d.done.Add(n)
	d.got.add(at, n)
}

// Receive reads the bytes from at to end from a body and calls seen with each piece that is in place. It returns the
// number of bytes. If all pages of the memory are allocated, the body is read into the memory. Otherwise the bytes pass
// through a small buffer and the memory's write method: reading directly into new memory would fault on each page and
// clear it first, and a page that cannot be allocated would end the process.
func (d *Destination) Receive(body io.Reader, at, end int64, seen func(at int64, p []byte)) (n int64, err error) {
	if d.direct {
		return d.readDirect(body, at, end, seen)
	}
	buffer := buffers.Get().(*[readBytes]byte) //nolint:forcetypeassert // the pool holds nothing else
	defer buffers.Put(buffer)
	for at < end {
		got, readErr := body.Read(buffer[:min(readBytes, end-at)])
		if got > 0 {
			if err := d.Write(at, buffer[:got]); err != nil {
				return n, err
			}
			seen(at, buffer[:got])
			at, n = at+int64(got), n+int64(got)
		}
		if readErr != nil && at < end {
			return n, unexpected(readErr)
		}
	}
	return n, nil
}

// readDirect is Receive without a copy. The pieces are small enough that seen finds them in the processor's cache.
func (d *Destination) readDirect(body io.Reader, at, end int64, seen func(at int64, p []byte)) (n int64, err error) {
	for at < end {
		got, readErr := body.Read(d.data[at:min(at+readBytes, end)])
		if got > 0 {
			d.Record(at, int64(got))
			seen(at, d.data[at:at+int64(got)])
			at, n = at+int64(got), n+int64(got)
		}
		if readErr != nil && at < end {
			return n, unexpected(readErr)
		}
	}
	return n, nil
}

// Available returns the number of contiguous bytes in place at an offset, and a channel that is closed when more
// arrive.
func (d *Destination) Available(at int64) (n int64, more <-chan struct{}) { return d.got.available(at) }

// received records which bytes are in place. Bytes of each part arrive from its beginning.
type received struct {
	size, step int64

	mu      sync.Mutex
	upTo    []int64 // bytes in place of each part
	changed chan struct{}
}

func newReceived(size, step int64) *received {
	return &received{size: size, step: step, upTo: make([]int64, (size+step-1)/step)}
}

// add records n bytes at an offset.
func (r *received) add(at, n int64) {
	if n <= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for n > 0 {
		i := at / r.step
		here := min(n, (i+1)*r.step-at)
		r.upTo[i] = max(r.upTo[i], at+here-i*r.step)
		at, n = at+here, n-here
	}
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

func (r *received) available(at int64) (n int64, more <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	begin := at
	for at < r.size {
		i := at / r.step
		end := i*r.step + r.upTo[i]
		if at = max(at, end); end < min((i+1)*r.step, r.size) {
			break
		}
	}
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return at - begin, r.changed
}
