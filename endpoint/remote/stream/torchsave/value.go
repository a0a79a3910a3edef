package torchsave

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// A value of a file is nil, a bool, an int64, a float64, a string, a *List, a *Dict or an *Entry.

// List is a list or a tuple.
type List struct {
	// Items are its values.
	Items []any

	contained bool
}

// Dict is a dictionary, in the order in which it was written.
type Dict struct {
	// Keys and Values belong together by position.
	Keys, Values []any

	contained bool
}

// Entry describes a tensor of a file.
type Entry struct {
	// Spec places the tensor in its storage.
	Spec tensor.Spec
	// Storage names the storage. Tensors of one storage share bytes.
	Storage string
	// StorageBytes is the size of the storage.
	StorageBytes int64
	// Device is where the tensor was when it was saved, such as "cuda:0". It is a remark, and no reason to go there.
	Device string
	// RequiresGrad is what PyTorch had noted.
	RequiresGrad bool
}

// Named is a tensor under a name.
type Named struct {
	// Name is the key of the dictionary, after those of the dictionaries around it and a dot each.
	Name string
	// Entry is the tensor.
	Entry *Entry
}

// Tensor returns the tensor of a file that holds one tensor and nothing else. The error is ErrFormat.
func (f *File) Tensor() (*Entry, error) {
	if e, ok := f.Root.(*Entry); ok {
		return e, nil
	}
	return nil, fmt.Errorf("%w of one tensor, but of a %s", ErrFormat, kindOf(f.Root))
}

// Tensors returns the tensors of a file that holds one, or a dictionary of them, such as a state dict; the name of a
// single one is empty. Values that are no tensors are left out. The error is ErrFormat where there are no tensors.
func (f *File) Tensors() ([]Named, error) {
	named := appendNamed(nil, "", f.Root)
	if len(named) == 0 {
		return nil, fmt.Errorf("%w of tensors, but of a %s", ErrFormat, kindOf(f.Root))
	}
	return named, nil
}

func appendNamed(named []Named, name string, value any) []Named {
	switch value := value.(type) {
	case *Entry:
		return append(named, Named{name, value})
	case *Dict:
		for i, key := range value.Keys {
			if name != "" {
				key = name + "." + fmt.Sprint(key)
			}
			named = appendNamed(named, fmt.Sprint(key), value.Values[i])
		}
	case *List:
		for i, item := range value.Items {
			key := fmt.Sprint(i)
			if name != "" {
				key = name + "." + key
			}
			named = appendNamed(named, key, item)
		}
	}
	return named
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
