package host

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// blocks returns the allocated bytes of the memory's file.
func blocks(t *testing.T, m driver.Memory) int64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(m.(*memory).backing.fd, &st))
	return st.Blocks * 512
}

func alloc(t *testing.T, d *Device, bytes int64) *memory {
	t.Helper()
	m, err := d.Alloc(bytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m.(*memory)
}

// TestPages checks when the pages of an allocation are allocated.
func TestPages(t *testing.T) {
	drivertest.Leaks(t)
	const size = 5<<20 + 1
	for _, policy := range []hugePolicy{hugeNever, hugeAdvise, hugeAlways} {
		d := open(t).(*Device)
		d.huge = policy
		require.GreaterOrEqual(t, blocks(t, alloc(t, d, size)), int64(size), "policy %d", policy)
	}
	lazy, err := Open(Lazy())
	require.NoError(t, err)
	m := alloc(t, lazy, size)
	require.Zero(t, blocks(t, m))
	_, err = m.WriteAt([]byte{1}, size-1)
	require.NoError(t, err)
	require.NotZero(t, blocks(t, m))
}

// The size of a memory cannot be changed through an exported descriptor.
func TestSizeIsSealed(t *testing.T) {
	drivertest.Leaks(t)
	m := alloc(t, open(t).(*Device), 10000)
	h, err := m.Export()
	require.NoError(t, err)
	defer h.Close()
	require.ErrorIs(t, h.File.Truncate(0), unix.EPERM)
	require.ErrorIs(t, h.File.Truncate(1<<20), unix.EPERM)
	require.NoError(t, m.Freeze())
	require.ErrorIs(t, unix.Fallocate(int(h.File.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096), unix.EPERM)
	_, err = unix.Mmap(int(h.File.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.ErrorIs(t, err, unix.EPERM)
}

// foreignMemfd returns a memfd that this package did not create.
func foreignMemfd(t *testing.T, size int64, seals int) *os.File {
	t.Helper()
	fd, err := memfdCreate()
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "foreign")
	t.Cleanup(func() { f.Close() })
	require.NoError(t, f.Truncate(size))
	_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	require.NoError(t, err)
	return f
}

func TestImportForeignMemfd(t *testing.T) {
	drivertest.Leaks(t)
	d := open(t).(*Device)
	for _, test := range []struct {
		name         string
		size, offset int64
		bytes        int64
		seals        int
		want         error
		wantWritable error
	}{
		{"unsealed", 8192, 0, 8192, 0, driver.ErrHandle, driver.ErrHandle},
		{"may shrink", 8192, 0, 8192, unix.F_SEAL_GROW, driver.ErrHandle, driver.ErrHandle},
		{"may grow", 8192, 0, 8192, unix.F_SEAL_SHRINK, driver.ErrHandle, driver.ErrHandle},
		{"sealed against more seals only", 8192, 0, 8192, unix.F_SEAL_SEAL, driver.ErrHandle, driver.ErrHandle},
		{"too small", 8192, 0, 8193, sizeSeals, driver.ErrHandle, driver.ErrHandle},
		{"too small behind the offset", 8192, 1, 8192, sizeSeals, driver.ErrHandle, driver.ErrHandle},
		{"offset behind the end", 8192, 8193, 0, sizeSeals, driver.ErrHandle, driver.ErrHandle},
		{"sealed", 8192, 0, 8192, sizeSeals, nil, nil},
		{"odd size", 5000, 4097, 903, sizeSeals, nil, nil},
		{"empty", 0, 0, 0, sizeSeals, nil, nil},
		{"nothing at the end", 8192, 8192, 0, sizeSeals, nil, nil},
		{"sealed against all writes", 8192, 10, 100, sizeSeals | unix.F_SEAL_WRITE, nil, driver.ErrReadOnly},
		{"sealed against future writes", 8192, 10, 100, sizeSeals | unix.F_SEAL_FUTURE_WRITE, nil, driver.ErrReadOnly},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := driver.Handle{Kind: driver.Memfd, Device: d.info.UUID, Bytes: test.bytes, Offset: test.offset,
				File: foreignMemfd(t, test.size, test.seals)}
			for writable, want := range map[bool]error{false: test.want, true: test.wantWritable} {
				m, err := d.Import(h, driver.ImportOptions{Writable: writable})
				require.ErrorIs(t, err, want, "writable %v", writable)
				if err == nil {
					require.Len(t, m.(driver.Mapped).Data(), int(test.bytes))
					require.True(t, bytes.Equal(m.(driver.Mapped).Data(), make([]byte, test.bytes)))
					require.NoError(t, m.Close())
				}
			}
		})
	}
}

// Only memory that can no longer be written has an identity. It is the same in every mapping of the same bytes and in
// no other.
func TestIdentityIsOfFinalBytesOnly(t *testing.T) {
	drivertest.Leaks(t)
	d := open(t).(*Device)
	m := alloc(t, d, 100)
	require.Empty(t, identity(t, m), "memory that anybody can write")
	require.NoError(t, m.Freeze())
	require.Empty(t, identity(t, m), "frozen memory can be written through the mappings from before")

	sealed, another := foreignMemfd(t, 8192, sizeSeals|unix.F_SEAL_WRITE), foreignMemfd(t, 8192, sizeSeals|unix.F_SEAL_WRITE)
	names := map[string]string{}
	for _, of := range []struct {
		what         string
		file         *os.File
		offset, size int64
	}{{"a", sealed, 0, 4096}, {"a, part", sealed, 0, 2048}, {"a, middle", sealed, 2048, 2048}, {"a, end", sealed, 4096, 2048}, {"b", another, 0, 4096}} {
		for range 2 {
			h := driver.Handle{Kind: driver.Memfd, Device: d.info.UUID, Bytes: of.size, Offset: of.offset, File: of.file}
			imported, err := d.Import(h, driver.ImportOptions{})
			require.NoError(t, err)
			id := identity(t, imported)
			require.NotEmpty(t, id)
			if was, seen := names[id]; seen {
				require.Equal(t, of.what, was)
			}
			names[id] = of.what
			require.NoError(t, imported.Close())
			_, err = imported.Describe()
			require.ErrorIs(t, err, os.ErrClosed)
		}
	}
	require.Len(t, names, 5)
}

// identity returns the identity of memory; empty if it may change.
func identity(t *testing.T, m driver.Memory) string {
	t.Helper()
	d, err := m.Describe()
	require.NoError(t, err)
	return d.Identity
}

// A memory and its mappings have the same place, writable or not.
func TestPlace(t *testing.T) {
	drivertest.Leaks(t)
	d := open(t).(*Device)
	m, other := alloc(t, d, 100), alloc(t, d, 100)
	place := func(m driver.Memory) driver.Place {
		d, err := m.Describe()
		require.NoError(t, err)
		require.NotEmpty(t, d.Place.Object)
		return d.Place
	}
	require.NotEqual(t, place(m), place(other))
	h, err := m.Export()
	require.NoError(t, err)
	defer h.Close()
	again, err := d.Import(h, driver.ImportOptions{})
	require.NoError(t, err)
	require.Equal(t, place(m), place(again))
	require.NoError(t, again.Close())
	_, err = again.Describe()
	require.ErrorIs(t, err, os.ErrClosed)
}

// Sealed memory refuses writes of its own process too, and keeps its bytes.
func TestSeal(t *testing.T) {
	drivertest.Leaks(t)
	d := open(t).(*Device)
	m := alloc(t, d, 3*4096+100)
	want := bytes.Repeat([]byte{1, 2, 3}, 4096)
	_, err := m.WriteAt(want, 0)
	require.NoError(t, err)
	data := m.Data()
	h, err := m.Export()
	require.NoError(t, err)
	defer h.Close()
	for _, writable := range []bool{true, false} { // which could become writable
		other, err := d.Import(h, driver.ImportOptions{Writable: writable})
		require.NoError(t, err)
		err = m.Seal()
		require.ErrorIs(t, err, unix.EBUSY)
		require.ErrorIs(t, err, driver.ErrBusy)
		require.True(t, m.Writable(), "nothing has changed")
		data[0]++
		require.Equal(t, data[:len(want)], other.(driver.Mapped).Data()[:len(want)])
		data[0]--
		require.NoError(t, other.Close())
	}

	var reading sync.WaitGroup
	stop := make(chan struct{})
	reading.Go(func() {
		for {
			if !bytes.Equal(data[:len(want)], want) {
				t.Error("a reader saw the change")
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	require.NoError(t, m.Seal())
	require.NoError(t, m.Seal(), "twice")
	close(stop)
	reading.Wait()
	require.False(t, m.Writable())
	require.NoError(t, m.Freeze())
	status, err := m.Describe()
	require.NoError(t, err)
	require.True(t, status.Frozen)
	_, err = m.WriteAt([]byte{1}, 0)
	require.ErrorIs(t, err, driver.ErrReadOnly)
	require.Equal(t, want, data[:len(want)], "slices from before are good")
	require.Equal(t, want, m.Data()[:len(want)])
	id := identity(t, m)
	require.NotEmpty(t, id)

	other, err := d.Import(h, driver.ImportOptions{})
	require.NoError(t, err)
	require.Equal(t, want, other.(driver.Mapped).Data()[:len(want)])
	require.Equal(t, id, identity(t, other))
	require.NoError(t, other.Seal(), "it is sealed")
	require.NoError(t, other.Close())
	_, err = d.Import(h, driver.ImportOptions{Writable: true})
	require.ErrorIs(t, err, driver.ErrReadOnly)
	require.NoError(t, m.Close())
	require.ErrorIs(t, m.Seal(), os.ErrClosed)

	frozen := alloc(t, d, 10)
	require.NoError(t, frozen.Freeze())
	require.ErrorIs(t, frozen.Seal(), driver.ErrReadOnly)
	require.True(t, frozen.Writable())
	require.NoError(t, alloc(t, d, 0).Seal())
}

// A descriptor opened for reading can be imported.
func TestImportReadOnlyDescriptor(t *testing.T) {
	drivertest.Leaks(t)
	d := open(t).(*Device)
	m := alloc(t, d, 100)
	h, err := m.Export()
	require.NoError(t, err)
	defer h.Close()
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", h.File.Fd()))
	require.NoError(t, err)
	defer f.Close()
	h2 := h
	h2.File = f
	_, err = d.Import(h2, driver.ImportOptions{Writable: true})
	require.ErrorIs(t, err, driver.ErrReadOnly)
	reader, err := d.Import(h2, driver.ImportOptions{})
	require.NoError(t, err)
	defer reader.Close()
	require.ErrorIs(t, reader.Freeze(), driver.ErrReadOnly)
}

// A load is not affected by an importer that moves the shared file position of the memfd.
func TestLoadKeepsFilePosition(t *testing.T) {
	drivertest.Leaks(t)
	const size = 3*loadPiece + 11
	m := alloc(t, open(t).(*Device), size)
	h, err := m.Export()
	require.NoError(t, err)
	defer h.Close()
	data := bytes.Repeat([]byte("0123456789abcde"), size/15+1)[:size]
	src := file(t, data)
	move := func(int64) {
		_, err := h.File.Seek(777, io.SeekStart)
		require.NoError(t, err)
	}
	move(0)
	require.NoError(t, m.LoadAt(src, 0, 0, size, move))
	require.True(t, bytes.Equal(data, m.Data()))
	at, err := h.File.Seek(0, io.SeekCurrent)
	require.NoError(t, err)
	require.Equal(t, int64(777), at)
	at, err = src.Seek(0, io.SeekCurrent)
	require.NoError(t, err)
	require.Zero(t, at, "the source's position moved")
}

// Freezing during a load refuses writes by descriptor; the load continues.
func TestFreezeDuringLoad(t *testing.T) {
	drivertest.Leaks(t)
	const size = 3*loadPiece + 11
	m := alloc(t, open(t).(*Device), size)
	data := bytes.Repeat([]byte("0123456789abcdefg"), size/17+1)[:size]
	require.NoError(t, m.LoadAt(file(t, data), 0, 0, size, func(int64) { require.NoError(t, m.Freeze()) }))
	require.True(t, bytes.Equal(data, m.Data()))
}

// The source is a file that cannot be read at an offset.
func TestLoadFromPipe(t *testing.T) {
	drivertest.Leaks(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	require.Error(t, alloc(t, open(t).(*Device), 10).LoadAt(r, 0, 0, 10, nil))
}

// Reading a large memfd without pages, as a hostile publisher may send it, allocates no memory.
func TestReadingHolesMakesNoMemory(t *testing.T) {
	drivertest.Leaks(t)
	d := open(t).(*Device)
	const size = 1 << 40
	f := foreignMemfd(t, size, sizeSeals)
	_, err := f.WriteAt([]byte{1, 2, 3}, 5<<20)
	require.NoError(t, err)
	imported, err := d.Import(driver.Handle{Kind: driver.Memfd, Device: d.info.UUID, Bytes: size, File: f}, driver.ImportOptions{})
	require.NoError(t, err)
	defer imported.Close()
	m := imported.(*memory)
	before, err := m.Describe()
	require.NoError(t, err)
	require.EqualValues(t, size, before.Size)
	require.Less(t, before.Allocated, int64(4<<20))
	buf := make([]byte, 1<<20)
	for off := int64(0); off < 64<<20; off += int64(len(buf)) {
		_, err := m.ReadAt(buf, off)
		require.NoError(t, err)
		if off == 5<<20 {
			require.Equal(t, []byte{1, 2, 3}, buf[:3])
		}
	}
	n, err := m.ReadAt(buf, size-10)
	require.Equal(t, 10, n)
	require.ErrorIs(t, err, io.EOF)
	after, err := m.Describe()
	require.NoError(t, err)
	require.Equal(t, before.Allocated, after.Allocated, "reading made pages")

	full, err := alloc(t, d, 1<<20).Describe()
	require.NoError(t, err)
	require.Equal(t, full.Size, full.Allocated)
}

// Sealed memory cannot be written through /proc/self/mem, which bypasses the protection of private mappings and of
// shared ones that could become writable.
func TestDebuggerCannotWriteSealedMemory(t *testing.T) {
	drivertest.Leaks(t)
	d := open(t).(*Device)
	m := alloc(t, d, 8192)
	_, err := m.WriteAt([]byte{7, 7, 7}, 100)
	require.NoError(t, err)
	require.NoError(t, m.Seal())
	h, err := m.Export()
	require.NoError(t, err)
	defer h.Close()
	reader, err := d.Import(h, driver.ImportOptions{})
	require.NoError(t, err)
	defer reader.Close()
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	drivertest.Needs(t, "procfs", err == nil, fmt.Sprint("its own memory cannot be opened: ", err))
	defer mem.Close()
	address := reflect.ValueOf(m.Data()).Pointer()
	_, _ = mem.WriteAt([]byte{9, 9, 9}, int64(address)+100) // older kernels change the private copy of this process
	got := make([]byte, 3)
	_, err = reader.ReadAt(got, 100)
	require.NoError(t, err)
	require.Equal(t, []byte{7, 7, 7}, got, "what readers have was changed")
}

func file(t *testing.T, data []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "source")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}
