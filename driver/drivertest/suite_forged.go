package drivertest

import (
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
)

// requireRefused checks that the handle is refused with the right error, for both kinds of mapping.
func requireRefused(t *testing.T, p process, h driver.Handle) {
	t.Helper()
	for _, opts := range []driver.ImportOptions{{}, {Writable: true}} {
		m, err := p.importHandle(h, opts)
		if m != nil {
			m.Close()
		}
		require.Nil(t, m)
		if !errors.Is(err, driver.ErrHandle) && !errors.Is(err, errors.ErrUnsupported) {
			t.Fatalf("writable %v: neither driver.ErrHandle nor errors.ErrUnsupported but: %v", opts.Writable, err)
		}
	}
}

func testForged(t *testing.T, e *env, p process) {
	granularity := e.Info().Granularity
	m, data := e.filled(t, granularity+10, 25)
	genuine := export(t, m)
	allocated := 2 * granularity // the allocation behind granularity+10 bytes
	blob := make([]byte, 64)
	for _, test := range []struct {
		name  string
		forge func(h *driver.Handle)
	}{
		{"bytes past the allocation", func(h *driver.Handle) { h.Bytes = allocated + 1 }},
		{"offset past the allocation", func(h *driver.Handle) { h.Offset += allocated }},
		{"offset and bytes past the allocation", func(h *driver.Handle) { h.Offset += granularity; h.Bytes = granularity + 1 }},
		{"huge bytes", func(h *driver.Handle) { h.Bytes = math.MaxInt64 - h.Offset }},
		{"huge offset", func(h *driver.Handle) { h.Offset, h.Bytes = math.MaxInt64, 0 }},
		{"sum overflows", func(h *driver.Handle) { h.Offset, h.Bytes = math.MaxInt64, 2 }},
		{"negative bytes", func(h *driver.Handle) { h.Bytes = -1 }},
		{"negative offset", func(h *driver.Handle) { h.Offset = -1 }},
		{"other device", func(h *driver.Handle) { h.Device[3] ^= 1 }},
		{"no device", func(h *driver.Handle) { h.Device = driver.UUID{} }},
		{"no kind", func(h *driver.Handle) { h.Kind = "" }},
		{"unknown kind", func(h *driver.Handle) { h.Kind = "memfd2" }},
		{"other kind with a descriptor", func(h *driver.Handle) { h.Kind = otherKind(h.Kind) }},
		{"other kind with a blob", func(h *driver.Handle) {
			*h = driver.Handle{Kind: driver.CUDAFabric, Device: h.Device, Bytes: 1, Blob: blob}
		}},
		{"short blob", func(h *driver.Handle) {
			h.Blob = []byte{1}
			if len(genuine.Blob) > 0 {
				h.Blob = genuine.Blob[1:]
			}
		}},
		{"long blob", func(h *driver.Handle) { h.Blob = append(append([]byte{}, h.Blob...), 0) }},
		{"no blob and no descriptor", func(h *driver.Handle) { h.File, h.Blob = nil, nil }},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := genuine
			test.forge(&h)
			requireRefused(t, p, h)
		})
	}
	// The genuine memory is unaffected.
	requireBytes(t, imported(t, p, genuine, driver.ImportOptions{}), data)
}

// otherKind returns a kind of another device with the same parts as k.
func otherKind(k driver.HandleKind) driver.HandleKind {
	switch k {
	case driver.Memfd:
		return driver.CUDAFD
	case driver.CUDAFD:
		return driver.Memfd
	}
	return driver.Memfd
}

// testWrongDescriptors passes descriptors of other objects with a valid description.
func testWrongDescriptors(t *testing.T, e *env, p process) {
	h := export(t, e.alloc(t, 10))
	if h.File == nil {
		t.Skipf("handles of kind %s carry no descriptor", h.Kind)
	}
	pipeReader, pipeWriter, err := os.Pipe()
	require.NoError(t, err)
	defer pipeReader.Close()
	defer pipeWriter.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	require.NoError(t, err)
	defer null.Close()
	directory, err := os.Open(t.TempDir())
	require.NoError(t, err)
	defer directory.Close()
	for name, file := range map[string]*os.File{
		"pipe":      pipeReader,
		"device":    null,
		"directory": directory,
		"file":      sourceFile(t, make([]byte, 1<<16)),
	} {
		t.Run(name, func(t *testing.T) {
			wrong := h
			wrong.File = file
			requireRefused(t, p, wrong)
		})
	}
	if _, ok := p.(local); !ok {
		return // a closed descriptor cannot be sent
	}
	closed := export(t, e.alloc(t, 10))
	require.NoError(t, closed.Close())
	requireRefused(t, p, closed)
}

// closedOnExec reports whether the descriptor is close-on-exec, if the system reports it.
func closedOnExec(t *testing.T, f *os.File) bool {
	t.Helper()
	raw, err := f.SyscallConn()
	require.NoError(t, err)
	closed := true
	require.NoError(t, raw.Control(func(fd uintptr) { closed = closeOnExecFlag(fd) }))
	return closed
}

// closeOnExecFlag returns true on systems without /proc.
func closeOnExecFlag(fd uintptr) bool {
	text, err := os.ReadFile("/proc/self/fdinfo/" + strconv.FormatUint(uint64(fd), 10))
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(text)) {
		if flags, ok := strings.CutPrefix(line, "flags:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(flags), 8, 64)
			return err != nil || n&0o2000000 != 0 // O_CLOEXEC, include/uapi/asm-generic/fcntl.h
		}
	}
	return true
}
