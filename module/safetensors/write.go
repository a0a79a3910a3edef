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

// writeBuffer gathers the header and small tensors into larger writes; what is larger goes past it.
const writeBuffer = 256 << 10

// Source writes the bytes of one tensor, little-endian and row-major, exactly t.Bytes of them. It is called once a
// tensor, in the order of the file, from one goroutine.
type Source func(w io.Writer, t TensorInfo) error

// Write writes a file to w: h, which comes from [NewHeader], and then what source writes for each tensor. It borrows w.
// A tensor whose source writes too little or too much fails with [ErrLength]; errors of w and source come wrapped with
// the tensor. After an error w holds a part of the file.
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

// exactWriter refuses what goes beyond left bytes.
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

// WriteFile writes a file as [Write] does, so that path is either the whole new file or what it was before. The bytes
// go to a temporary file beside it, are synced, and take the name by a rename: a process that has the old file mapped
// keeps its bytes. A symbolic link to a regular file, or to nothing, is replaced, not followed. A path that is
// something else, or a link to something else, such as /dev/stdout, fails with [ErrNotRegular]. On any error, a full
// disk among them, the temporary file is removed. Errors name the path.
func WriteFile(path string, h *Header, source Source) (err error) {
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
		// A link to a device, a pipe or a directory is meant for what is behind it, which a rename would not reach.
		if target, err := os.Stat(path); err == nil && !target.Mode().IsRegular() {
			return fmt.Errorf("%w: it is a link to something else", ErrNotRegular)
		}
	}
	return replace(path, mode, keep, func(w io.Writer) error { return Write(w, h, source) })
}

// replace puts a file with what write writes in the place of path. With keep it gets just that mode, whatever the
// umask.
func replace(path string, mode fs.FileMode, keep bool, write func(w io.Writer) error) (err error) {
	f, err := createSibling(path, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// Close a second time is harmless, and a file that is gone by rename is not reached here.
			_ = f.Close()
			_ = os.Remove(f.Name()) // err says what went wrong
		}
	}()
	if keep {
		// The file replaces one that has permissions of its own; the umask must not take any away.
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

// createSibling makes a new file in path's directory, where a rename to path is atomic. The umask applies to mode,
// which os.CreateTemp would not give.
func createSibling(path string, mode fs.FileMode) (*os.File, error) {
	dir, base := filepath.Split(path)
	// The name has to fit the file system's 255 bytes whatever the base is.
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
