package safetensors

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// TiedKey is the metadata key of tied names: a JSON object, as text, from each name that is not stored to the stored
// name with the same bytes, such as {"lm_head.weight":"model.embed_tokens.weight"}. Metadata without it ties nothing.
const TiedKey = "sharedtensor.tied"

// ErrTies means that a record of tied names is invalid.
var ErrTies = errors.New("bad record of tied tensors")

// Tie is a name that shares the bytes of a stored tensor.
type Tie struct {
	// Name is not stored.
	Name string
	// Kept is the stored tensor.
	Kept string
}

// EncodeTies returns the value of [TiedKey] for ties, a map from names that are not stored to stored ones. Equal maps
// give equal text. Names are UTF-8.
func EncodeTies(ties map[string]string) string {
	b := []byte{'{'}
	for i, name := range slices.Sorted(maps.Keys(ties)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendQuoted(b, name)
		b = append(b, ':')
		b = appendQuoted(b, ties[name])
	}
	return string(append(b, '}'))
}

// ParseTies parses a value of [TiedKey]. The ties are sorted by name. Errors are [ErrTies].
func ParseTies(text string) ([]Tie, error) {
	var ties []Tie
	seen := map[string]struct{}{}
	s := scanner{text: text, maxDepth: 1, syntax: ErrHeaderJSON}
	err := s.object(func(name string) error {
		kept, err := s.string()
		if err != nil {
			return fmt.Errorf("%s: %w", quote(name), err)
		}
		if _, twice := seen[name]; twice {
			return fmt.Errorf("%w: %s", ErrDuplicateKey, quote(name))
		}
		seen[name] = struct{}{}
		ties = append(ties, Tie{Name: name, Kept: kept})
		return nil
	})
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: metadata %s: %w", ErrTies, TiedKey, err)
	}
	sortTies(ties)
	return ties, nil
}

func sortTies(ties []Tie) {
	slices.SortFunc(ties, func(a, b Tie) int { return strings.Compare(a.Name, b.Name) })
}

// tie reads the ties from the metadata of all files. Each must name a stored tensor and must not be stored itself.
func (m *Model) tie() error {
	for _, f := range m.Files {
		text, recorded := f.Header.Metadata[TiedKey]
		if !recorded {
			continue
		}
		ties, err := ParseTies(text)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		for _, t := range ties {
			if err := m.addTie(t); err != nil {
				return fmt.Errorf("%s: %w", f.Path, err)
			}
		}
	}
	sortTies(m.Ties)
	return nil
}

func (m *Model) addTie(t Tie) error {
	if kept, known := m.tied[t.Name]; known {
		if kept == t.Kept { // all files of a model may record it
			return nil
		}
		return fmt.Errorf("%w: %s is tied to %s and to %s", ErrTies, quote(t.Name), quote(kept), quote(t.Kept))
	}
	if _, stored := m.byName[t.Name]; stored {
		return fmt.Errorf("%w: %s is stored, and tied to %s", ErrTies, quote(t.Name), quote(t.Kept))
	}
	if _, stored := m.byName[t.Kept]; !stored {
		return fmt.Errorf("%w: %s is tied to %s, which is not stored", ErrTies, quote(t.Name), quote(t.Kept))
	}
	if m.tied == nil {
		m.tied = map[string]string{}
	}
	m.tied[t.Name] = t.Kept
	m.Ties = append(m.Ties, t)
	return nil
}

// TieByMetadata also adds the [Model.PossibleTies], and returns their number. It is for files known to be written by
// the Python library's save_model.
func (m *Model) TieByMetadata() int {
	ties := m.PossibleTies()
	for _, t := range ties {
		_ = m.addTie(t) // valid, otherwise it would not be possible
	}
	sortTies(m.Ties)
	return len(ties)
}

// PossibleTies returns the metadata entries from a name that is not stored to a stored name, sorted, except those in
// Ties. The Python library's save_model records dropped names this way, but other metadata may look the same.
func (m *Model) PossibleTies() []Tie {
	var ties []Tie
	for name, kept := range m.Metadata {
		_, stored := m.byName[name]
		_, tied := m.tied[name]
		if _, target := m.byName[kept]; target && !stored && !tied {
			ties = append(ties, Tie{Name: name, Kept: kept})
		}
	}
	sortTies(ties)
	return ties
}
