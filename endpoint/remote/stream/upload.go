package stream

import (
	"fmt"
	"hash/crc32"
	"sync"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/elements"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// upload is a set that is on its way in: its memory, and how much of each tensor is there. One call at a time writes
// it; a later call with the same id takes over from an earlier one, whose connection may be dead without anybody having
// noticed.
//
//	open ──> complete ──> handed over (forgotten but for its outcome)
//	  └────> abandoned (its time is over, or others need the room)
type upload struct {
	description *description
	storage     *tensor.Storage
	budget      *budget

	mu       sync.Mutex
	writer   int // number of the call that may write; 0 for an upload that is over
	writers  int
	progress []progress
	bytes    int64 // of all tensors together
}

// progress is how much of a tensor is there.
type progress struct {
	bytes  int64
	crc32c uint32 // of those bytes
}

// newUpload allocates the memory for a set.
func newUpload(d *description, dev driver.Device, b *budget) (*upload, error) {
	if err := b.take(d.bytes); err != nil {
		return nil, err
	}
	memory, err := dev.Alloc(d.bytes)
	if err != nil {
		b.give(d.bytes)
		return nil, err
	}
	return &upload{description: d, storage: tensor.NewStorage(memory), budget: b, progress: make([]progress, len(d.tensors))}, nil
}

// begin makes the caller the only one who writes, and says where to go on.
func (u *upload) begin() (writer int, resume []*streampb.Position, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.writers > 0 && u.writer == 0 {
		return 0, nil, fmt.Errorf("%w: the transfer is over", ErrInvalid)
	}
	u.writers++
	u.writer = u.writers
	return u.writer, u.positionsLocked(), nil
}

// positionsLocked says how far each tensor has got.
func (u *upload) positionsLocked() (positions []*streampb.Position) {
	for i, p := range u.progress {
		if p.bytes > 0 {
			positions = append(positions, &streampb.Position{Tensor: uint32(i), Offset: uint64(p.bytes), Crc32C: p.crc32c})
		}
	}
	return positions
}

// done is how many bytes are there.
func (u *upload) done() (bytes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.bytes
}

// write puts a chunk of a tensor where it belongs and checks it there. It takes data. A chunk that begins at 0 begins
// the tensor again.
func (u *upload) write(writer int, index uint32, chunk *streampb.Chunk, data mem.BufferSlice) error {
	defer data.Free()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.writer != writer {
		return fmt.Errorf("%w: another call goes on with this transfer", ErrInvalid)
	}
	if int64(index) >= int64(len(u.progress)) {
		return fmt.Errorf("%w: tensor %d of %d", ErrInvalid, index, len(u.progress))
	}
	one, p := u.description.tensors[index], &u.progress[index]
	if chunk.GetOffset() == 0 {
		u.bytes -= p.bytes
		*p = progress{}
	}
	n := int64(data.Len())
	if chunk.GetOffset() != uint64(p.bytes) || n > one.bytes-p.bytes {
		return fmt.Errorf("%w: tensor %q: %d bytes at %d, where %d of %d are there", ErrInvalid, one.name, n, chunk.GetOffset(), p.bytes, one.bytes)
	}
	crc := p.crc32c
	seen := func(piece []byte) { crc = crc32.Update(crc, castagnoli, piece) }
	if err := elements.Store(u.storage.Memory(), one.spec.ByteOffset+p.bytes, data, seen); err != nil {
		return err
	}
	if crc != chunk.GetCrc32C() {
		return fmt.Errorf("%w: tensor %q at %d: %08x instead of %08x", ErrChecksum, one.name, p.bytes, crc, chunk.GetCrc32C())
	}
	*p = progress{p.bytes + n, crc}
	u.bytes += n
	return nil
}

// missing says what is not there yet; nil where all is.
func (u *upload) missing() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, p := range u.progress {
		if one := u.description.tensors[i]; p.bytes < one.bytes {
			return fmt.Errorf("%w: tensor %q has %d of %d bytes", ErrIncomplete, one.name, p.bytes, one.bytes)
		}
	}
	return nil
}

// finish ends a complete upload and returns its tensors, owned. Only its writer can.
func (u *upload) finish(writer int) (*module.StateDict, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.writer != writer {
		return nil, fmt.Errorf("%w: another call goes on with this transfer", ErrInvalid)
	}
	sd, err := u.description.stateDict(u.storage)
	u.closeLocked()
	return sd, err
}

// abandon frees the memory, whoever writes.
func (u *upload) abandon() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.writers == 0 || u.writer != 0 {
		u.closeLocked()
	}
}

func (u *upload) closeLocked() {
	u.writers++
	u.writer = 0
	u.storage.Close()
	u.budget.give(u.description.bytes)
}

// uploads are the sets on their way in, and the outcomes of the last ones, by their id.
type uploads struct {
	limits Limits
	budget *budget
	device driver.Device

	mu       sync.Mutex
	open     map[string]*waiting
	outcomes map[string]*streampb.Done
	order    []string // ids of outcomes, the oldest first
	closed   bool
}

// waiting is an upload in the books.
type waiting struct {
	*upload
	calls int         // how many are at it
	since time.Time   // when the last one left it
	timer *time.Timer // ends it
}

// keptOutcomes is how many outcomes are remembered for clients that ask again.
const keptOutcomes = 1024

func newUploads(limits Limits, b *budget, dev driver.Device) *uploads {
	return &uploads{limits: limits, budget: b, device: dev, open: make(map[string]*waiting), outcomes: make(map[string]*streampb.Done)}
}

// begin finds the upload that d goes on with, or makes one. Where the set was handed over before, its outcome is
// returned instead.
func (us *uploads) begin(d *description) (*waiting, *streampb.Done, error) {
	us.mu.Lock()
	defer us.mu.Unlock()
	if us.closed {
		return nil, nil, fmt.Errorf("%w: the server is closed", ErrNotServed)
	}
	if done, ok := us.outcomes[d.id]; ok && d.id != "" {
		return nil, done, nil
	}
	if w, ok := us.open[d.id]; ok && d.id != "" {
		if !w.description.equal(d) {
			return nil, nil, fmt.Errorf("%w: transfer %q is one of other tensors", ErrInvalid, d.id)
		}
		w.calls++
		w.stopTimer()
		return w, nil, nil
	}
	us.makeRoomLocked()
	u, err := newUpload(d, us.device, us.budget)
	if err != nil {
		return nil, nil, err
	}
	w := &waiting{upload: u, calls: 1}
	if d.id != "" {
		us.open[d.id] = w
	}
	return w, nil, nil
}

// makeRoomLocked abandons the upload that has waited longest, where there are too many.
func (us *uploads) makeRoomLocked() {
	if len(us.open) < us.limits.Uploads {
		return
	}
	var oldest *waiting
	for _, w := range us.open {
		if w.calls == 0 && (oldest == nil || w.since.Before(oldest.since)) {
			oldest = w
		}
	}
	if oldest != nil {
		us.forgetLocked(oldest)
	}
}

// leave says that a call has ended before the upload was complete. It waits for another call for a while.
func (us *uploads) leave(w *waiting) {
	us.mu.Lock()
	defer us.mu.Unlock()
	if w.calls--; w.calls > 0 {
		return
	}
	if us.open[w.description.id] != w || us.closed {
		w.abandon() // nobody can find it
		return
	}
	w.since = time.Now()
	w.timer = time.AfterFunc(us.limits.ResumeFor, func() {
		us.mu.Lock()
		defer us.mu.Unlock()
		if w.calls == 0 && us.open[w.description.id] == w {
			us.forgetLocked(w)
		}
	})
}

func (us *uploads) forgetLocked(w *waiting) {
	delete(us.open, w.description.id)
	w.stopTimer()
	w.abandon()
}

// finished notes the outcome of an upload that was handed over, or, with nil, that it failed for good.
func (us *uploads) finished(w *waiting, done *streampb.Done) {
	us.mu.Lock()
	defer us.mu.Unlock()
	w.calls--
	id := w.description.id
	if us.open[id] == w {
		delete(us.open, id)
	}
	if done == nil || id == "" {
		return
	}
	us.outcomes[id] = done
	us.order = append(us.order, id)
	if len(us.order) > keptOutcomes {
		delete(us.outcomes, us.order[0])
		us.order = us.order[1:]
	}
}

func (us *uploads) close() {
	us.mu.Lock()
	defer us.mu.Unlock()
	us.closed = true
	for _, w := range us.open {
		us.forgetLocked(w)
	}
}

func (w *waiting) stopTimer() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}
