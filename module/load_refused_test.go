package module_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
)

// fullDevice has no memory left.
type fullDevice struct{ driver.Device }

var errFull = errors.New("no memory left")

func (fullDevice) Alloc(int64) (driver.Memory, error) { return nil, errFull }

// headerOnly reads a file of which only the beginning is there.
type headerOnly []byte

func (h headerOnly) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(h)) {
		return 0, io.ErrUnexpectedEOF
	}
	n := copy(p, h[off:])
	if n < len(p) {
		return n, io.ErrUnexpectedEOF
	}
	return n, nil
}

// TestLoadThatGetsNoMemoryLeavesNothing loads a file that is so large that reading ahead waits for the copying, which
// never begins.
func TestLoadThatGetsNoMemoryLeavesNothing(t *testing.T) {
	const size = 1 << 30
	header := fmt.Sprintf(`{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, size, size)
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	dev := fullDevice{openHost(t)}
	synctest.Test(t, func(t *testing.T) { // ends with the last goroutine
		_, err := module.LoadFrom(t.Context(), dev, headerOnly(file), int64(len(file))+size, module.LoadOptions{})
		require.ErrorIs(t, err, errFull)
	})
}
