// Package torchsave reads and writes torch.save files with plain tensors. It executes nothing.
//
//	file, err := torchsave.Read(r, size, torchsave.Limits{})
//	entry, err := file.Tensor()       // a description, nothing is allocated yet
//	t, err := file.Load(dev, entry)   // the elements
//
// A torch.save file is a zip archive that contains a pickle, which is a program, and the storages that the pickle
// refers to. PyTorch runs the program. This package interprets only the instructions for plain tensors, numbers,
// strings, lists, tuples and dictionaries. Functions are looked up in a table of eight, which describe a tensor or an
// ordered dictionary. Other instructions and functions cause an error that names them.
//
// The package refuses the format used before PyTorch 1.6, which is not a zip archive. It also refuses sparse tensors,
// quantized tensors and tensors with Python attributes.
package torchsave

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Limits limits the memory used for reading a file, without the elements. Zero fields mean the defaults.
type Limits struct {
	// PickleBytes limits the size of the pickle. The default is 16 MiB.
	PickleBytes int64
	// Objects limits the number of values in the pickle, including those in lists and dictionaries. The default is 1
	// Mi. A tensor of a state dict counts as about ten.
	Objects int
	// DirectoryBytes limits the directory of the archive. The default is 8 MiB, enough for 80,000 storages.
	DirectoryBytes int64
}

func (l Limits) withDefaults() Limits {
	if l.PickleBytes == 0 {
		l.PickleBytes = 16 << 20
	}
	if l.Objects == 0 {
		l.Objects = 1 << 20
	}
	if l.DirectoryBytes == 0 {
		l.DirectoryBytes = 8 << 20
	}
	return l
}

// File is an opened torch.save file, without its elements.
type File struct {
	// Root is the saved value: nil, a bool, an int64, a float64, a string, a *List, a *Dict or an *Entry.
	Root any

	source   io.ReaderAt
	storages map[string]*zip.File // by key
}

// Read reads the description of a file of size bytes. It borrows r, which Load also uses. Errors are ErrFormat,
// ErrRefused, ErrLimit and those of r.
func Read(r io.ReaderAt, size int64, limits Limits) (*File, error) {
	limits = limits.withDefaults()
	archive, err := readDirectory(r, size, limits.DirectoryBytes)
	if err != nil {
		return nil, err
	}
	f := &File{source: r, storages: make(map[string]*zip.File)}
	var pickle *zip.File
	for _, entry := range archive.File {
		if path.Base(entry.Name) == "data.pkl" && strings.Count(entry.Name, "/") <= 1 {
			if pickle != nil {
				return nil, fmt.Errorf("%w: two pickles", ErrFormat)
			}
			pickle = entry
		}
	}
	if pickle == nil {
		return nil, fmt.Errorf("%w: the archive has no data.pkl", ErrFormat)
	}
	prefix := strings.TrimSuffix(pickle.Name, "data.pkl")
	for _, entry := range archive.File {
		if key, ok := strings.CutPrefix(entry.Name, prefix+"data/"); ok {
			f.storages[key] = entry
		}
		if entry.Name == prefix+"byteorder" {
			if order, err := f.read(entry, 16); err != nil || string(order) != "little" {
				return nil, fmt.Errorf("%w: byte order %q", ErrFormat, order)
			}
		}
	}
	code, err := f.read(pickle, limits.PickleBytes)
	if err != nil {
		return nil, err
	}
	if f.Root, err = interpret(code, limits.Objects); err != nil {
		return nil, err
	}
	return f, nil
}

// readDirectory reads the directory with archive/zip, limited to limit bytes.
func readDirectory(r io.ReaderAt, size, limit int64) (*zip.Reader, error) {
	bounded := &boundedReader{r: r, left: limit + 128<<10} // archive/zip searches for the end of the archive in the last 65 KiB, twice
	archive, err := zip.NewReader(bounded, size)
	switch {
	case bounded.left < 0:
		return nil, fmt.Errorf("%w: a directory of more than %d bytes", ErrLimit, limit)
	case errors.Is(err, zip.ErrFormat), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%w: not a zip archive (PyTorch before 1.6 used another format)", ErrFormat)
	case err != nil:
		return nil, err
	}
	bounded.left = math.MaxInt64 // later reads are headers of single entries
	return archive, nil
}

// boundedReader fails after left bytes were read in total.
type boundedReader struct {
	r    io.ReaderAt
	left int64
}

func (b *boundedReader) ReadAt(p []byte, off int64) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, ErrLimit
	}
	return b.r.ReadAt(p, off)
}

// offset returns the offset of an entry's data in the file.
func (f *File) offset(entry *zip.File) (int64, error) {
	if entry.Method != zip.Store || entry.CompressedSize64 != entry.UncompressedSize64 {
		return 0, fmt.Errorf("%w: %q is compressed", ErrFormat, entry.Name)
	}
	offset, err := entry.DataOffset()
	if err != nil {
		return 0, fmt.Errorf("%w: %q: %w", ErrFormat, entry.Name, err)
	}
	return offset, nil
}

func (f *File) read(entry *zip.File, limit int64) ([]byte, error) {
	offset, err := f.offset(entry)
	if err != nil {
		return nil, err
	}
	if entry.UncompressedSize64 > uint64(limit) {
		return nil, fmt.Errorf("%w: %q has %d bytes, of %d", ErrLimit, entry.Name, entry.UncompressedSize64, limit)
	}
	return io.ReadAll(io.NewSectionReader(f.source, offset, int64(entry.UncompressedSize64)))
}

// Load reads the elements of e, which must be from this file, into a new tensor on dev, which the caller owns. Strides
// are preserved. The error is ErrFormat if the file does not contain the described elements, otherwise an error of dev
// or of the file's reader.
func (f *File) Load(dev driver.Device, e *Entry) (*tensor.Tensor, error) {
	entry, ok := f.storages[e.Storage]
	if !ok || entry.UncompressedSize64 != uint64(e.StorageBytes) {
		return nil, fmt.Errorf("%w: storage %q of %d bytes is missing", ErrFormat, e.Storage, e.StorageBytes)
	}
	offset, err := f.offset(entry)
	if err != nil {
		return nil, err
	}
	extent, err := e.Spec.Extent()
	if err != nil {
		return nil, err
	}
	memory, err := dev.Alloc(extent)
	if err != nil {
		return nil, err
	}
	storage := tensor.NewStorage(memory)
	defer storage.Close()
	if err := copyInto(memory, io.NewSectionReader(f.source, offset+e.Spec.ByteOffset, extent)); err != nil {
		return nil, err
	}
	spec := e.Spec.Clone()
	spec.ByteOffset = 0
	return tensor.New(storage, spec)
}

// copyInto fills memory from r, which has the same size. It copies once if the memory is addressable by the CPU.
func copyInto(memory driver.Memory, r *io.SectionReader) error {
	if mapped, ok := memory.(driver.Mapped); ok {
		data, unpin, err := mapped.Pin(true)
		if err != nil {
			return err
		}
		defer unpin()
		_, err = io.ReadFull(r, data[:r.Size()])
		return noEOF(err)
	}
	piece := make([]byte, min(r.Size(), 4<<20))
	for at := int64(0); at < r.Size(); {
		n, err := io.ReadFull(r, piece[:min(int64(len(piece)), r.Size()-at)])
		if err != nil {
			return noEOF(err)
		}
		if _, err := memory.WriteAt(piece[:n], at); err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends early", ErrFormat)
	}
	return err
}

// Errors of this package, wrapped with details.
var (
	// ErrFormat reports a file that is damaged or not from torch.save.
	ErrFormat = admission.NewError(admission.Invalid, "not a file of torch.save")
	// ErrRefused reports a file with more than plain tensors: it uses an unsupported function or instruction. Nothing
	// was executed.
	ErrRefused = admission.NewError(admission.Invalid, "more than plain tensors")
	// ErrLimit reports a file over one of the Limits.
	ErrLimit = admission.NewError(admission.Limit, "limit reached")
)
