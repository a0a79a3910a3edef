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

// fullDevice has no free memory.
type fullDevice struct{ driver.Device }

var errFull = errors.New("no memory left")

func (fullDevice) Alloc(int64) (driver.Memory, error) { return nil, errFull }

// headerOnly is a reader of a file of which only the beginning exists.
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

// A load that is refused memory leaves nothing behind, even if reading ahead waits for copying that never begins.
func TestLoadThatGetsNoMemoryLeavesNothing(t *testing.T) {
	t.Parallel()
	const size = 1 << 30
	header := fmt.Sprintf(`{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, size, size)
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	dev := fullDevice{openHost(t)}
	synctest.Test(t, func(t *testing.T) { // ends with the last goroutine
		_, err := module.LoadFrom(t.Context(), dev, headerOnly(file), int64(len(file))+size, module.LoadOptions{})
		require.ErrorIs(t, err, errFull)
	})
}
