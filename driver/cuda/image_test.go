package cuda

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
)

// An image that is accepted keeps the driver, which does not receive a length, within its bounds.
func FuzzCheckImage(f *testing.F) {
	f.Add([]byte(".version 7.0\n.target sm_50\n"))
	f.Add([]byte("\x7fELF\x02\x01\x01\x00"))
	f.Add([]byte{0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, image []byte) {
		before := bytes.Clone(image)
		out, err := checkImage(image)
		require.Equal(t, before, image)
		if err != nil {
			require.ErrorIs(t, err, driver.ErrInvalid)
			return
		}
		switch {
		case len(image) >= 4 && binary.LittleEndian.Uint32(image) == fatbinMagic:
			size := uint64(binary.LittleEndian.Uint16(out[6:])) + binary.LittleEndian.Uint64(out[8:])
			require.LessOrEqual(t, size, uint64(len(out)))
		case bytes.HasPrefix(image, []byte("\x7fELF")):
		default:
			require.Equal(t, len(out)-1, bytes.IndexByte(out, 0), "text ends with its only zero byte")
		}
	})
}

// Numbers of every kind are packed and read back unchanged.
func FuzzArguments(f *testing.F) {
	f.Add(int8(-1), uint16(2), int32(-3), uint64(4), 5, float32(6), 7.0)
	f.Fuzz(func(t *testing.T, a int8, b uint16, c int32, d uint64, e int, g float32, h float64) {
		type record struct {
			A int8
			B uint16
			C int32
			D uint64
			G float32
			H float64
		}
		var args arguments
		require.NoError(t, args.add(record{a, b, c, d, g, h}, 32))
		require.NoError(t, args.add(e, 8))
		got := args.values[args.offsets[0]:]
		require.Equal(t, byte(a), got[0])
		require.Equal(t, b, binary.LittleEndian.Uint16(got[2:]))
		require.Equal(t, uint32(c), binary.LittleEndian.Uint32(got[4:]))
		require.Equal(t, d, binary.LittleEndian.Uint64(got[8:]))
		require.Equal(t, uint64(e), binary.LittleEndian.Uint64(args.values[args.offsets[1]:]))
		for _, size := range []int{1, 2, 4} {
			err := args.add(e, size)
			fits := int64(e)>>(8*size-1) == 0 || int64(e)>>(8*size-1) == -1
			require.Equal(t, fits, err == nil, "%d in %d bytes", e, size)
		}
	})
}
