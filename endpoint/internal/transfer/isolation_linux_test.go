package transfer

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

const (
	secretByte = 0xa7 // fills memory that no peer receives
	publicByte = 0x11 // fills memory that the peer receives
)

// isolation is an owner that uses memory for several purposes, and a peer that maps the whole file of each descriptor.
type isolation struct {
	*slabEnds
	pool  *host.Pool
	files map[uint64][]byte // mappings of the peer, by slab number
}

func newIsolation(t *testing.T) *isolation {
	p := &isolation{slabEnds: newSlabEnds(t, 16<<20), files: map[uint64][]byte{}}
	p.pool = host.NewPool(p.dev.(*host.Device), host.PoolOptions{})
	t.Cleanup(func() {
		for _, data := range p.files {
			require.NoError(t, unix.Munmap(data))
		}
		p.slabs.Close()
		p.mapped.Close()
		require.NoError(t, p.pool.Close())
	})
	return p
}

// mapFile maps the whole file, which may be larger than its handle describes.
func (p *isolation) mapFile(f *os.File) []byte {
	info, err := f.Stat()
	require.NoError(p.t, err)
	data, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(p.t, err)
	return data
}

// result returns a storage for a result, filled with value.
func (p *isolation) result(n int64, value byte, zeroed bool) *tensor.Storage {
	dev := p.slabs.Device(p.dev).(driver.UninitializedAllocator)
	alloc := dev.AllocUninitialized
	if zeroed {
		alloc = dev.Alloc
	}
	mem, err := alloc(n)
	require.NoError(p.t, err)
	return p.filled(mem, value)
}

func (p *isolation) filled(mem driver.Memory, value byte) *tensor.Storage {
	data := make([]byte, mem.Bytes())
	for i := range data {
		data[i] = value
	}
	_, err := mem.WriteAt(data, 0)
	require.NoError(p.t, err)
	return tensor.NewStorage(mem)
}

// share exports a result in its slab.
func (p *isolation) share(s *tensor.Storage) *SlabExport {
	out, err := p.slabs.Share([]*tensor.Storage{s})
	require.NoError(p.t, err)
	require.NotNil(p.t, out)
	return out
}

// send sends a result and returns what the peer reads in its file. The peer then returns the slab.
func (p *isolation) send(s *tensor.Storage) []byte {
	out := p.share(s)
	number := out.Handles[0].Slab
	if len(out.Files) > 0 {
		p.files[number] = p.mapFile(out.Files[0])
	}
	out.Close()
	require.NoError(p.t, s.Close())
	found := append([]byte(nil), p.files[number]...)
	require.NoError(p.t, p.slabs.Return([]uint64{number}, nil))
	return found
}

// export returns what a peer reads in the file of ordinary memory, and closes the storages.
func (p *isolation) export(storages ...*tensor.Storage) []byte {
	out, err := ExportStorages(storages)
	require.NoError(p.t, err)
	defer out.Close()
	var found []byte
	for i, f := range out.Files {
		data := p.mapFile(f)
		found = append(found, data...)
		require.NoError(p.t, unix.Munmap(data))
		require.NoError(p.t, storages[i].Close())
	}
	return found
}

// Descriptors for a reader cannot write, also of memory that arrived by one that can.
func TestExportForReadingHasReadOnlyDescriptors(t *testing.T) {
	drivertest.Leaks(t)
	dev := hostDevice(t)
	mem, err := dev.Alloc(5000)
	require.NoError(t, err)
	h, err := mem.Export()
	require.NoError(t, err)
	imported, err := dev.Import(h, driver.ImportOptions{})
	require.NoError(t, err)
	require.NoError(t, h.Close())
	storages := []*tensor.Storage{tensor.NewStorage(mem), tensor.NewStorage(imported)}
	defer CloseStorages(storages)
	out, err := ExportStorages(storages)
	require.NoError(t, err)
	defer out.Close()
	require.NoError(t, out.RestrictToReading())
	require.Len(t, out.Files, 2)
	for _, f := range out.Files {
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
		require.NoError(t, err)
		require.Equal(t, unix.O_RDONLY, flags&unix.O_ACCMODE)
		_, err = unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.ErrorIs(t, err, unix.EACCES)
	}
}

// leaves write a secret into memory and free the memory.
var leaves = map[string]func(p *isolation, n int64){
	"a result that was not returned": func(p *isolation, n int64) {
		require.NoError(p.t, p.result(n, secretByte, false).Close())
	},
	"a zeroed result that was not returned": func(p *isolation, n int64) {
		require.NoError(p.t, p.result(n, secretByte, true).Close())
	},
	"a result whose answer was lost": func(p *isolation, n int64) {
		s := p.result(n, secretByte, false)
		out := p.share(s)
		out.MarkUnsent()
		out.Close()
		require.NoError(p.t, s.Close())
	},
	"a result that was closed before its answer was lost": func(p *isolation, n int64) {
		s := p.result(n, secretByte, false)
		out := p.share(s)
		require.NoError(p.t, s.Close())
		out.MarkUnsent()
		out.Close()
	},
	"a result that the client of the session received": func(p *isolation, n int64) {
		p.send(p.result(n, secretByte, false))
	},
	"two results, of which the smaller one was sent": func(p *isolation, n int64) {
		require.NoError(p.t, p.result(n, secretByte, false).Close())
		p.send(p.result(n/2+1, publicByte, false))
	},
	"a publication": func(p *isolation, n int64) {
		mem, err := p.pool.AllocUninitialized(n)
		require.NoError(p.t, err)
		require.NoError(p.t, p.filled(mem, secretByte).Close())
	},
	"memory of the device": func(p *isolation, n int64) {
		mem, err := p.dev.Alloc(n)
		require.NoError(p.t, err)
		require.NoError(p.t, p.filled(mem, secretByte).Close())
	},
}

// looks return everything that a peer can read of memory that it receives.
var looks = map[string]func(p *isolation, n int64) []byte{
	"result":        func(p *isolation, n int64) []byte { return p.send(p.result(n, publicByte, false)) },
	"zeroed result": func(p *isolation, n int64) []byte { return p.send(p.result(n, publicByte, true)) },
	"ordinary result": func(p *isolation, n int64) []byte {
		mem, err := p.dev.Alloc(n)
		require.NoError(p.t, err)
		return p.export(p.filled(mem, publicByte))
	},
	"result that is passed on": func(p *isolation, n int64) []byte {
		return p.export(p.result(n, publicByte, false))
	},
	"publication": func(p *isolation, n int64) []byte {
		mem, err := p.pool.AllocUninitialized(n)
		require.NoError(p.t, err)
		return p.export(p.filled(mem, publicByte))
	},
	"publication of two tensors": func(p *isolation, n int64) []byte {
		each := tensor.Shape{n/2 - 3}
		sd, err := module.Empty(p.pool, []module.NamedSpec{
			{Name: "a", DType: tensor.Uint8, Shape: each}, {Name: "b", DType: tensor.Uint8, Shape: each},
		})
		require.NoError(p.t, err)
		for _, x := range sd.All() {
			data := make([]byte, each[0])
			for i := range data {
				data[i] = publicByte
			}
			_, err := x.Storage().Memory().WriteAt(data, x.Spec().ByteOffset)
			require.NoError(p.t, err)
		}
		storages := sd.Storages()
		for _, s := range storages {
			s.Retain()
		}
		require.NoError(p.t, sd.Close())
		return p.export(storages...)
	},
}

// A peer that maps whole files reads only results, publications and zeros, never data that the memory held for another
// purpose.
func TestPeerReadsNoOtherData(t *testing.T) {
	drivertest.Leaks(t)
	for before, leave := range leaves {
		for after, look := range looks {
			t.Run(before+" then "+after, func(t *testing.T) {
				p := newIsolation(t)
				for _, n := range []int64{1000, 4096, 70_000} {
					for _, less := range []int64{0, 100, n / 3} {
						leave(p, n)
						found := look(p, n-less)
						require.NotEmpty(t, found)
						for i, b := range found {
							if b != 0 && b != publicByte {
								require.Fail(t, "a foreign byte", fmt.Sprintf("%#x at %d of %d, for %d bytes after %d", b, i, len(found), n-less, n))
							}
						}
					}
				}
			})
		}
	}
}
