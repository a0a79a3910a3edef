package host_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
)

// Writes of all sizes in order, out of order and overlapping, some through the mapping, are correct in memory with and
// without its pages, before and after it was frozen and imported.
func TestWritesOfFreshMemory(t *testing.T) {
	for name, options := range map[string][]host.Option{"reserved": nil, "lazy": {host.Lazy()}} {
		t.Run(name, func(t *testing.T) {
			dev, err := host.Open(options...)
			require.NoError(t, err)
			defer dev.Close()
			const size = 1 << 20
			mem, err := dev.Alloc(size)
			require.NoError(t, err)
			defer mem.Close()
			want := make([]byte, size)
			r := rand.New(rand.NewPCG(1, 2))
			write := func(to driver.Memory, off, n int) {
				p := make([]byte, n)
				for i := range p {
					p[i] = byte(r.Uint32())
				}
				copy(want[off:], p)
				if to != nil {
					done, err := to.WriteAt(p, int64(off))
					require.NoError(t, err)
					require.Equal(t, n, done)
					return
				}
				copy(mem.(driver.Mapped).Data()[off:], p)
			}
			check := func() {
				got := make([]byte, size)
				_, err := mem.ReadAt(got, 0)
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, got), "by ReadAt")
				require.True(t, bytes.Equal(want, mem.(driver.Mapped).Data()), "by the mapping")
			}
			check()
			write(nil, 300_000, 5000)
			for off := 0; off < size/2; { // in order, as a file arrives
				n := min(1+r.IntN(20_000), size/2-off)
				write(mem, off, n)
				off += n
			}
			check()
			for range 50 {
				off := r.IntN(size)
				write(mem, off, min(r.IntN(30_000), size-off))
			}
			check()
			again, err := mem.Export()
			require.NoError(t, err)
			writable, err := dev.Import(again, driver.ImportOptions{})
			require.NoError(t, err)
			defer writable.Close()
			require.NoError(t, mem.Freeze())
			for range 50 {
				off := r.IntN(size)
				write(mem, off, min(r.IntN(30_000), size-off))
			}
			check()
			_, err = mem.WriteAt(make([]byte, 4096), size-1)
			require.ErrorIs(t, err, driver.ErrRange)
		})
	}
}

// Goroutines fill ranges that meet within pieces and pages, as parts of a file arrive over several connections.
func TestRangesOfFreshMemory(t *testing.T) {
	dev, err := host.Open(host.Lazy())
	require.NoError(t, err)
	defer dev.Close()
	const size, step = 5<<20 + 777, 700_001
	mem, err := dev.Alloc(size)
	require.NoError(t, err)
	defer mem.Close()
	want := make([]byte, size)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range want {
		want[i] = byte(r.Uint32())
	}
	var filling sync.WaitGroup
	for begin := 0; begin < size; begin += step {
		filling.Go(func() {
			for off, end := begin, min(begin+step, size); off < end; {
				n := min(100_003, end-off)
				if done, err := mem.WriteAt(want[off:off+n], int64(off)); err != nil || done != n {
					t.Error(done, err)
				}
				off += n
			}
		})
	}
	filling.Wait()
	require.True(t, bytes.Equal(want, mem.(driver.Mapped).Data()))
}

// BenchmarkFill writes 64 MiB to new memory, by WriteAt and through its mapping.
func BenchmarkFill(b *testing.B) {
	const size = 64 << 20
	piece := make([]byte, 1<<20)
	for name, options := range map[string][]host.Option{"reserved": nil, "lazy": {host.Lazy()}} {
		dev, err := host.Open(options...)
		require.NoError(b, err)
		defer dev.Close()
		for way, fill := range map[string]func(m driver.Memory) error{
			"WriteAt": func(m driver.Memory) error {
				w := io.NewOffsetWriter(m, 0)
				for range size / len(piece) {
					if _, err := w.Write(piece); err != nil {
						return err
					}
				}
				return nil
			},
			"WriteAt/backwards": func(m driver.Memory) error { // as ranges arrive out of order
				for off := size - len(piece); off >= 0; off -= len(piece) {
					if _, err := m.WriteAt(piece, int64(off)); err != nil {
						return err
					}
				}
				return nil
			},
			"mapping": func(m driver.Memory) error {
				data := m.(driver.Mapped).Data()
				for off := 0; off < size; off += len(piece) {
					copy(data[off:], piece)
				}
				return nil
			},
		} {
			b.Run(fmt.Sprintf("%s/%s", name, way), func(b *testing.B) {
				b.SetBytes(size)
				for b.Loop() {
					m, err := dev.Alloc(size)
					require.NoError(b, err)
					require.NoError(b, fill(m))
					require.NoError(b, m.Close())
				}
			})
		}
	}
}
