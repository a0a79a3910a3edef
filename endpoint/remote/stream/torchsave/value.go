package torchsave

import (
	"fmt"
	"strings"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// Values of a file are nil, bool, int64, float64, string, *List, *Dict and *Entry.

// List is a list or a tuple.
type List struct {
	Items []any

	contained bool
}

// Dict is a dictionary in the order of the file.
type Dict struct {
	// Keys and Values are parallel slices.
	Keys, Values []any

	contained bool
}

// Entry describes a tensor of a file.
type Entry struct {
	// Spec is the layout of the tensor in its storage.
	Spec tensor.Spec
	// Storage identifies the storage. Tensors with the same storage share bytes.
	Storage string
	// StorageBytes is the size of the storage.
	StorageBytes int64
	// Device is the device of the tensor when it was saved, such as "cuda:0". It is informational: Load ignores it.
	Device string
	// RequiresGrad is PyTorch's flag of the same name.
	RequiresGrad bool
}

// Named is a tensor with a name.
type Named struct {
	// Name is the path of dictionary keys to the tensor, joined by dots.
	Name  string
	Entry *Entry
}

// Tensor returns the tensor of a file that contains exactly one tensor and nothing else. Otherwise the error is
// ErrFormat.
func (f *File) Tensor() (*Entry, error) {
	if e, ok := f.Root.(*Entry); ok {
		return e, nil
	}
	return nil, fmt.Errorf("%w of one tensor, but of a %s", ErrFormat, kindOf(f.Root))
}

// maxNames limits the total size of the tensor names of a file, because each name repeats the keys around its tensor.
const maxNames = 64 << 20

// Tensors returns the tensors of a file that contains a tensor or a dictionary of tensors, such as a state dict. A
// single tensor has an empty name. Other values are skipped. The error is ErrFormat if there are no tensors, and
// ErrLimit if their names are too long.
func (f *File) Tensors() ([]Named, error) {
	n := namer{left: maxNames}
	if err := n.add(f.Root); err != nil {
		return nil, err
	}
	if len(n.named) == 0 {
		return nil, fmt.Errorf("%w of tensors, but of a %s", ErrFormat, kindOf(f.Root))
	}
	return n.named, nil
}

// namer collects tensors.
type namer struct {
	named []Named
	path  []string // the keys around the current value
	left  int      // remaining bytes for names
}

// add collects the tensors of a value.
func (n *namer) add(value any) error {
	switch value := value.(type) {
	case *Entry:
		for _, key := range n.path {
			n.left -= len(key) + 1
		}
		if n.left < 0 {
			return fmt.Errorf("%w: names of tensors with more than %d bytes", ErrLimit, maxNames)
		}
		n.named = append(n.named, Named{strings.Join(n.path, "."), value})
	case *Dict:
		for i, key := range value.Keys {
			if err := n.below(value.Values[i], key); err != nil {
				return err
			}
		}
	case *List:
		for i, item := range value.Items {
			if err := n.below(item, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// below collects the tensors of a value under a key.
func (n *namer) below(value, key any) error {
	switch value.(type) {
	case *Entry, *Dict, *List:
	default:
		return nil
	}
	n.path = append(n.path, fmt.Sprint(key))
	err := n.add(value)
	n.path = n.path[:len(n.path)-1]
	return err
}

func kindOf(value any) string {
	switch value := value.(type) {
	case nil:
		return "None"
	case *List:
		return "list"
	case *Dict:
		return "dictionary"
	case *Entry:
		return "tensor"
	case global:
		return "function " + value.String()
	}
	return fmt.Sprintf("%T", value)
}
