package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ErrForeignFormat is matched by every [FormatError].
var ErrForeignFormat = errors.New("not a safetensors file")

// FormatError is a file of another format, detected by its first bytes. It matches errors.Is for [ErrForeignFormat] and
// for the violated rule of the format.
type FormatError struct {
	// Format is the detected format, such as "GGUF".
	Format string
	// Advice is the remedy, in one clause.
	Advice string
	// File is the file's name if the opened path is a directory, otherwise empty.
	File string
	// Expected is the format that belongs here if it is not safetensors, such as "an index".
	Expected string
	// Err is the violated rule, such as [ErrHeaderTooLarge].
	Err error
}

// Error returns the format and the remedy.
func (e *FormatError) Error() string {
	expected := cmp.Or(e.Expected, "safetensors")
	text := "this is " + e.Format + ", not " + expected + ": " + e.Advice
	if e.File != "" {
		return e.Err.Error() + ": " + e.File + " is " + e.Format + ": " + e.Advice
	}
	return text
}

// Unwrap returns the violated rule.
func (e *FormatError) Unwrap() error { return e.Err }

// Is reports whether target is [ErrForeignFormat].
func (e *FormatError) Is(target error) bool { return target == ErrForeignFormat }

const (
	adviceTorch    = "convert it with safetensors.torch.save_file, or use the model's safetensors files"
	adviceNumPy    = "convert it with safetensors.numpy.save_file"
	adviceDownload = "download the file itself"
	adviceUnpack   = "unpack it first"
)

// magics lists formats that begin with fixed bytes.
var magics = []struct{ prefix, format, advice string }{
	{"GGUF", "GGUF (llama.cpp)", "load it with module.Load or sharedtensor serve, which read GGUF, or use the model's safetensors files"},
	{"lmgg", "GGML (llama.cpp)", "use the model's safetensors files"},
	{"tjgg", "GGML (llama.cpp)", "use the model's safetensors files"},
	{"fmgg", "GGML (llama.cpp)", "use the model's safetensors files"},
	{"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19", "a PyTorch checkpoint (legacy pickle)", adviceTorch},
	{"\x93NUMPY", "a NumPy array (npy)", adviceNumPy},
	{"\x89HDF\r\n\x1a\n", "HDF5 (Keras, h5py)", "convert it: read it with h5py and write it with safetensors.numpy.save_file"},
	{"version https://git-lfs.github.com/spec/", "a git-lfs pointer, which stands for the file", "run git lfs pull, or " + adviceDownload},
	{"\x1f\x8b", "gzip", "unpack it first: gunzip"},
	{"\x28\xb5\x2f\xfd", "zstd", "unpack it first: unzstd"},
	{"\xfd7zXZ\x00", "xz", "unpack it first: unxz"},
	{"BZh", "bzip2", "unpack it first: bunzip2"},
	{"7z\xbc\xaf\x27\x1c", "a 7z archive", adviceUnpack},
}

// sniffBytes is the number of bytes examined.
const sniffBytes = 512

// sniff detects the format of a file of size bytes that violated a rule of safetensors. It returns broken if the format
// is unknown.
func sniff(r io.ReaderAt, size int64, broken error) error {
	head := make([]byte, max(0, min(sniffBytes, size)))
	if n, err := r.ReadAt(head, 0); n < len(head) && err != nil {
		return broken
	}
	if looksRight(head) {
		return broken
	}
	if format, advice := foreign(head); format != "" {
		return &FormatError{Format: format, Advice: advice, Err: broken}
	}
	return broken
}

// looksRight reports whether the file begins like a safetensors file; then it is a damaged one.
func looksRight(head []byte) bool {
	return len(head) > prefixBytes && head[prefixBytes] == '{' && binary.LittleEndian.Uint64(head) <= MaxHeaderBytes
}

// foreign returns the format of a file that begins with head, or "".
func foreign(head []byte) (format, advice string) {
	for _, m := range magics {
		if bytes.HasPrefix(head, []byte(m.prefix)) {
			return m.format, m.advice
		}
	}
	switch {
	case len(head) == 0:
		return "an empty file", adviceDownload + "; this download did not begin"
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return zipped(head)
	case len(head) > 8 && string(head[4:8]) == "TFL3":
		return "a TensorFlow Lite model", "convert it from the model that it was made of"
	case len(head) > 262 && string(head[257:262]) == "ustar":
		return "a tar archive", adviceUnpack + ": tar xf"
	case len(head) > 2 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5:
		return "a Python pickle", "load it where you trust it, and write it with safetensors.torch.save_file"
	case onnx(head):
		return "an ONNX model", "convert its initializers: read it with onnx.numpy_helper and write it with safetensors.numpy.save_file"
	case len(head) >= 64 && len(bytes.Trim(head, "\x00")) == 0:
		return "zeros, as of a download that did not finish", adviceDownload + " again"
	}
	return text(head)
}

// zipped examines the name of a zip archive's first entry.
func zipped(head []byte) (format, advice string) {
	name := ""
	if len(head) > 30 {
		n := min(int(binary.LittleEndian.Uint16(head[26:])), len(head)-30)
		name = string(head[30 : 30+n])
	}
	switch {
	case strings.HasSuffix(name, ".npy"):
		return "NumPy arrays (npz)", adviceNumPy
	case strings.HasSuffix(name, ".pkl"), strings.HasSuffix(name, "/version"), strings.HasSuffix(name, "/byteorder"),
		strings.HasSuffix(name, "/.format_version"), strings.Contains(name, "/data/"), strings.Contains(name, "/code/"):
		return "a PyTorch checkpoint (zip)", adviceTorch
	}
	return "a zip archive", adviceUnpack
}

// onnx detects a ModelProto: its version of the format, field 1, and then one of the fields that follow.
func onnx(head []byte) bool {
	return len(head) > 3 && head[0] == 0x08 && head[1] >= 1 && head[1] <= 32 && bytes.IndexByte([]byte("\x12\x1a\x22\x28\x32\x3a\x42\x72"), head[2]) >= 0
}

// text detects documents that a server sent instead of the file.
func text(head []byte) (format, advice string) {
	begin := strings.ToLower(string(bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")), " \t\r\n")))
	switch {
	case strings.HasPrefix(begin, "<!doctype html"), strings.HasPrefix(begin, "<html"), strings.HasPrefix(begin, "<head"):
		return "a web page (HTML)", adviceDownload + "; the server sent a page, perhaps one to log in"
	case strings.HasPrefix(begin, "<?xml"):
		return "an XML document", adviceDownload + "; this may be a server's error"
	case strings.HasPrefix(begin, "{\""), strings.HasPrefix(begin, "{\n"), strings.HasPrefix(begin, "{}"), strings.HasPrefix(begin, "{ "):
		return "a JSON document", "open an index by a name that ends in .json, or the directory that it is in"
	}
	if printable := func(r rune) bool { return unicode.IsPrint(r) || unicode.IsSpace(r) }; len(head) > 8 && utf8.Valid(head[:len(head)-utf8.UTFMax]) &&
		bytes.IndexFunc(head[:len(head)-utf8.UTFMax], func(r rune) bool { return !printable(r) }) < 0 {
		return "a text file", "name the model's safetensors or GGUF file"
	}
	return "", ""
}

// foreignIn returns an error for a known file of another format in a directory without safetensors files, otherwise
// nil.
func (f Files) foreignIn(dir string, entries []fs.DirEntry) error {
	looked := 0
	for _, entry := range entries {
		if !entry.Type().IsRegular() || strings.HasPrefix(entry.Name(), ".") || strings.HasSuffix(entry.Name(), ".json") {
			continue
		}
		if looked++; looked > 100 {
			break
		}
		file, _, err := f.Open(filepath.Join(dir, entry.Name()))
		if err != nil {
			continue
		}
		head := make([]byte, sniffBytes)
		n, _ := io.ReadFull(file, head)
		file.Close() // nothing was written
		if n == 0 {
			continue
		}
		if format, advice := foreign(head[:n]); format != "" {
			return &FormatError{Format: format, Advice: advice, File: entry.Name(), Err: ErrNoModel}
		}
	}
	return nil
}
