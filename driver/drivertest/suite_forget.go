package drivertest

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
)

// collectLimit is how long the garbage collector may take to find unreachable memory.
const collectLimit = 20 * time.Second

// testSliceOutlivesCollection drops memory whose slice, or address, is still in use, and allocates other memory of the
// same size. It runs in a separate process, because what is kept is kept until the process ends.
func testSliceOutlivesCollection(t *testing.T, e *env) {
	size := 2*e.Info().Granularity + 100
	p := startPeer(t, e.options)
	t.Run("Allocated", func(t *testing.T) {
		require.NoError(t, p.forget(size, nil, driver.ImportOptions{}))
	})
	m, data := e.filled(t, size, 40)
	for _, writable := range []bool{false, true} {
		t.Run(fmt.Sprintf("Imported, writable %v", writable), func(t *testing.T) {
			h := export(t, m)
			require.NoError(t, p.forget(size, &h, driver.ImportOptions{Writable: writable}))
			if !writable {
				requireBytes(t, m, data)
			}
		})
	}
}

// Unreachable memory without a slice is released, which the count of mappings shows.
func testForgottenMemory(t *testing.T, e *env) {
	before := driver.Leaks()
	func() {
		m, err := e.Alloc(3 * e.Info().Granularity)
		require.NoError(t, err)
		_, err = m.WriteAt([]byte{1}, 5)
		require.NoError(t, err)
	}()
	require.NoError(t, collect(func() bool { return driver.Leaks().Released > before.Released }))
	require.Equal(t, before.Kept, driver.Leaks().Kept)
	after := driver.Leaks()
	m, err := e.Alloc(1)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	runtime.GC()
	runtime.GC()
	require.Equal(t, after, driver.Leaks(), "what was closed is no leak")
}

// collect runs the garbage collector until done returns true.
func collect(done func() bool) error {
	for deadline := time.Now().Add(collectLimit); !done(); {
		if time.Now().After(deadline) {
			return errors.New("the garbage collector found nothing that was forgotten, or it is not counted")
		}
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	return nil
}

// remains describes memory that was dropped.
type remains struct {
	bytes    int64
	data     []byte // its slice; nil if the processor cannot address it
	writable bool
	pointer  uint64
}

// forget creates memory with the pattern of seed and returns the references that a program may keep.
//
//go:noinline
func forget(make func() (driver.Memory, error)) (remains, error) {
	m, err := make()
	if err != nil {
		return remains{}, err
	}
	r := remains{bytes: m.Bytes(), writable: m.Writable()}
	if r.writable {
		if _, err := m.WriteAt(pattern(int(r.bytes), 41), 0); err != nil {
			return remains{}, err
		}
	}
	if mapped, ok := m.(driver.Mapped); ok {
		r.data = mapped.Data()
	}
	if a, ok := m.(driver.Addressable); ok {
		r.pointer = a.DevicePointer()
	}
	return r, nil
}

// forgetMemory drops memory and checks that other memory does not get its address. It runs in the peer.
func forgetMemory(dev driver.Device, make func() (driver.Memory, error)) error {
	before := driver.Leaks()
	r, err := forget(make)
	if err != nil {
		return err
	}
	want := bytes.Clone(r.data)
	if err := collect(func() bool { return driver.Leaks().Kept > before.Kept }); err != nil {
		return err
	}
	if kept := driver.Leaks().KeptBytes - before.KeptBytes; kept < r.bytes { // it may be rounded up
		return fmt.Errorf("%d bytes are counted as kept, not %d", kept, r.bytes)
	}
	for i := range 8 {
		if err := r.collides(dev, byte(i)); err != nil {
			return err
		}
	}
	if r.data != nil && !r.writable && !bytes.Equal(r.data, want) {
		return errors.New("the slice has other bytes")
	}
	return nil
}

// collides allocates memory and reports whether it has the address of the dropped one.
func (r remains) collides(dev driver.Device, seed byte) error {
	m, err := dev.Alloc(r.bytes)
	if err != nil {
		return err
	}
	defer m.Close()
	theirs := pattern(int(r.bytes), seed)
	if _, err := m.WriteAt(theirs, 0); err != nil {
		return err
	}
	if r.data != nil && r.writable {
		copy(r.data, pattern(len(r.data), ^seed))
		got := make([]byte, r.bytes)
		if _, err := m.ReadAt(got, 0); ignoreEOF(err) != nil {
			return err
		}
		if !bytes.Equal(got, theirs) {
			return errors.New("a write to the slice changed other memory")
		}
	}
	if a, ok := m.(driver.Addressable); ok && r.pointer != 0 {
		if at := a.DevicePointer(); at < r.pointer+uint64(r.bytes) && r.pointer < at+uint64(r.bytes) {
			return fmt.Errorf("new memory at %#x is where the forgotten memory is", at)
		}
	}
	return nil
}
