package logs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
)

// File appends whole records, each one line, to a file. If only a part of a record was written, because the disk is full,
// the part is removed, or ended with a newline before the next record. Its methods are safe for concurrent use.
type File struct {
	path string

	mu   sync.Mutex
	f    *os.File
	torn bool // the file may end within a line
}

// OpenFile opens or creates a file with mode 0600.
func OpenFile(path string) (*File, error) {
	f := &File{path: path}
	return f, f.Reopen()
}

// Reopen opens the path again, after the file was renamed or removed. If it fails, records continue in the previous file.
func (f *File) Reopen() error {
	next, err := os.OpenFile(f.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.f != nil {
		_ = f.f.Close() // every record was written or has failed
	}
	f.f, f.torn = next, endsWithin(next)
	return nil
}

// endsWithin reports whether a regular file ends within a line, which another process began.
func endsWithin(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return false
	}
	var last [1]byte
	_, err = f.ReadAt(last[:], info.Size()-1)
	return err == nil && last[0] != '\n'
}

// Write appends one record, which ends with a newline. After an error, nothing of it is in the file, or a part in a line
// without the rest.
func (f *File) Write(record []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.f == nil {
		return 0, os.ErrClosed
	}
	text := record
	if f.torn {
		text = append([]byte{'\n'}, record...)
	}
	n, err := f.f.Write(text)
	if err == nil {
		f.torn = false
		return len(record), nil
	}
	if n > 0 {
		f.torn = !f.cut(text[:n])
	}
	return 0, err
}

// cut removes a part of a record from the end of the file. It fails if another process has appended since.
func (f *File) cut(part []byte) bool {
	info, err := f.f.Stat()
	at := int64(-1)
	if err == nil && info.Mode().IsRegular() {
		at = info.Size() - int64(len(part))
	}
	found := make([]byte, len(part))
	if at < 0 {
		return false
	}
	if _, err := f.f.ReadAt(found, at); err != nil && err != io.EOF || !bytes.Equal(found, part) {
		return false
	}
	return f.f.Truncate(at) == nil
}

// Close closes the file.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.f == nil {
		return nil
	}
	err := f.f.Close()
	f.f = nil
	if err != nil {
		return fmt.Errorf("close %s: %w", f.path, err)
	}
	return nil
}
