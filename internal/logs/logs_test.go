package logs

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Callers never wait for a stream that takes nothing. Lines beyond the queue are lost and counted, and the count is written
// when the stream takes lines again.
func TestWriterDoesNotBlock(t *testing.T) {
	r, to := io.Pipe()
	w := NewWriter(to)
	for range 2 * MaxLines {
		_, _ = w.Write([]byte("line\n"))
	}
	lost := w.Lost()
	require.GreaterOrEqual(t, lost, uint64(MaxLines-2))
	_, err := w.Write(make([]byte, MaxBytes+1))
	require.ErrorIs(t, err, ErrLost)
	begin := time.Now()
	w.Close(10 * time.Millisecond)
	require.Less(t, time.Since(begin), 5*time.Second)

	read := make(chan string)
	go func() {
		text, _ := io.ReadAll(r)
		read <- string(text)
	}()
	w.Close(5 * time.Second)
	require.NoError(t, to.Close())
	text := <-read
	require.Equal(t, int(2*MaxLines-lost), strings.Count(text, "line\n"))
	require.Contains(t, text, "lines of this log were lost")
}

type broken struct{ n int }

func (b *broken) Write(text []byte) (int, error) {
	b.n++
	return 0, errors.New("broken")
}

// Failed writes are counted.
func TestWriterCountsFailures(t *testing.T) {
	w := NewWriter(&broken{})
	_, err := w.Write([]byte("line\n"))
	require.NoError(t, err)
	w.Close(5 * time.Second)
	require.EqualValues(t, 1, w.Lost())
	_, err = w.Write([]byte("line\n"))
	require.ErrorIs(t, err, ErrLost)
}

// A record begins on a new line, also after another process has written a part of one, and a renamed file is left.
func TestFileHasWholeLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(path, []byte("torn"), 0o600))
	f, err := OpenFile(path)
	require.NoError(t, err)
	write := func(text string) { _, err := f.Write([]byte(text)); require.NoError(t, err) }
	write("a\n")
	write("b\n")
	require.NoError(t, os.Rename(path, path+".1"))
	write("c\n")
	require.NoError(t, f.Reopen())
	write("d\n")
	require.NoError(t, f.Close())
	_, err = f.Write([]byte("e\n"))
	require.ErrorIs(t, err, os.ErrClosed)
	old, err := os.ReadFile(path + ".1")
	require.NoError(t, err)
	require.Equal(t, "torn\na\nb\nc\n", string(old))
	next, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal([]byte("d\n"), next))
}
