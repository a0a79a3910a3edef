package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// folder is a model in this host's file system.
type folder struct {
	path string
}

func openFolder(address, path string) (Place, error) {
	if strings.HasPrefix(address, "file://") && !filepath.IsAbs(path) {
		return nil, fmt.Errorf("the source %q is not file:///PATH, with three slashes", address)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("the source %q: %w", address, err)
	}
	return folder{path}, nil
}

// Name implements Place.
func (f folder) Name() string { return baseName(filepath.ToSlash(f.path)) }

// Pinned implements Place.
func (folder) Pinned() bool { return false }

// Close implements Place.
func (folder) Close() {}

// Find implements Place.
func (f folder) Find(context.Context) (*Model, error) {
	m, err := openFiles(f.path)
	var file *fs.PathError
	if err != nil && !errors.As(err, &file) {
		err = fmt.Errorf("%w: %w", ErrAnswer, err)
	}
	if err != nil {
		return nil, err
	}
	m.Source = "file://" + filepath.ToSlash(f.path) + "@" + identityOf(m.Files)
	return m, nil
}

// openFiles opens the files of the model at a path.
func openFiles(path string) (*Model, error) {
	opened, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	m := &Model{close: opened.Close}
	if opened.Index != nil {
		if m.Index, err = opened.Index.Encode(); err != nil {
			opened.Close()
			return nil, err
		}
	}
	for _, one := range opened.Files {
		file, ok := one.Source().(*os.File)
		if !ok {
			opened.Close()
			return nil, fmt.Errorf("%s: %w", one.Path, fs.ErrInvalid)
		}
		f, err := openedFile(one.Path, file)
		if err != nil {
			opened.Close()
			return nil, err
		}
		m.Files = append(m.Files, f)
	}
	return m, nil
}

// openedFile describes an open file. The caller closes the file.
func openedFile(path string, file *os.File) (*File, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	return &File{
		Path: path, Bytes: info.Size(), Identity: fmt.Sprintf("%s %d %d", path, info.Size(), info.ModTime().UnixNano()),
		Open: func(_ context.Context, begin, end int64) (io.ReadCloser, error) {
			return io.NopCloser(io.NewSectionReader(file, begin, end-begin)), nil
		},
		Unchanged: func() error {
			now, err := file.Stat()
			if err == nil && (now.Size() != info.Size() || !now.ModTime().Equal(info.ModTime())) {
				err = fmt.Errorf("%s: %w: the file was written to during the transfer", path, ErrChanged)
			}
			return err
		},
	}, nil
}
