package safetensors

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
)

// ErrOutside means that a name, or a link behind it, leads out of the folder that [Files] is limited to.
var ErrOutside = errors.New("the file is not below the folder; copy it there, and make links relative")

// Files opens the files of models. The zero value opens any file of the process.
type Files struct {
	// Root limits the files to a folder. Names are relative to it. Each file is found and opened in one step, so a link
	// that is made meanwhile cannot lead out. Borrowed until the last use of the models. nil means no limit.
	Root *os.Root
}

// Stat describes a file, or the file that a link leads to. Errors are those of [os.Stat], and [ErrOutside].
func (f Files) Stat(name string) (fs.FileInfo, error) {
	if f.Root == nil {
		return os.Stat(name)
	}
	info, err := f.Root.Stat(name)
	return info, f.outside(err)
}

// ReadDir lists a folder, sorted by name. Errors are those of [os.ReadDir], and [ErrOutside].
func (f Files) ReadDir(name string) ([]fs.DirEntry, error) {
	if f.Root == nil {
		return os.ReadDir(name)
	}
	folder, err := f.open(name)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	entries, err := folder.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// Open opens a regular file, or a link to one. The description is that of the open file. Others are [ErrNotRegular]: opening a
// pipe would wait for a writer. The caller closes the file.
func (f Files) Open(name string) (*os.File, fs.FileInfo, error) {
	info, err := f.Stat(name)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s: %w", name, ErrNotRegular)
	}
	file, err := f.open(name)
	if err != nil {
		return nil, nil, err
	}
	info, err = file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", name, ErrNotRegular)
	}
	if err != nil {
		file.Close() // nothing was written
		return nil, nil, err
	}
	return file, info, nil
}

// open opens a file or folder.
func (f Files) open(name string) (*os.File, error) {
	if f.Root == nil {
		return os.Open(name)
	}
	file, err := f.Root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe may have replaced it
	return file, f.outside(err)
}

// outside adds [ErrOutside] to the error of the root for a name that leads out. That error has no exported value; errors of
// the system have a number.
func (f Files) outside(err error) error {
	var failed *fs.PathError
	var number syscall.Errno
	if !errors.As(err, &failed) || errors.As(err, &number) || errors.Is(err, fs.ErrInvalid) || errors.Is(err, fs.ErrClosed) {
		return err
	}
	return fmt.Errorf("%s: %w", failed.Path, ErrOutside)
}
