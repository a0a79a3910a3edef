package safetensors

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// ErrChanged means that a file was written, truncated or replaced after the model was opened.
var ErrChanged = errors.New("the file changed while it was read; load it again, and write new files under another name and rename them")

// original is a file or index of a model as it was opened.
type original struct {
	path string
	info fs.FileInfo
	stat func() (fs.FileInfo, error) // returns its state now
}

// statter is implemented by *os.File.
type statter interface{ Stat() (fs.FileInfo, error) }

// record adds a file that was opened by its path. The path is compared, because another file may have replaced it. A process
// that must not use the path compares the open file.
func (m *Model) record(path string, info fs.FileInfo, f statter) {
	m.originals = append(m.originals, original{path, info, func() (fs.FileInfo, error) {
		now, err := m.disk.Stat(path)
		if errors.Is(err, fs.ErrPermission) {
			return f.Stat()
		}
		return now, err
	}})
}

// recordReader adds the file behind a caller's reader, if it has a state.
func (m *Model) recordReader(path string, r any) {
	if f, ok := r.(statter); ok {
		if info, err := f.Stat(); err == nil {
			m.originals = append(m.originals, original{path, info, f.Stat})
		}
	}
}

// Unchanged returns [ErrChanged], wrapped with the path, if a file or the index is not the one that was opened any more, or
// has another size, or was written to. Call it after the tensors were read: without an error they are those of one state of
// the files. It compares the inode, the size, and the times of the last modification and change. A model whose readers are
// not files is unchanged.
func (m *Model) Unchanged() error {
	for _, o := range m.originals {
		now, err := o.stat()
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w: it was removed", o.path, ErrChanged)
		}
		if err != nil {
			return err
		}
		switch {
		case !os.SameFile(o.info, now):
			return fmt.Errorf("%s: %w: another file replaced it", o.path, ErrChanged)
		case o.info.Size() != now.Size():
			return fmt.Errorf("%s: %w: it had %d bytes and has %d", o.path, ErrChanged, o.info.Size(), now.Size())
		case stampOf(o.info) != stampOf(now):
			return fmt.Errorf("%s: %w: it was written to", o.path, ErrChanged)
		}
	}
	return nil
}

// Fingerprint identifies the files and the index as they were opened, without their content: it changes if another file is
// used, or if one is replaced or written to. It is empty for a model whose readers are not files.
func (m *Model) Fingerprint() string {
	if len(m.originals) < len(m.Files) {
		return ""
	}
	sum := sha256.New()
	for _, o := range m.originals {
		fmt.Fprintf(sum, "%q %d %s\n", o.path, o.info.Size(), stampOf(o.info))
	}
	return hex.EncodeToString(sum.Sum(nil))
}
