package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
)

type point struct {
	X, Y float32
	ID   uint64
}

func TestBuffer(t *testing.T) {
	d := openDevice(t, 0)
	s := newStream(t, d)
	b, err := cuda.NewBuffer[point](d, 10)
	keep(t, b, err)
	require.Equal(t, 10, b.Len())
	require.EqualValues(t, 160, b.Memory().Bytes())
	zero, err := b.Values()
	require.NoError(t, err)
	require.Equal(t, make([]point, 10), zero)
	require.NoError(t, b.Write([]point{{1, 2, 3}, {4, 5, 6}}, 8))
	got := make([]point, 3)
	require.NoError(t, b.Read(got, 7))
	require.Equal(t, []point{{}, {1, 2, 3}, {4, 5, 6}}, got)

	up, err := cuda.NewHostBuffer[point](d, 3)
	keep(t, up, err)
	copy(up.Values(), []point{{7, 7, 7}, {8, 8, 8}, {9, 9, 9}})
	part, err := b.Slice(2, 5)
	require.NoError(t, err)
	require.NoError(t, part.Upload(s, up))
	other, err := b.Slice(5, 8)
	require.NoError(t, err)
	require.NoError(t, other.CopyFrom(s, part))
	down, err := cuda.NewHostBuffer[point](d, 10)
	keep(t, down, err)
	require.NoError(t, b.Download(s, down))
	require.NoError(t, s.Synchronize())
	require.Equal(t, []point{{}, {}, {7, 7, 7}, {8, 8, 8}, {9, 9, 9}, {7, 7, 7}, {8, 8, 8}, {9, 9, 9}, {1, 2, 3}, {4, 5, 6}}, down.Values())

	shared := alloc(t, d, 64)
	view, err := cuda.BufferOf[uint16](shared, 8, 4)
	require.NoError(t, err)
	require.NoError(t, view.Fill(s, 0x0102))
	require.NoError(t, s.Synchronize())
	require.Equal(t, []uint32{0, 0, 0x01020102, 0x01020102, 0}, words(t, shared, 5))
	require.NoError(t, view.Close(), "a view does not own its memory")
	require.NotNil(t, words(t, shared, 1))
}

func TestBufferRangesAreChecked(t *testing.T) {
	d := openDevice(t, 0)
	s := newStream(t, d)
	b, err := cuda.NewBuffer[int32](d, 4)
	keep(t, b, err)
	h, err := cuda.NewHostBuffer[int32](d, 5)
	keep(t, h, err)
	m, pinned := alloc(t, d, 64), host(t, d, 64)
	for name, err := range map[string]error{
		"read past the end":   b.Read(make([]int32, 3), 2),
		"negative index":      b.Write(make([]int32, 1), -1),
		"slice past the end":  second(b.Slice(2, 5)),
		"reversed slice":      second(b.Slice(3, 2)),
		"upload of another n": b.Upload(s, h),
		"download":            b.Download(s, h),
		"memory too small":    second(cuda.BufferOf[int32](m, 4, 16)),
		"pinned too small":    second(cuda.HostBufferOf[int32](pinned, 4, 16)),
	} {
		require.ErrorIs(t, err, driver.ErrRange, name)
	}
	wide, err := cuda.BufferOf[uint64](m, 0, 8)
	require.NoError(t, err)
	for name, err := range map[string]error{
		"no values":          second(cuda.NewBuffer[int32](d, 0)),
		"negative":           second(cuda.NewBuffer[int32](d, -1)),
		"overflow":           second(cuda.NewBuffer[int32](d, 1<<62)),
		"int":                second(cuda.NewBuffer[int](d, 1)),
		"pointer":            second(cuda.NewBuffer[*int32](d, 1)),
		"string in a struct": second(cuda.NewBuffer[struct{ S string }](d, 1)),
		"no bytes":           second(cuda.NewBuffer[struct{}](d, 1)),
		"not aligned":        second(cuda.BufferOf[int32](m, 2, 1)),
		"pinned not aligned": second(cuda.HostBufferOf[int32](pinned, 2, 1)),
		"fill of 8 bytes":    wide.Fill(s, 1),
	} {
		require.ErrorIs(t, err, driver.ErrInvalid, name)
	}
}

func TestCopyBox(t *testing.T) {
	d := openDevice(t, 0)
	s := newStream(t, d)
	pitched, pitch, err := d.AllocPitched(6, 4, 4)
	keep(t, pitched, err)
	require.GreaterOrEqual(t, pitch, int64(6))
	require.Equal(t, 4*pitch, pitched.Bytes())
	up, down := host(t, d, 24), host(t, d, 24)
	for i := range up.Data() {
		up.Data()[i] = byte(i + 1)
	}
	on := cuda.Box{Operand: cuda.Operand{Memory: pitched}, RowPitch: pitch}
	require.NoError(t, s.CopyBox(cuda.BoxCopy{Dst: on, Src: cuda.Box{Operand: cuda.Operand{Host: up}}, Width: 6, Height: 4}))
	// The 2x2 box at row 1, column 3 of two planes of two rows.
	from := on
	from.Offset = 3
	from.PlaneRows = 2
	require.NoError(t, s.CopyBox(cuda.BoxCopy{Dst: cuda.Box{Operand: cuda.Operand{Host: down}}, Src: from, Width: 2, Height: 2, Depth: 2}))
	require.NoError(t, s.Synchronize())
	require.Equal(t, []byte{4, 5, 10, 11, 16, 17, 22, 23, 0}, down.Data()[:9])

	small := cuda.Box{Operand: cuda.Operand{Host: down}}
	for name, c := range map[string]cuda.BoxCopy{
		"past the end":    {Dst: small, Src: on, Width: 7, Height: 4},
		"overflow":        {Dst: small, Src: cuda.Box{Operand: on.Operand, RowPitch: 1 << 40}, Width: 1, Height: 1 << 40},
		"negative offset": {Dst: small, Src: cuda.Box{Operand: cuda.Operand{Memory: pitched, Offset: -1}}, Width: 1, Height: 1},
	} {
		require.ErrorIs(t, s.CopyBox(c), driver.ErrRange, name)
	}
	for name, c := range map[string]cuda.BoxCopy{
		"pitch below width": {Dst: small, Src: cuda.Box{Operand: on.Operand, RowPitch: 3}, Width: 4, Height: 2},
		"planes overlap":    {Dst: small, Src: cuda.Box{Operand: on.Operand, PlaneRows: 1}, Width: 1, Height: 2, Depth: 2},
		"no memory":         {Dst: small, Width: 1, Height: 1},
		"both kinds":        {Dst: small, Src: cuda.Box{Operand: cuda.Operand{Memory: pitched, Host: up}}, Width: 1, Height: 1},
		"negative width":    {Dst: small, Src: on, Width: -1, Height: 1},
	} {
		require.ErrorIs(t, s.CopyBox(c), driver.ErrInvalid, name)
	}
	require.NoError(t, s.CopyBox(cuda.BoxCopy{Dst: small, Src: on, Height: 4}), "an empty box")
}

func TestCopyBatch(t *testing.T) {
	d := openDevice(t, 0)
	s := newStream(t, d)
	a, b, h := alloc(t, d, 16), alloc(t, d, 16), host(t, d, 16)
	copy(h.Data(), "0123456789abcdef")
	require.NoError(t, s.CopyBatch([]cuda.Copy{
		{Dst: cuda.Operand{Memory: a}, Src: cuda.Operand{Host: h, Offset: 8}, Bytes: 8},
		{Dst: cuda.Operand{Memory: b, Offset: 4}, Src: cuda.Operand{Host: h}, Bytes: 4},
		{},
	}))
	require.NoError(t, s.Synchronize())
	got := make([]byte, 16)
	_, err := a.ReadAt(got[:8], 0)
	require.NoError(t, err)
	_, err = b.ReadAt(got[8:], 0)
	require.NoError(t, err)
	require.Equal(t, "89abcdef\x00\x00\x00\x000123", string(got))
	require.NoError(t, s.CopyBatch(nil))
	require.ErrorIs(t, s.CopyBatch([]cuda.Copy{{Dst: cuda.Operand{Memory: a}, Src: cuda.Operand{Host: h, Offset: 9}, Bytes: 8}}), driver.ErrRange)
	err = s.CopyBatch([]cuda.Copy{
		{Dst: cuda.Operand{Memory: a}, Src: cuda.Operand{Memory: b}, Bytes: 8},
		{Dst: cuda.Operand{Memory: b, Offset: 4}, Src: cuda.Operand{Host: h}, Bytes: 8},
	})
	require.ErrorIs(t, err, driver.ErrInvalid, "one copy reads what another writes")
}

func TestManagedMemory(t *testing.T) {
	d := openDevice(t, 0)
	s := newStream(t, d)
	m, err := d.AllocManaged(3 * 4096)
	keep(t, m, err)
	data := m.Data()
	copy(data, "by the host")
	require.NoError(t, s.Prefetch(m, 0, 4096, d.Location()))
	require.NoError(t, s.Fill8(m.Memory, 0, 2, 'B'))
	require.NoError(t, s.Synchronize())
	require.Equal(t, "BB the host", string(data[:11]))
	at, ok, err := m.LastPrefetch(0, 4096)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, d.Location(), at)
	_, ok, err = m.LastPrefetch(0, 8192)
	require.NoError(t, err)
	require.False(t, ok, "the second page was not moved")
	for _, a := range []cuda.Advice{cuda.ReadMostly, cuda.NotReadMostly, cuda.PreferLocation, cuda.NoPreferredLocation, cuda.AccessedBy, cuda.NotAccessedBy} {
		for _, l := range []cuda.Location{d.Location(), cuda.HostLocation, cuda.NUMALocation(0)} {
			require.NoError(t, m.Advise(0, m.Bytes(), a, l))
		}
	}
	require.NoError(t, s.Prefetch(m, 0, m.Bytes(), cuda.HostLocation))
	require.NoError(t, s.Synchronize())
	at, ok, err = m.LastPrefetch(0, m.Bytes())
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, cuda.HostLocation, at)

	require.ErrorIs(t, m.Advise(0, m.Bytes()+1, cuda.ReadMostly, cuda.Location{}), driver.ErrRange)
	require.ErrorIs(t, m.Advise(0, 1, cuda.PreferLocation, cuda.Location{}), driver.ErrInvalid, "no location")
	require.ErrorIs(t, s.Prefetch(m, 0, 1, cuda.NUMALocation(7)), driver.ErrInvalid, "no such node")
	_, err = d.AllocManaged(0)
	require.ErrorIs(t, err, driver.ErrInvalid)
	_, err = m.Export()
	require.ErrorIs(t, err, errUnsupported)
}

// A device without managed memory, or without concurrent access, is reported.
func TestManagedMemoryUnsupported(t *testing.T) {
	o := fakeOptions
	o.Without = []string{"managed"}
	if childWith(t, "managed", o) {
		return
	}
	d, err := cuda.Open(0)
	keep(t, d, err)
	_, err = d.AllocManaged(4096)
	require.ErrorIs(t, err, errUnsupported)
}
