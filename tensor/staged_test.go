package tensor

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
)

// countedMemory is memory that the processor cannot address, whose 32-bit words are their indices. It counts what is read.
type countedMemory struct {
	driver.Memory
	size         int64
	calls, bytes int64
}

func (m *countedMemory) Bytes() int64 { return m.size }

func (m *countedMemory) ReadAt(p []byte, off int64) (int, error) {
	m.calls++
	m.bytes += int64(len(p))
	for i := 0; i < len(p); {
		at := off + int64(i)
		if at%4 == 0 && len(p)-i >= 4 {
			binary.LittleEndian.PutUint32(p[i:], uint32(at/4))
			i += 4
			continue
		}
		p[i] = byte(at / 4 >> (at % 4 * 8))
		i++
	}
	return len(p), nil
}

// counted returns a tensor in counted memory.
func counted(t testing.TB, s Spec) (*Tensor, *countedMemory) {
	t.Helper()
	extent, err := s.Extent()
	require.NoError(t, err)
	mem := &countedMemory{size: s.ByteOffset + extent}
	elements, err := s.Shape.NumElements()
	require.NoError(t, err)
	return &Tensor{spec: s, elements: elements, bytes: elements * int64(s.DType.BitSize()) / 8, storage: NewStorage(mem)}, mem
}

// The reader returns the bytes in row-major order for any shape, strides, element size and size of the chunks: gaps,
// permutations, repeated and overlapping elements, and reads that end inside of an element.
func TestStagedReaderReadsAnyStrides(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	strides := []int64{0, 1, 2, 3, 5, 7, 16, 100, 20000, 70000}
	types := []DType{Uint8, Float16, Float32, Float64, Complex128}
	for round := range 3000 {
		s := Spec{DType: types[random.IntN(len(types))], ByteOffset: 16 * random.Int64N(3)}
		size := int64(s.DType.BitSize()) / 8
		for range random.IntN(5) {
			s.Shape = append(s.Shape, random.Int64N(6))
			s.Strides = append(s.Strides, strides[random.IntN(len(strides))])
		}
		x, mem := counted(t, s)
		var want []byte
		index := make([]int64, len(s.Shape))
		for range x.elements {
			at := s.ByteOffset
			for d, i := range index {
				at += i * s.Strides[d] * size
			}
			b := make([]byte, size)
			_, _ = mem.ReadAt(b, at)
			want = append(want, b...)
			for d := len(index) - 1; d >= 0; d-- {
				if index[d]++; index[d] < s.Shape[d] {
					break
				}
				index[d] = 0
			}
		}
		r := newStagedReader(access{Tensor: x}, 1+random.Int64N(200))
		var got []byte
		for {
			p := make([]byte, 1+random.IntN(100))
			n, err := r.Read(p)
			got = append(got, p[:n]...)
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			require.NoError(t, r.resume(access{Tensor: x}))
		}
		require.Equal(t, want, got, "round %d: %+v", round, s)
	}
}

// patterns are strided tensors of n times n elements, and how often Elements may read each byte of their extent.
var patterns = map[string]struct {
	spec  func(n int64) Spec
	times int64
}{
	"transposed":       {func(n int64) Spec { return Spec{Shape: Shape{n, n}, Strides: Strides{1, n}} }, 9},
	"columns":          {func(n int64) Spec { return Spec{Shape: Shape{n, n}, Strides: Strides{2 * n, 1}} }, 1},
	"every second":     {func(n int64) Spec { return Spec{Shape: Shape{n, n}, Strides: Strides{2 * n, 2}} }, 1},
	"every 50th":       {func(n int64) Spec { return Spec{Shape: Shape{n * n / 16}, Strides: Strides{50}} }, 1},
	"short rows":       {func(n int64) Spec { return Spec{Shape: Shape{n * n / 2, 2}, Strides: Strides{5, 2}} }, 1},
	"permuted":         {func(n int64) Spec { return Spec{Shape: Shape{16, n / 4, n / 4}, Strides: Strides{n / 4, 4 * n, 1}} }, 9},
	"reversed order":   {func(n int64) Spec { return Spec{Shape: Shape{8, n / 8, n}, Strides: Strides{1, 8, n}} }, 9},
	"repeated rows":    {func(n int64) Spec { return Spec{Shape: Shape{n, n}, Strides: Strides{0, 2}} }, 1},
	"repeated columns": {func(n int64) Spec { return Spec{Shape: Shape{n, n}, Strides: Strides{2, 0}} }, 1},
	"windows":          {func(n int64) Spec { return Spec{Shape: Shape{n * n / 8, 8}, Strides: Strides{1, 1}} }, 2},
}

// Elements reads memory that the processor cannot address in large pieces, each byte a limited number of times, so its
// cost is linear in the number of elements for every pattern of strides.
func TestElementsOfStridedMemoryAreLinear(t *testing.T) {
	for name, p := range patterns {
		sizes := []int64{64, 512, 1024}
		if name == "transposed" || name == "columns" {
			sizes = append(sizes, 3000) // several chunks
		}
		for _, n := range sizes {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				s := p.spec(n)
				s.DType = Uint32
				x, mem := counted(t, s)
				extent, err := s.Extent()
				require.NoError(t, err)
				index := make([]int64, len(s.Shape))
				count := int64(0)
				for v, err := range Elements[uint32](x) {
					require.NoError(t, err)
					want := int64(0)
					for d, i := range index {
						want += i * s.Strides[d]
					}
					if int64(v) != want {
						t.Fatalf("element %v is %d, want %d", index, v, want)
					}
					count++
					for d := len(index) - 1; d >= 0; d-- {
						if index[d]++; index[d] < s.Shape[d] {
							break
						}
						index[d] = 0
					}
				}
				require.Equal(t, x.elements, count)
				pieces := 1 + extent/stagePiece
				require.LessOrEqual(t, mem.calls, 2*p.times*pieces, "reads")
				require.LessOrEqual(t, mem.bytes, p.times*extent+pieces*stageGap, "bytes of an extent of %d", extent)
			})
		}
	}
}
