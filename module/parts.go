package module

import (
	"fmt"
	"maps"
	"strings"
)

// WithPrefix returns an owned state dict over the same tensors, whose names and metadata keys begin with prefix. It
// keeps digests, and omits storages that no tensor uses. It borrows sd. An error is [ErrName] for a prefix that is not
// UTF-8.
func (sd *StateDict) WithPrefix(prefix string) (*StateDict, error) {
	if prefix != "" {
		if err := checkName(prefix); err != nil {
			return nil, err
		}
	}
	return sd.renamed(func(name string) (string, bool) { return prefix + name, true }), nil
}

// Under returns an owned state dict over the tensors whose names begin with prefix, without it. Metadata keys are
// selected in the same way. It is the opposite of [StateDict.WithPrefix], and borrows sd.
func (sd *StateDict) Under(prefix string) *StateDict {
	return sd.renamed(func(name string) (string, bool) {
		rest, found := strings.CutPrefix(name, prefix)
		return rest, found && rest != ""
	})
}

// renamed returns aliases of the tensors for which rename returns true, under the returned names, which are distinct.
func (sd *StateDict) renamed(rename func(name string) (string, bool)) *StateDict {
	out := NewStateDict()
	for i, name := range sd.names {
		to, selected := rename(name)
		if !selected {
			continue
		}
		out.names = append(out.names, to)
		out.tensors = append(out.tensors, sd.at(i).Alias())
		if sd.digests != nil {
			out.digests = append(out.digests, sd.digests[i])
		}
	}
	for key, value := range sd.Metadata {
		if to, selected := rename(key); selected {
			if out.Metadata == nil {
				out.Metadata = map[string]string{}
			}
			out.Metadata[to] = value
		}
	}
	out.index, _ = indexNames(out.names)
	return out
}

// Join returns an owned state dict with the tensors, metadata and digests of several, in their order. It borrows them. A
// name that two of them have is [ErrDuplicateName].
func Join(parts ...*StateDict) (*StateDict, error) {
	out := NewStateDict()
	digests := false
	for _, sd := range parts {
		digests = digests || sd.digests != nil
	}
	for _, sd := range parts {
		for i, name := range sd.names {
			out.names = append(out.names, name)
			out.tensors = append(out.tensors, sd.at(i).Alias())
			switch {
			case sd.digests != nil:
				out.digests = append(out.digests, sd.digests[i])
			case digests:
				out.digests = append(out.digests, nil)
			}
		}
		if len(sd.Metadata) > 0 && out.Metadata == nil {
			out.Metadata = map[string]string{}
		}
		maps.Copy(out.Metadata, sd.Metadata)
	}
	var twice int
	if out.index, twice = indexNames(out.names); twice >= 0 {
		name := out.names[twice]
		_ = out.Close() // best effort: the reason for the refusal is returned
		return nil, fmt.Errorf("%w: %s", ErrDuplicateName, quote(name))
	}
	return out, nil
}
