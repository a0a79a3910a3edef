package drivertest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
)

func testExport(t *testing.T, e *env) {
	m, data := e.filled(t, 5000, 8)
	first, second := export(t, m), export(t, m)
	for _, h := range []driver.Handle{first, second} {
		require.NoError(t, h.Validate())
		require.Equal(t, e.Info().UUID, h.Device)
		require.Equal(t, int64(5000), h.Bytes)
		if h.File != nil {
			require.True(t, closedOnExec(t, h.File), "the descriptor would leak into every program that this process starts")
		}
	}
	require.NoError(t, first.Close())
	if second.File != nil {
		_, err := second.File.Stat()
		require.NoError(t, err, "handles share a descriptor")
	}
	requireBytes(t, m, data)
	kinds := map[driver.HandleKind]error{}
	for _, s := range e.Probe() {
		kinds[s.Kind] = s.Err
	}
	require.Contains(t, kinds, first.Kind)
	require.NoError(t, kinds[first.Kind])
}

func testShare(t *testing.T, e *env, p process) {
	m, data := e.filled(t, 100_003, 9)
	h := export(t, m)
	reader := imported(t, p, h, driver.ImportOptions{})
	again := imported(t, p, h, driver.ImportOptions{})
	require.NoError(t, h.Close()) // the import borrowed the handle and no longer needs it
	require.False(t, reader.Writable())
	requireBytes(t, reader, data)
	requireBytes(t, again, data)

	_, err := reader.WriteAt([]byte{1}, 0)
	require.ErrorIs(t, err, driver.ErrReadOnly)
	requireBytes(t, m, data)

	data = pattern(len(data), 10) // in place: the owner's writes are visible at once
	write(t, m, data)
	requireBytes(t, reader, data)
	require.NoError(t, again.Close())
	requireBytes(t, reader, data)
	require.NoError(t, again.Close(), "a second Close")
}

func testShareSizes(t *testing.T, e *env, p process) {
	for _, size := range sizes(e.Info().Granularity) {
		m, data := e.filled(t, size, byte(size))
		reader := imported(t, p, export(t, m), driver.ImportOptions{})
		requireBytes(t, reader, data)
	}
}

// testSharePart imports parts of an allocation at various offsets.
func testSharePart(t *testing.T, e *env, p process) {
	size := 2*e.Info().Granularity + 500
	m, data := e.filled(t, size, 11)
	whole := export(t, m)
	for _, offset := range []int64{1, 13, 256, e.Info().Granularity, e.Info().Granularity + 77, size - 1, size} {
		part := whole
		part.Offset, part.Bytes = whole.Offset+offset, size-offset
		requireBytes(t, imported(t, p, part, driver.ImportOptions{}), data[offset:])
	}
}

func testShareWritable(t *testing.T, e *env, p process) {
	m, data := e.filled(t, 50_001, 12)
	reader := imported(t, p, export(t, m), driver.ImportOptions{})
	writer := imported(t, p, export(t, m), driver.ImportOptions{Writable: true})
	require.True(t, writer.Writable())
	requireBytes(t, writer, data)
	data = pattern(len(data), 13)
	write(t, writer, data)
	requireBytes(t, m, data)
	requireBytes(t, reader, data)
	_, err := writer.WriteAt(data, 1)
	require.ErrorIs(t, err, driver.ErrRange)
}

// Imported memory stays valid after the exporter's memory is closed. Kinds without a descriptor do not promise this.
func testImportOutlivesExporter(t *testing.T, e *env, p process) {
	m, err := e.Alloc(70_001)
	require.NoError(t, err)
	defer m.Close()
	data := pattern(70_001, 14)
	write(t, m, data)
	h := export(t, m)
	if !h.Kind.HasFile() {
		t.Skipf("handles of kind %s need their exporter", h.Kind)
	}
	before := imported(t, p, h, driver.ImportOptions{})
	require.NoError(t, m.Close())
	requireBytes(t, before, data)
	requireBytes(t, imported(t, p, h, driver.ImportOptions{}), data)
}

// Imported memory can be exported again.
func testReexport(t *testing.T, e *env, p process) {
	m, data := e.filled(t, 30_011, 15)
	whole := export(t, m)
	part := whole
	part.Offset, part.Bytes = whole.Offset+101, 20_000
	first := imported(t, p, part, driver.ImportOptions{})
	h, err := first.Export()
	require.NoError(t, err)
	defer h.Close()
	if !h.Kind.HasFile() {
		t.Skipf("handles of kind %s are their exporter's to give", h.Kind)
	}
	require.Equal(t, int64(20_000), h.Bytes)
	require.NoError(t, first.Close())
	third := process(local{e.Device})
	if e.options.elsewhere {
		third = startPeer(t, e.options)
	}
	requireBytes(t, imported(t, third, h, driver.ImportOptions{}), data[101:20_101])
}

func testFreeze(t *testing.T, e *env, p process) {
	m, data := e.filled(t, 40_009, 16)
	before, err := m.Describe()
	require.NoError(t, err)
	if !before.Freezable {
		require.ErrorIs(t, m.Freeze(), errors.ErrUnsupported)
		require.NoError(t, driver.Freeze(m))
		t.Skip("the device's memory cannot be frozen")
	}
	earlier := imported(t, p, export(t, m), driver.ImportOptions{Writable: true})
	old := export(t, m)
	require.False(t, before.Frozen)
	require.NoError(t, m.Freeze())
	after, err := m.Describe()
	require.NoError(t, err)
	require.True(t, after.Frozen)
	require.Empty(t, after.Identity, "older mappings may be writable")
	require.NoError(t, m.Freeze(), "a second Freeze")

	for _, h := range []driver.Handle{old, export(t, m)} {
		_, err := p.importHandle(h, driver.ImportOptions{Writable: true})
		require.ErrorIs(t, err, driver.ErrReadOnly)
		requireBytes(t, imported(t, p, h, driver.ImportOptions{}), data)
		if h.Kind == driver.Memfd {
			_, err := h.File.WriteAt([]byte{1}, 0)
			require.Error(t, err, "frozen memory was written through its descriptor")
		}
	}
	data = pattern(len(data), 17) // existing mappings do not change
	write(t, m, data)
	requireBytes(t, earlier, data)
	data = pattern(len(data), 18)
	write(t, earlier, data)
	requireBytes(t, m, data)
	if l, ok := m.(driver.Loader); ok {
		data = pattern(len(data), 19)
		require.NoError(t, l.LoadAt(sourceFile(t, data), 0, 0, int64(len(data)), nil))
		requireBytes(t, earlier, data)
	}
}

func testConcurrentShares(t *testing.T, e *env, p process) {
	m, data := e.filled(t, 5_003, 20)
	share := func() error {
		h, err := m.Export()
		if err != nil {
			return err
		}
		defer h.Close()
		reader, err := p.importHandle(h, driver.ImportOptions{})
		if err != nil {
			return err
		}
		got := make([]byte, len(data))
		if _, err := reader.ReadAt(got, 0); ignoreEOF(err) != nil {
			return err
		}
		if string(got) != string(data) {
			return fmt.Errorf("other bytes")
		}
		return reader.Close()
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 10 {
				if err := share(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}

// Imported memory stays valid after its owner was killed.
func testOwnerKilled(t *testing.T, e *env) {
	owner := startPeer(t, e.options)
	m, err := owner.alloc(200_003)
	require.NoError(t, err)
	data := pattern(200_003, 21)
	write(t, m, data)
	h := export(t, m)
	if !h.Kind.HasFile() {
		t.Skipf("handles of kind %s need their exporter", h.Kind)
	}
	reader := imported(t, local{e.Device}, h, driver.ImportOptions{})
	requireBytes(t, reader, data)
	data = pattern(len(data), 22)
	write(t, m, data)
	requireBytes(t, reader, data)

	owner.kill(t)
	requireBytes(t, reader, data)
	requireBytes(t, imported(t, local{e.Device}, h, driver.ImportOptions{}), data)
}

// The owner continues after a process that had mapped its memory was killed.
func testImporterKilled(t *testing.T, e *env) {
	m, data := e.filled(t, 60_013, 23)
	user := startPeer(t, e.options)
	writer := imported(t, user, export(t, m), driver.ImportOptions{Writable: true})
	data[5] = 99
	write(t, writer, data)
	user.kill(t)
	requireBytes(t, m, data)
	data = pattern(len(data), 24)
	write(t, m, data)
	requireBytes(t, imported(t, startPeer(t, e.options), export(t, m), driver.ImportOptions{}), data)
}
