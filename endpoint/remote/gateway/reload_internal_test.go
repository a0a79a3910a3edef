package gateway

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// due makes the next get check the files.
func (r *reloaded[T]) due() { r.checked = time.Time{} }

// A reload that fails is repeated until it succeeds.
func TestReloadIsRepeated(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte("a"), 0o600))
	var failing error
	r, err := newReloaded("test", slog.New(slog.DiscardHandler), func() (string, error) {
		text, err := os.ReadFile(path)
		return string(text), errors.Join(err, failing)
	}, path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte("b"), 0o600))
	failing = errors.New("too many open files")
	for range 3 {
		r.due()
		require.Equal(t, "a", r.get())
	}
	require.EqualValues(t, 3, r.failures)
	failing = nil
	r.due()
	require.Equal(t, "b", r.get())
	require.Empty(t, r.failed)
}

// A file of the same size and time is another one if its inode, mode or time of change differs.
func TestReloadFindsReplacedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, at := filepath.Join(dir, "file"), time.Now().Add(-time.Hour)
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		require.NoError(t, os.Chtimes(name, at, at))
	}
	write(path, "a")
	r, err := newReloaded("test", slog.New(slog.DiscardHandler), func() (string, error) {
		text, err := os.ReadFile(path)
		return string(text), err
	}, path)
	require.NoError(t, err)
	for name, change := range map[string]func(){
		"b": func() { write(path, "b") },
		"c": func() {
			write(path+".new", "c")
			require.NoError(t, os.Rename(path+".new", path))
		},
	} {
		time.Sleep(20 * time.Millisecond) // the resolution of the time of change
		change()
		r.due()
		require.Equal(t, name, r.get())
	}
	before := r.stamps
	require.NoError(t, os.Chmod(path, 0o640))
	require.NotEqual(t, before, r.look())
}

// Tokens stay accepted while their file is empty or truncated, and a change in it is then found.
func TestTokensSurviveATruncatedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens")
	const old, next = "0123456789abcdef-old", "0123456789abcdef-next"
	require.NoError(t, os.WriteFile(path, []byte(old+" a\n"), 0o600))
	f, err := openTokenFile(path, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	for _, text := range []string{"", "# none\n", "0123"} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		f.list.due()
		_, found := f.find(old)
		require.True(t, found, "%q", text)
	}
	require.NoError(t, os.WriteFile(path, []byte(next+" a\n"), 0o600))
	f.list.due()
	_, found := f.find(old)
	require.False(t, found)
	_, found = f.find(next)
	require.True(t, found)

	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "team#1"), []byte(old+" read-only\n"), 0o600))
	_, err = readTokens(dir)
	require.ErrorContains(t, err, "no '#'")
}
