package safetensors

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// large returns the header of a file of about 8 MiB.
func large(t *testing.T) *Header {
	h, err := NewHeader([]TensorInfo{info("w", tensor.Uint8, 8<<20)}, nil)
	require.NoError(t, err)
	return h
}

func TestWriteToFullDevice(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full: ", err)
	}
	defer full.Close()
	require.ErrorIs(t, Write(full, large(t), letters), syscall.ENOSPC)
	small, err := NewHeader(nil, nil)
	require.NoError(t, err)
	require.ErrorIs(t, Write(full, small, letters), syscall.ENOSPC, "an error of the last flush")
	require.ErrorIs(t, WriteFile("/dev/full", small, letters), ErrNotRegular, "a device is not replaced")
}

func TestWriteFileDiskFull(t *testing.T) {
	drivertest.Leaks(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("cannot mount a small tmpfs: ", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	path := filepath.Join(dir, "m")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	err := WriteFile(path, large(t), letters)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, `tensor "w"`)
	requireOld(t, path)
}

const limitedEnv = "SAFETENSORS_TEST_LIMITED"

// TestWriteFileSizeLimit writes in a separate process, because the limit cannot be removed.
func TestWriteFileSizeLimit(t *testing.T) {
	if path := os.Getenv(limitedEnv); path != "" {
		signal.Ignore(syscall.SIGXFSZ)
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 20, Max: 1 << 20}))
		require.ErrorIs(t, WriteFile(path, large(t), letters), syscall.EFBIG)
		return
	}
	path := filepath.Join(t.TempDir(), "m")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	cmd := exec.Command(os.Args[0], "-test.run=^TestWriteFileSizeLimit$")
	cmd.Env = append(os.Environ(), limitedEnv+"="+path)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	requireOld(t, path)
}

func TestWriteFileOverMappedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "m")
	old := bytes.Repeat([]byte("old."), 4096)
	require.NoError(t, os.WriteFile(path, old, 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	mapped, err := syscall.Mmap(int(f.Fd()), 0, len(old), syscall.PROT_READ, syscall.MAP_SHARED)
	require.NoError(t, err)
	defer syscall.Munmap(mapped)

	h, err := NewHeader([]TensorInfo{info("w", tensor.Uint8, 1)}, nil)
	require.NoError(t, err)
	require.NoError(t, WriteFile(path, h, letters))
	require.Equal(t, old, mapped)
	m, err := Open(path)
	require.NoError(t, err)
	defer m.Close()
	data, err := io.ReadAll(m.Reader(m.Tensors[0]))
	require.NoError(t, err)
	require.Equal(t, "w", string(data))
}

func TestOpenRefusesPipes(t *testing.T) {
	drivertest.Leaks(t)
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	_, err := Open(path)
	require.ErrorIs(t, err, ErrNotRegular)
	_, err = Open("/dev/zero")
	require.ErrorIs(t, err, ErrNotRegular)
}
