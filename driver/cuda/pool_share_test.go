package cuda_test

import (
	"encoding/hex"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	hostdevice "github.com/sharedtensor/sharedtensor/driver/host"
)

const pointerVariable = "SHAREDTENSOR_TEST_POINTER"

// Another process maps an allocation of a shared pool and sees its bytes.
func TestSharedPool(t *testing.T) {
	if os.Getenv(childVariable) == "pool" {
		importFromPool(t)
		return
	}
	d := openDevice(t, 0)
	s := newStream(t, d)
	p, err := d.NewSharedPool(cuda.FileHandle)
	keep(t, p, err)
	m, err := s.Alloc(p, 4096)
	keep(t, m, err)
	require.NoError(t, s.Fill8(m, 0, 4096, 1))
	require.NoError(t, s.Synchronize())
	f, err := p.ExportFile()
	keep(t, f, err)
	handle, err := p.ExportMemory(m)
	require.NoError(t, err)

	cmd := selfCommand("-test.run="+pattern(t.Name()), "-test.count=1")
	cmd.Env = append(os.Environ(), childVariable+"=pool", pointerVariable+"="+hex.EncodeToString(handle[:]))
	cmd.ExtraFiles = []*os.File{f}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.EqualValues(t, 0x02020202, words(t, m, 1)[0], "what the other process wrote")

	again, err := d.ImportPool(f)
	keep(t, again, err)
	_, err = again.ImportMemory(handle)
	require.ErrorIs(t, err, driver.ErrHandle, "the driver's IPC is between processes")
	_, err = s.Alloc(again, 16)
	require.Error(t, err, "an imported pool allocates nothing")
}

func importFromPool(t *testing.T) {
	d := openDevice(t, 0)
	f := os.NewFile(3, "pool")
	p, err := d.ImportPool(f)
	keep(t, p, err)
	require.NoError(t, f.Close(), "the pool has its own reference")
	b, err := hex.DecodeString(os.Getenv(pointerVariable))
	require.NoError(t, err)
	m, err := p.ImportMemory([64]byte(b))
	keep(t, m, err)
	require.EqualValues(t, 4096, m.Bytes())
	require.EqualValues(t, 0x01010101, words(t, m, 1)[0])
	require.NoError(t, m.Fill(0, 4096, 2))
	b[20] ^= 1
	_, err = p.ImportMemory([64]byte(b))
	require.ErrorIs(t, err, driver.ErrHandle)
	s := newStream(t, d)
	other, err := p.ImportMemory([64]byte(append(b[:20], append([]byte{b[20] ^ 1}, b[21:]...)...)))
	require.NoError(t, err)
	require.NoError(t, s.Free(other), "memory of a pool can be freed in stream order")
	require.NoError(t, s.Synchronize())
}

func TestSharedPoolIsChecked(t *testing.T) {
	d, other := openDevice(t, 0), openDevice(t, 1)
	s := newStream(t, d)
	plain, err := d.NewPool()
	keep(t, plain, err)
	_, err = plain.ExportFile()
	require.ErrorIs(t, err, driver.ErrInvalid, "a pool without handle types")
	m, err := s.Alloc(plain, 16)
	keep(t, m, err)
	_, err = plain.ExportMemory(m)
	require.ErrorIs(t, err, driver.ErrInvalid)
	_, err = plain.ExportMemory(alloc(t, d, 16))
	require.ErrorIs(t, err, driver.ErrInvalid, "memory of no pool")
	null, err := os.Open(os.DevNull)
	keep(t, null, err)
	_, err = d.ImportPool(null)
	require.ErrorIs(t, err, driver.ErrHandle)

	access, err := plain.Access(d)
	require.NoError(t, err)
	require.Equal(t, cuda.ReadWrite, access)
	access, err = plain.Access(other)
	require.NoError(t, err)
	require.Equal(t, cuda.NoAccess, access)
	fill := function(t, loadKernels(t, other), "fill")
	require.NoError(t, plain.SetAccess(other, cuda.ReadWrite))
	require.NoError(t, fill.Launch(cuda.LaunchConfig{}, m, uint32(7), uint32(1)))
	require.NoError(t, other.Synchronize())
	require.EqualValues(t, 7, words(t, m, 1)[0])
	require.Error(t, plain.SetAccess(d, cuda.NoAccess), "the pool's device always has access")
}

// A slab of the host device can be pinned for copies, and stays mapped until Close.
func TestPinMemory(t *testing.T) {
	d := openDevice(t, 0)
	hd, err := hostdevice.Open()
	keep(t, hd, err)
	slab, err := hd.Alloc(8192)
	require.NoError(t, err)
	_, err = slab.WriteAt([]byte("from a slab"), 100)
	require.NoError(t, err)
	h, err := slab.Export()
	require.NoError(t, err)
	imported, err := hd.Import(h, driver.ImportOptions{})
	require.NoError(t, err)
	require.NoError(t, h.Close())

	s, m := newStream(t, d), alloc(t, d, 64)
	writable, err := d.PinMemory(slab.(driver.Mapped))
	require.NoError(t, err)
	require.NoError(t, s.CopyToDevice(m, 0, writable, 100, 11))
	require.NoError(t, s.CopyToHost(writable, 0, m, 0, 11))
	require.NoError(t, writable.Close())
	got := make([]byte, 11)
	_, err = imported.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, "from a slab", string(got))
	require.NoError(t, slab.Close())

	// The imported slab is read-only, so it is pinned read-only.
	pinned, err := d.PinMemory(imported.(driver.Mapped))
	require.NoError(t, err)
	require.NoError(t, imported.Close())
	require.NoError(t, s.CopyToDevice(m, 0, pinned, 100, 11), "the mapping remains until the memory is unpinned")
	require.NoError(t, s.Synchronize())
	require.ErrorIs(t, s.CopyToHost(pinned, 0, m, 0, 1), driver.ErrReadOnly)
	require.NoError(t, pinned.Close())
	_, err = d.PinMemory(imported.(driver.Mapped))
	require.ErrorIs(t, err, os.ErrClosed)
}
