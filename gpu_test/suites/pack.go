//go:build linux

package main

import (
	"archive/zip"
	"errors"
	"io"
	"os"
)

// pack appends an archive with the files of a folder to the program at path, for gpu_test/build. The archive's offsets count
// from the beginning of the program.
func pack(folder, path string) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	w := zip.NewWriter(f)
	w.SetOffset(size)
	if err := w.AddFS(os.DirFS(folder)); err != nil {
		return err
	}
	return w.Close()
}
