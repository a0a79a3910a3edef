package safetensors

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// writeBuffer combines the header and small tensors into larger writes; larger data bypasses it.
const writeBuffer = 256 << 10

// Source writes the bytes of one tensor, little-endian and row-major, exactly t.Bytes of them. It is called once for
// each tensor, in the order of the file, on one goroutine.
type Source func(w io.Writer, t TensorInfo) error

// Write writes a file to w: h, which comes from [NewHeader], and then the output of source for each tensor. It borrows
// w. If source writes too little or too much, the error is [ErrLength]; errors of w and source are wrapped with the
// tensor. After an error w has received part of the file.
func Write(w io.Writer, h *Header, source Source) error {
	text, err := h.Encode()
	if err != nil {
		return err
	}
	if int64(len(text)) != h.DataOffset {
		return fmt.Errorf("%w: header of %d bytes, not %d; it was not made by NewHeader", ErrLength, len(text), h.DataOffset)
	}
	if err := h.check(); err != nil {
		return err
	}
	buffer := bufio.NewWriterSize(w, writeBuffer)
	if _, err := buffer.Write(text); err != nil {
		return fmt.Errorf("write the header: %w", err)
	}
	for _, t := range h.Tensors {
		exact := &exactWriter{w: buffer, left: t.Bytes()}
		err := source(exact, t)
		if err == nil && exact.left != 0 {
			err = fmt.Errorf("%w: %d bytes too few were written", ErrLength, exact.left)
		}
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quote(t.Name), err)
		}
	}
	if err := buffer.Flush(); err != nil {
		return fmt.Errorf("write the data: %w", err)
	}
	return nil
}

// exactWriter refuses writes beyond left bytes.
type exactWriter struct {
	w    io.Writer
	left int64
}

func (e *exactWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > e.left {
		return 0, fmt.Errorf("%w: %d bytes too many were written", ErrLength, int64(len(p))-e.left)
	}
	n, err := e.w.Write(p)
	e.left -= int64(n)
	return n, err
}

// WriteFile writes a file as [Write] does and replaces path as [ReplaceFile] does.
func WriteFile(path string, h *Header, source Source) error {
	return ReplaceFile(path, func(w io.Writer) error { return Write(w, h, source) })
}

// ReplaceFile writes a file with write and replaces path atomically. The bytes are written to a temporary file beside it,
// synced, and renamed: a process that has the old file mapped keeps its bytes. A symbolic link to a regular file, or a
// dangling one, is replaced, not followed. Any other path, or a link to one, such as /dev/stdout, is [ErrNotRegular].
// After an error, such as a full disk, the temporary file is removed. Errors name the path.
func ReplaceFile(path string, write func(w io.Writer) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}()
	mode, keep := fs.FileMode(0o666), false
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.Mode().IsRegular():
		mode, keep = info.Mode().Perm(), true
	case info.Mode()&fs.ModeSymlink == 0:
		return ErrNotRegular
	default:
		// A link to a device, a pipe or a directory means its target, which a rename would not reach.
		if target, err := os.Stat(path); err == nil && !target.Mode().IsRegular() {
			return fmt.Errorf("%w: it is a link to something else", ErrNotRegular)
		}
	}
	return replace(path, mode, keep, write)
}

// replace writes a file with write and renames it to path. With keep it gets exactly mode, regardless of the umask.
func replace(path string, mode fs.FileMode, keep bool, write func(w io.Writer) error) (err error) {
	f, err := createSibling(path, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// A second Close is harmless, and a renamed file does not get here.
			_ = f.Close()
			_ = os.Remove(f.Name()) // best effort: err is returned
		}
	}()
	if keep {
		// The file replaces one with its own permissions; the umask must not change them.
		if err := f.Chmod(mode); err != nil {
			return err
		}
	}
	if err := write(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	// Close reports what a network file system could not write.
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// createSibling creates a new file in path's directory, where a rename to path is atomic. The umask applies to mode,
// unlike in os.CreateTemp.
func createSibling(path string, mode fs.FileMode) (*os.File, error) {
	dir, base := filepath.Split(path)
	// The name must fit the file system's 255 bytes for any base.
	base = base[:min(len(base), 200)]
	for attempt := 0; ; attempt++ {
		var random [8]byte
		rand.Read(random[:]) // never fails, as of Go 1.24
		name := filepath.Join(dir, "."+base+"."+hex.EncodeToString(random[:])+".tmp")
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if !errors.Is(err, fs.ErrExist) || attempt == 100 {
			return f, err
		}
	}
}
