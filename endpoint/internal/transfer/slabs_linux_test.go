package transfer

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

func TestSlabClass(t *testing.T) {
	t.Parallel()
	for bytes, want := range map[int64]int64{
		1: 4096, 4096: 4096, 4097: 8192, 64 << 10: 64 << 10, 64<<10 + 1: 72 << 10, 8 << 20: 8 << 20, 8<<20 + 1: 9 << 20,
		1 << 62: 1 << 62, 1<<63 - 1: 1<<63 - 1,
	} {
		require.Equal(t, want, slabClass(bytes), bytes)
	}
	for range 1000 {
		n := rand.Int64N(1 << 40)
		class := slabClass(n + 1)
		require.GreaterOrEqual(t, class, n+1)
		require.LessOrEqual(t, class, max((n+1)+(n+1)/8, 4096+n), "at most an eighth more")
		require.Equal(t, class, slabClass(class))
	}
}

// slabEnds is an owner's slabs and its client's mappings of them, with a simulated connection.
type slabEnds struct {
	t         *testing.T
	dev       driver.Device
	slabs     Slabs
	total     MappingTotal
	mapped    SlabMappings
	near, far *wire.Conn
	inClient  map[*tensor.Storage]byte
	inOwner   map[*tensor.Storage]byte
	elsewhere map[driver.Memory]byte // memory that was exported without a slab
}

func newSlabEnds(t *testing.T, bytes int64) *slabEnds {
	e := &slabEnds{t: t, dev: hostDevice(t), inClient: map[*tensor.Storage]byte{}, inOwner: map[*tensor.Storage]byte{}, elsewhere: map[driver.Memory]byte{}}
	e.total.Most, e.total.MostBytes = 100, 1<<30
	e.slabs.Allow(bytes, &e.total, func() {})
	e.mapped.Allow(func() {}, true)
	var err error
	e.near, e.far, err = wire.Pipe(wire.Limits{})
	require.NoError(t, err)
	t.Cleanup(func() { e.near.Close(); e.far.Close() })
	return e
}

// make allocates and fills memory of a result.
func (e *slabEnds) make(bytes int64, value byte) *tensor.Storage {
	mem, err := e.slabs.Device(e.dev).(driver.UninitializedAllocator).AllocUninitialized(bytes)
	require.NoError(e.t, err)
	data := mem.(driver.Mapped).Data()
	for i := range data {
		data[i] = value
	}
	return tensor.NewStorage(mem)
}

// cross sends a result to the client. It returns nil if the answer was lost.
func (e *slabEnds) cross(s *tensor.Storage, lost, late bool) *tensor.Storage {
	out, err := e.slabs.Share([]*tensor.Storage{s})
	require.NoError(e.t, err)
	handles, files := []message.Handle(nil), []*os.File(nil)
	if out == nil { // the limit was reached
		plain, err := ExportStorages([]*tensor.Storage{s})
		require.NoError(e.t, err)
		defer plain.Close()
		handles, files = plain.Handles, plain.Files
	} else {
		defer out.Close()
		handles, files = out.Handles, out.Files
	}
	if lost {
		if out != nil {
			out.MarkUnsent()
		}
		return nil
	}
	require.NoError(e.t, e.near.Send(wire.KindResponse, 1, []byte{0xa0}, files...))
	frame, err := e.far.Receive()
	require.NoError(e.t, err)
	defer frame.Files.Close()
	if late {
		e.mapped.Refuse(handles)
		return nil
	}
	devices, err := NewDevices([]driver.Device{e.dev})
	require.NoError(e.t, err)
	got, err := Importer{Devices: devices, Slabs: &e.mapped}.Storages(handles, frame.Files)
	require.NoError(e.t, err)
	return got[0]
}

// back sends returned slabs to the owner, and removed ones to the client.
func (e *slabEnds) back() {
	back := e.mapped.TakeReturns()
	require.NoError(e.t, e.slabs.Return(back.Returned, back.Dropped))
	e.mapped.MarkGone(e.slabs.TakeGone())
}

// export maps the memory of a storage a second time.
func (e *slabEnds) export(s *tensor.Storage, value byte) {
	h, err := s.Memory().Export()
	require.NoError(e.t, err)
	defer h.Close()
	mem, err := e.dev.Import(h, driver.ImportOptions{})
	require.NoError(e.t, err)
	e.elsewhere[mem] = value
	if len(e.elsewhere) > 100 {
		e.closeElsewhere()
	}
}

func (e *slabEnds) closeElsewhere() {
	for mem := range e.elsewhere {
		require.NoError(e.t, mem.Close())
	}
	clear(e.elsewhere)
}

// check verifies the content of all memory in use.
func (e *slabEnds) check() {
	for where, all := range map[string]map[*tensor.Storage]byte{"client": e.inClient, "owner": e.inOwner} {
		for s, value := range all {
			data := s.Memory().(driver.Mapped).Data()
			require.True(e.t, data[0] == value && data[len(data)-1] == value, "%s has memory of another", where)
		}
	}
	for mem, value := range e.elsewhere {
		data := mem.(driver.Mapped).Data()
		require.True(e.t, data[0] == value && data[len(data)-1] == value, "memory that was exported is another's")
	}
}

// Memory in use keeps its bytes for any order of operations, and nothing remains after all results are closed.
// Results are created, kept, lost, delayed, exported, held and returned at random.
func TestSlabsAreNotShared(t *testing.T) {
	drivertest.Leaks(t)
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			drivertest.Leaks(t)
			r := rand.New(rand.NewPCG(seed, 1))
			e := newSlabEnds(t, []int64{1 << 20, 60_000}[seed%2])
			one := func(all map[*tensor.Storage]byte) *tensor.Storage {
				for s := range all { // map order is random
					return s
				}
				return nil
			}
			for i := range 1000 {
				value := byte(i)
				switch r.IntN(12) {
				case 0, 1, 2, 3, 4:
					s := e.make(1+r.Int64N(20_000), value)
					if r.IntN(20) == 0 {
						e.export(s, value)
					}
					if got := e.cross(s, r.IntN(10) == 0, r.IntN(10) == 0); got != nil {
						e.inClient[got] = value
					}
					if r.IntN(10) == 0 {
						e.inOwner[s] = value
						break
					}
					require.NoError(t, s.Close())
				case 5, 6, 7, 8:
					if s := one(e.inClient); s != nil {
						if r.IntN(20) == 0 { // export it
							e.export(s, e.inClient[s])
						}
						delete(e.inClient, s)
						require.NoError(t, s.Close())
					}
				case 9:
					if s := one(e.inOwner); s != nil {
						delete(e.inOwner, s)
						require.NoError(t, s.Close())
					}
				case 10:
					e.back()
				case 11:
					if r.IntN(10) == 0 {
						e.slabs.Trim()
					}
					if s := one(e.inOwner); s != nil { // send it again
						if got := e.cross(s, false, false); got != nil {
							e.inClient[got] = e.inOwner[s]
						}
					}
				}
				e.check()
				n, bytes := e.slabs.Use()
				require.LessOrEqual(t, n, MaxMappings)
				require.LessOrEqual(t, bytes, int64(1<<20))
			}
			require.Positive(t, e.total.Reused.Load())
			closeFirst := r.IntN(2) == 0
			if closeFirst {
				e.slabs.Close()
				e.mapped.Close()
			}
			e.check()
			e.closeElsewhere()
			for s := range e.inClient {
				require.NoError(t, s.Close())
			}
			for s := range e.inOwner {
				require.NoError(t, s.Close())
			}
			if !closeFirst {
				e.back()
				e.slabs.Trim()
				n, _ := e.slabs.Use()
				require.Zero(t, n, "all has come back")
				e.back()
				n, _ = e.mapped.Use()
				require.Zero(t, n)
			}
			e.slabs.Close()
			e.mapped.Close()
			n, bytes := e.total.Used()
			require.Zero(t, n)
			require.Zero(t, bytes)
		})
	}
}

// A mapping stays until the answer in it is processed, even if the connection has ended.
func TestAnswerAfterConnectionEnd(t *testing.T) {
	drivertest.Leaks(t)
	e := newSlabEnds(t, 1<<20)
	first := e.make(100, 1)
	require.NoError(t, e.cross(first, false, false).Close())
	require.NoError(t, first.Close())
	e.back()
	e.mapped.BeginCall() // a call whose answer is in the mapped slab
	e.mapped.Close()
	second := e.make(100, 2)
	got := e.cross(second, false, false)
	require.EqualValues(t, 2, got.Memory().(driver.Mapped).Data()[0])
	e.mapped.EndCall()
	require.NoError(t, got.Close())
	require.NoError(t, second.Close())
	n, _ := e.mapped.Use()
	require.Zero(t, n)
	e.slabs.Close()
}
