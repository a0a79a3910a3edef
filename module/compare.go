package module

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// KeyError describes how a state dict differs from the expected one. Lists are sorted by name.
type KeyError struct {
	// Missing holds expected names that are absent.
	Missing []string
	// Unexpected holds names that are not expected.
	Unexpected []string
	// Mismatched holds tensors with another dtype or shape.
	Mismatched []Mismatch
}

// Mismatch is a tensor with another dtype or shape.
type Mismatch struct {
	// Name is the tensor's name.
	Name string
	// Want and Got are the two descriptions.
	Want, Got tensor.Spec
}

// Error returns the number of differences and the first few of each kind.
func (e *KeyError) Error() string {
	var parts []string
	add := func(what string, names []string) {
		if len(names) > 0 {
			parts = append(parts, fmt.Sprintf("%d %s: %s", len(names), what, few(names)))
		}
	}
	add("missing", quoteAll(e.Missing))
	add("unexpected", quoteAll(e.Unexpected))
	mismatched := make([]string, len(e.Mismatched))
	for i, m := range e.Mismatched {
		mismatched[i] = fmt.Sprintf("%s is %v%v, not %v%v", quote(m.Name), m.Got.DType, m.Got.Shape, m.Want.DType, m.Want.Shape)
	}
	add("mismatched", mismatched)
	return "state dict differs: " + strings.Join(parts, "; ")
}

func quoteAll(names []string) []string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = quote(name)
	}
	return quoted
}

// few joins the first items of a list.
func few(items []string) string {
	const shown = 5
	if len(items) <= shown {
		return strings.Join(items, ", ")
	}
	return strings.Join(items[:shown], ", ") + fmt.Sprintf(" and %d more", len(items)-shown)
}

// Compare returns nil if got has the names of want, each with the same dtype and shape, otherwise a [*KeyError]. Places
// and order of tensors are ignored.
func Compare(want, got *Manifest) error {
	var diff KeyError
	have := make(map[string]*TensorSpec, len(got.Tensors))
	for i := range got.Tensors {
		have[got.Tensors[i].Name] = &got.Tensors[i]
	}
	for i := range want.Tensors {
		w := &want.Tensors[i]
		g, found := have[w.Name]
		delete(have, w.Name)
		switch {
		case !found:
			diff.Missing = append(diff.Missing, w.Name)
		case g.DType != w.DType || !g.Shape.Equal(w.Shape):
			diff.Mismatched = append(diff.Mismatched, Mismatch{Name: w.Name, Want: w.Spec, Got: g.Spec})
		}
	}
	for name := range have {
		diff.Unexpected = append(diff.Unexpected, name)
	}
	if len(diff.Missing)+len(diff.Unexpected)+len(diff.Mismatched) == 0 {
		return nil
	}
	slices.Sort(diff.Missing)
	slices.Sort(diff.Unexpected)
	slices.SortFunc(diff.Mismatched, func(a, b Mismatch) int { return strings.Compare(a.Name, b.Name) })
	return &diff
}
