package driver

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const uuidText = "01234567-89ab-cdef-0123-456789abcdef"

func TestParseUUID(t *testing.T) {
	t.Parallel()
	want := UUID{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef}
	for _, s := range []string{uuidText, "GPU-" + uuidText, "MIG-" + uuidText, uuidText + "\n", " " + strings.ToUpper(uuidText)} {
		u, err := ParseUUID(s)
		require.NoError(t, err, s)
		require.Equal(t, want, u)
		require.Equal(t, uuidText, u.String())
		require.False(t, u.IsZero())
	}
	require.True(t, UUID{}.IsZero())
	for _, s := range []string{
		"", "-", uuidText[1:], uuidText + "0", "GPU-", "CPU-" + uuidText, strings.ReplaceAll(uuidText, "-", ""),
		"0123456789ab-cdef-0123-456789abcdef----", "g" + uuidText[1:], uuidText[:8] + "_" + uuidText[9:], "0123456-789ab-cdef-0123-456789abcdef",
		"01234567-89ab-cdef-0123-45678-abcdef",
	} {
		u, err := ParseUUID(s)
		require.ErrorIs(t, err, ErrInvalid, "%q", s)
		require.True(t, u.IsZero())
	}
}

func FuzzParseUUID(f *testing.F) {
	f.Add(uuidText)
	f.Add("GPU-" + uuidText)
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseUUID(s)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		again, err := ParseUUID(u.String())
		require.NoError(t, err)
		require.Equal(t, u, again)
	})
}

func TestParseDevice(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]Info{
		"host":      {Type: CPU},
		"cpu":       {Type: CPU},
		"host:0":    {Type: CPU},
		" CPU ":     {Type: CPU},
		"cuda":      {Type: CUDA},
		"cuda:0":    {Type: CUDA},
		"CUDA:7":    {Type: CUDA, Index: 7},
		"cuda:007":  {Type: CUDA, Index: 7},
		"cuda:1000": {Type: CUDA, Index: 1000},
	} {
		kind, index, err := ParseDevice(s)
		require.NoError(t, err, s)
		require.Equal(t, want, Info{Type: kind, Index: index}, s)
	}
	for _, s := range []string{"", ":", "gpu", "host:1", "cuda:", "cuda:-1", "cuda:+1", "cuda:x", "cuda:1:2", "cuda: 1", "cuda:65536", "cuda0", "cuda:0x1"} {
		_, _, err := ParseDevice(s)
		require.ErrorIs(t, err, ErrInvalid, "%q", s)
	}
}

func FuzzParseDevice(f *testing.F) {
	f.Add("host")
	f.Add("cuda:3")
	f.Fuzz(func(t *testing.T, s string) {
		kind, index, err := ParseDevice(s)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		again, n, err := ParseDevice(Info{Type: kind, Index: index}.String())
		require.NoError(t, err)
		require.Equal(t, kind, again)
		require.Equal(t, index, n)
	})
}

func TestInfoString(t *testing.T) {
	t.Parallel()
	require.Equal(t, "host", Info{Type: CPU}.String())
	require.Equal(t, "cuda:2", Info{Type: CUDA, Index: 2}.String())
	require.Equal(t, "cpu", CPU.String())
	require.Equal(t, "device type 10", DeviceType(10).String())
}

func TestHandleValidate(t *testing.T) {
	t.Parallel()
	file := os.Stdin
	blob := make([]byte, 64)
	for _, h := range []Handle{
		{Kind: Memfd, File: file},
		{Kind: CUDAFD, File: file, Bytes: math.MaxInt64},
		{Kind: CUDAIPC, Blob: blob, Bytes: 1, Offset: math.MaxInt64 - 1},
		{Kind: CUDAFabric, Blob: blob},
	} {
		require.NoError(t, h.Validate(), "%+v", h)
		require.Equal(t, h.File != nil, h.Kind.HasFile())
	}
	for name, h := range map[string]Handle{
		"negative bytes":        {Kind: Memfd, File: file, Bytes: -1},
		"negative offset":       {Kind: Memfd, File: file, Offset: -1},
		"sum overflows":         {Kind: Memfd, File: file, Bytes: 1, Offset: math.MaxInt64},
		"no descriptor":         {Kind: Memfd},
		"blob and descriptor":   {Kind: CUDAFD, File: file, Blob: []byte{1}},
		"no blob":               {Kind: CUDAIPC},
		"short blob":            {Kind: CUDAIPC, Blob: blob[1:]},
		"long blob":             {Kind: CUDAFabric, Blob: append(blob, 0)},
		"descriptor and a blob": {Kind: CUDAIPC, Blob: blob, File: file},
	} {
		require.ErrorIs(t, h.Validate(), ErrHandle, name)
	}
	for _, kind := range []HandleKind{"", "MEMFD", "memfd "} {
		err := Handle{Kind: kind, File: file}.Validate()
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.NotErrorIs(t, err, ErrHandle)
		require.Equal(t, -1, kind.BlobBytes())
	}
}

func TestHandleClose(t *testing.T) {
	t.Parallel()
	require.NoError(t, Handle{Kind: CUDAIPC}.Close())
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	require.NoError(t, Handle{File: r}.Close())
	_, err = r.Stat()
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestErrors(t *testing.T) {
	t.Parallel()
	var op error = &OpError{Op: "alloc", Device: "cuda:0", Err: fmt.Errorf("%w: 5 bytes", ErrOutOfMemory)}
	require.Equal(t, "cuda:0: alloc: out of memory: 5 bytes", op.Error())
	require.ErrorIs(t, op, ErrOutOfMemory)
	require.NotErrorIs(t, op, io.EOF)

	unsupported := fmt.Errorf("open: %w", &UnsupportedError{Feature: "fd export", Requires: "a driver from 2020"})
	require.Equal(t, "open: fd export is not supported: it needs a driver from 2020", unsupported.Error())
	require.ErrorIs(t, unsupported, errors.ErrUnsupported)
	require.NotErrorIs(t, unsupported, ErrHandle)
	// The reason is printed beside the requirement.
	require.Equal(t, "memory of device 7 is not supported: this process has not opened it; it needs that device among the Devices",
		(&UnsupportedError{Feature: "memory of device 7", Reason: "this process has not opened it", Requires: "that device among the Devices"}).Error())
	require.Equal(t, "CUDA is not supported: there is no CUDA device", (&UnsupportedError{Feature: "CUDA", Reason: "there is no CUDA device"}).Error())
	require.Equal(t, "it is not supported", (&UnsupportedError{Feature: "it"}).Error())
	var as *UnsupportedError
	require.ErrorAs(t, unsupported, &as)
	require.Equal(t, "fd export", as.Feature)
}

// Registered pools are asked to free memory after an allocation was refused, and only then.
func TestReclaim(t *testing.T) {
	t.Parallel()
	var r Reclaim
	require.False(t, r.RetryAfterReclaim(10, ErrOutOfMemory), "nobody is there")
	var asked []int64
	gives := true
	remove := r.OnRefused(func(n int64) bool { asked = append(asked, n); return gives })
	require.True(t, r.RetryAfterReclaim(10, fmt.Errorf("alloc: %w", ErrOutOfMemory)))
	require.True(t, r.RetryAfterReclaim(20, &OpError{Op: "alloc", Err: syscall.EMFILE}))
	require.False(t, r.RetryAfterReclaim(30, ErrInvalid))
	gives = false
	require.False(t, r.RetryAfterReclaim(40, ErrOutOfMemory))
	remove()
	require.False(t, r.RetryAfterReclaim(50, ErrOutOfMemory))
	require.Equal(t, []int64{10, 20, 40}, asked)
}
