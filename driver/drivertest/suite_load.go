package drivertest

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
)

// zeros is an endless source.
type zeros struct{}

func (zeros) ReadAt(p []byte, _ int64) (int, error) {
	clear(p)
	return len(p), nil
}

var errSource = errors.New("the source broke")

// broken returns bytes up to an offset and fails there.
type broken struct{ at int64 }

func (b broken) ReadAt(p []byte, off int64) (int, error) {
	n := max(0, min(int64(len(p)), b.at-off))
	clear(p[:n])
	if n < int64(len(p)) {
		return int(n), errSource
	}
	return int(n), nil
}

// loader returns memory that implements driver.Loader, or skips.
func (e *env) loader(t *testing.T, bytes int64) driver.Loader {
	t.Helper()
	m := e.alloc(t, bytes)
	l, ok := m.(driver.Loader)
	if !ok {
		t.Skip("the device's memory is no driver.Loader")
	}
	return l
}

// sourceFile returns a file with the bytes, open until the test ends.
func sourceFile(t *testing.T, data []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "source")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func testLoad(t *testing.T, e *env) {
	const size = 9<<20 + 123 // more than one or two pieces of any device
	data := pattern(size, 5)
	file := sourceFile(t, data)
	for _, test := range []struct {
		name              string
		src               io.ReaderAt
		srcOff, dstOff, n int64
	}{
		{"bytes", bytes.NewReader(data), 0, 0, size},
		{"file", file, 0, 0, size},
		{"section of a file", io.NewSectionReader(file, 100, size-200), 50, 1000, size - 1000 - 400},
		{"section of bytes", io.NewSectionReader(bytes.NewReader(data), 100, size-100), 1, 7, 5 << 20},
		{"odd offsets", file, 3, 4097, size - 5000},
		{"the end", file, size - 10, size - 10, 10},
		{"nothing", file, 0, size, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := e.loader(t, size)
			want := pattern(size, 6)
			write(t, l, want)
			var told int64
			require.NoError(t, l.LoadAt(test.src, test.srcOff, test.dstOff, test.n, func(n int64) {
				if n <= 0 {
					t.Errorf("progress of %d bytes", n)
				}
				told += n
			}))
			require.Equal(t, test.n, told)
			_, err := test.src.ReadAt(want[test.dstOff:test.dstOff+test.n], test.srcOff)
			require.NoError(t, ignoreEOF(err))
			requireBytes(t, l, want)
		})
	}
}

func testLoadErrors(t *testing.T, e *env) {
	const size = 5 << 20
	l := e.loader(t, size)
	file := sourceFile(t, pattern(1000, 7))
	for _, test := range []struct {
		name              string
		src               io.ReaderAt
		srcOff, dstOff, n int64
		want              error
	}{
		{"short file", file, 0, 0, 1001, io.ErrUnexpectedEOF},
		{"behind the file", file, 5000, 0, 1, io.ErrUnexpectedEOF},
		{"short bytes", bytes.NewReader(make([]byte, 10)), 0, 0, 11, io.ErrUnexpectedEOF},
		{"short section", io.NewSectionReader(file, 0, 500), 0, 0, 501, io.ErrUnexpectedEOF},
		{"behind the section", io.NewSectionReader(file, 0, 500), 600, 0, 10, io.ErrUnexpectedEOF},
		{"broken source", broken{4<<20 + 77}, 0, 0, size, errSource},
		{"past the end", zeros{}, 0, 1, size, driver.ErrRange},
		{"negative count", zeros{}, 0, 0, -1, driver.ErrRange},
		{"negative destination", zeros{}, 0, -1, 1, driver.ErrRange},
		{"overflow", zeros{}, 0, math.MaxInt64, math.MaxInt64, driver.ErrRange},
		{"negative source", zeros{}, -1, 0, 1, driver.ErrInvalid},
		{"source overflow", zeros{}, math.MaxInt64, 0, 1, driver.ErrInvalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.ErrorIs(t, l.LoadAt(test.src, test.srcOff, test.dstOff, test.n, nil), test.want)
		})
	}
	l2, err := e.Alloc(size)
	require.NoError(t, err)
	err = l2.(driver.Loader).LoadAt(zeros{}, 0, 0, size, func(int64) {
		if err := l2.Close(); err != nil {
			t.Error(err)
		}
	})
	if err != nil { // nil if it was a single piece
		require.ErrorIs(t, err, os.ErrClosed)
	}
	require.NoError(t, l2.Close())

	closed, err := os.Open(file.Name())
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	require.Error(t, l.LoadAt(closed, 0, 0, 10, nil))
	require.NoError(t, l.LoadAt(file, 0, 0, 1000, nil), "the memory goes on")
}
