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

// repeatedResult is a result that its owner sends several times.
type repeatedResult struct {
	sent     Sent
	storages []*tensor.Storage
	export   *Export
	value    byte
	sending  int // answers that were not delivered yet
	ended    bool
}

// end releases the result if no answer is being sent.
func (r *repeatedResult) end(t *testing.T) {
	if r.sending > 0 {
		return
	}
	r.sent.End(r.storages)
	r.export.Close()
	for _, s := range r.storages {
		require.NoError(t, s.Close())
	}
	r.ended = true
}

// answer is an answer that the client has received and not processed.
type answer struct {
	of      *repeatedResult
	handles []message.Handle
	files   *wire.Files
}

func (e *slabEnds) repeated(value byte, count int) *repeatedResult {
	r := &repeatedResult{value: value}
	for range count {
		s := e.fresh(value)
		r.storages = append(r.storages, s)
	}
	var err error
	r.export, err = ExportStorages(r.storages)
	require.NoError(e.t, err)
	return r
}

// fresh returns memory outside slabs.
func (e *slabEnds) fresh(value byte) *tensor.Storage {
	mem, err := e.dev.Alloc(5000)
	require.NoError(e.t, err)
	data := mem.(driver.Mapped).Data()
	for i := range data {
		data[i] = value
	}
	return tensor.NewStorage(mem)
}

// send sends a result. It returns nil if the answer was lost. numbered reports whether every handle has only a number.
func (e *slabEnds) send(r *repeatedResult, lost bool) (a *answer, numbered bool) {
	handles, files, loans := e.slabs.ShareAgain(&r.sent, r.storages, r.export.Handles, r.export.Files)
	if lost {
		loans.MarkUnsent()
		return nil, false
	}
	require.NoError(e.t, message.ValidateHandles(handles, len(files)))
	require.NoError(e.t, e.near.Send(wire.KindResponse, 1, []byte{0xa0}, files...))
	frame, err := e.far.Receive()
	require.NoError(e.t, err)
	return &answer{of: r, handles: handles, files: frame.Files}, len(files) == 0
}

// take processes an answer in the client.
func (e *slabEnds) take(a *answer, late bool) []*tensor.Storage {
	defer a.files.Close()
	if late {
		e.mapped.Refuse(a.handles)
		return nil
	}
	devices, err := NewDevices([]driver.Device{e.dev})
	require.NoError(e.t, err)
	got, err := Importer{Devices: devices, Slabs: &e.mapped}.Storages(a.handles, a.files)
	require.NoError(e.t, err)
	return got
}

// Results are sent repeatedly, lost, processed late and in any order, held and ended at random, and slabs are used beside
// them. Each answer has the memory of its result, and nothing remains.
func TestRepeatedResultsInAnyOrder(t *testing.T) {
	drivertest.Leaks(t)
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			drivertest.Leaks(t)
			r := rand.New(rand.NewPCG(seed, 2))
			e := newSlabEnds(t, []int64{1 << 20, 60_000}[seed%2])
			e.slabs.AllowRepeats()
			var results []*repeatedResult
			var answers []*answer
			var held []*tensor.Storage
			numbered := 0
			process := func(late bool) {
				if len(answers) == 0 {
					return
				}
				at := r.IntN(len(answers))
				a := answers[at]
				answers = append(answers[:at], answers[at+1:]...)
				for _, s := range e.take(a, late) {
					e.inClient[s] = a.of.value
					held = append(held, s)
				}
			}
			for i := range 1500 {
				switch r.IntN(12) {
				case 0:
					if len(results) < 8 {
						results = append(results, e.repeated(byte(i), 1+r.IntN(3)))
					}
				case 1, 2, 3, 4:
					if len(results) > 0 {
						if a, only := e.send(results[r.IntN(len(results))], r.IntN(10) == 0); a != nil {
							answers = append(answers, a)
							if only {
								numbered++
							}
						}
					}
				case 5, 6, 7:
					process(r.IntN(10) == 0)
				case 8:
					if len(held) > 0 {
						at := r.IntN(len(held))
						s := held[at]
						held = append(held[:at], held[at+1:]...)
						require.NoError(t, s.Close())
						delete(e.inClient, s)
					}
				case 9:
					e.back()
				case 10:
					if len(results) > 0 && r.IntN(4) == 0 {
						at := r.IntN(len(results))
						results[at].end(t)
						results = append(results[:at], results[at+1:]...)
					}
				case 11:
					if r.IntN(20) == 0 {
						e.slabs.Trim()
					}
					s := e.make(1+r.Int64N(20_000), byte(i))
					if got := e.cross(s, false, r.IntN(4) == 0); got != nil {
						require.NoError(t, got.Close())
					}
					require.NoError(t, s.Close())
				}
				e.check()
				n, bytes := e.slabs.Use()
				require.LessOrEqual(t, n, MaxMappings)
				require.LessOrEqual(t, bytes, int64(1<<20))
			}
			require.Positive(t, numbered, "answers without descriptors")
			closeFirst := r.IntN(2) == 0
			if closeFirst {
				e.mapped.BeginCall() // answers that are not processed need their mappings
				e.slabs.Close()
				e.mapped.Close()
			}
			for len(answers) > 0 {
				process(false)
			}
			e.check()
			if closeFirst {
				e.mapped.EndCall()
			}
			for _, s := range held {
				require.NoError(t, s.Close())
			}
			for _, one := range results {
				one.end(t)
				require.Empty(t, one.sent.slabs)
			}
			if !closeFirst {
				e.back()
				e.slabs.Trim()
				e.back()
			}
			for _, use := range []func() (int, int64){e.slabs.Use, e.mapped.Use} {
				n, bytes := use()
				require.Zero(t, n)
				require.Zero(t, bytes)
			}
			e.slabs.Close()
			e.mapped.Close()
			n, bytes := e.total.Used()
			require.Zero(t, n)
			require.Zero(t, bytes)
		})
	}
}

// An answer keeps its number until the client has processed it, also after the end of the result and of other mappings.
func TestNumberOutlivesItsResult(t *testing.T) {
	drivertest.Leaks(t)
	e := newSlabEnds(t, 1<<20)
	e.slabs.AllowRepeats()
	r := e.repeated(3, 1)
	for i := range 2 {
		a, only := e.send(r, false)
		require.False(t, only, i)
		require.NoError(t, e.take(a, false)[0].Close())
	}
	again, only := e.send(r, false)
	require.False(t, only, "the client has not confirmed the number")
	require.NoError(t, e.take(again, false)[0].Close())
	e.back()
	late, only := e.send(r, false)
	require.True(t, only)
	e.slabs.Trim()
	e.back()
	r.end(t)
	e.back()
	n, _ := e.mapped.Use()
	require.Equal(t, 1, n, "an answer with the number is not processed")
	got := e.take(late, false)
	e.back()
	require.Equal(t, byte(3), got[0].Memory().(driver.Mapped).Data()[0])
	n, _ = e.slabs.Use()
	require.Zero(t, n)
	n, _ = e.mapped.Use()
	require.Zero(t, n, "the owner has ended the number")
	require.Equal(t, byte(3), got[0].Memory().(driver.Mapped).Data()[4999])
	require.NoError(t, got[0].Close())
}

// Numbers are returned once for each answer. A client that returns more is refused, and one that returns none gets
// memory with descriptors when the limit is reached.
func TestNumbersOfHostileClient(t *testing.T) {
	drivertest.Leaks(t)
	e := newSlabEnds(t, 1<<20)
	e.slabs.AllowRepeats()
	var results []*repeatedResult
	for i := range MaxMappings + 5 {
		r := e.repeated(byte(i), 1)
		results = append(results, r)
		for range 3 {
			a, only := e.send(r, false)
			require.False(t, only)
			a.files.Close()
		}
	}
	n, _ := e.slabs.Use()
	require.Equal(t, MaxMappings, n)
	require.Error(t, e.slabs.Return([]uint64{1, 1}, nil))
	require.NoError(t, e.slabs.Return(nil, []uint64{2}))
	require.Error(t, e.slabs.Return([]uint64{2}, nil))
	require.Empty(t, e.slabs.TakeGone(), "the client has not mapped it")
	_, only := e.send(results[0], false)
	require.True(t, only, "it was confirmed")
	require.NoError(t, e.slabs.Return(nil, []uint64{1}))
	a, only := e.send(results[0], false)
	require.False(t, only, "it was dropped")
	a.files.Close()
	for _, r := range results {
		r.end(t)
	}
	n, _ = e.slabs.Use()
	require.Equal(t, MaxMappings-2, n, "lent")
	e.slabs.Close()
	n, _ = e.slabs.Use()
	require.Zero(t, n)
}

// An owner that sends numbers which the client does not have, or with another size, is refused.
func TestNumbersOfHostileOwner(t *testing.T) {
	drivertest.Leaks(t)
	dev := hostDevice(t)
	devices, err := NewDevices([]driver.Device{dev})
	require.NoError(t, err)
	for _, repeats := range []bool{true, false} {
		e := newSlabEnds(t, 1<<20)
		var mapped SlabMappings
		mapped.Allow(func() {}, repeats)
		r := e.repeated(1, 1)
		im := Importer{Devices: devices, Slabs: &mapped}
		handle := r.export.Handles[0]
		handle.Storage = 7
		receive := func(h message.Handle, files ...*os.File) ([]*tensor.Storage, error) {
			require.NoError(t, e.near.Send(wire.KindResponse, 1, []byte{0xa0}, files...))
			frame, err := e.far.Receive()
			require.NoError(t, err)
			defer frame.Files.Close()
			return im.Storages([]message.Handle{h}, frame.Files)
		}
		got, err := receive(handle, r.export.Files...)
		require.NoError(t, err)
		require.NoError(t, got[0].Close())
		only := handle
		only.File = -1
		got, err = receive(only)
		if !repeats {
			require.ErrorIs(t, err, wire.ErrProtocol)
			require.True(t, mapped.TakeReturns().Empty())
		} else {
			require.NoError(t, err)
			require.NoError(t, got[0].Close())
			_, err = receive(handle, r.export.Files...)
			require.ErrorIs(t, err, wire.ErrProtocol, "a second descriptor")
			only.Bytes++
			_, err = receive(only)
			require.ErrorIs(t, err, wire.ErrProtocol, "another size")
			only.Storage = 8
			_, err = receive(only)
			require.ErrorIs(t, err, wire.ErrProtocol, "an unknown number")
			_, err = receive(message.Handle{Kind: handle.Kind, Device: handle.Device, Bytes: 10, File: -1, Slab: 7})
			require.ErrorIs(t, err, wire.ErrProtocol, "it is no slab")
			require.Equal(t, []uint64{7, 7}, mapped.TakeReturns().Returned)
			mapped.MarkGone([]uint64{7, 7, 9})
			only.Storage, only.Bytes = 7, handle.Bytes
			_, err = receive(only)
			require.ErrorIs(t, err, wire.ErrProtocol, "it is gone")
		}
		mapped.Close()
		r.end(t)
	}
}
