package command

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

// description is the output of inspect.
type description struct {
	Path    string `json:"path,omitempty"`
	Name    string `json:"name,omitempty"`
	Version uint64 `json:"version,omitempty"`
	Socket  string `json:"socket,omitempty"`
	// Bytes is the size of all tensors. Tied tensors count once.
	Bytes    int64             `json:"bytes"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Tensors  []*tensorRow      `json:"tensors"`
	// PossibleTies are metadata entries that Python's save_model may have written for tied tensors, if they were not
	// read as ties.
	PossibleTies []possibleTie `json:"possible_ties,omitempty"`
	// DigestState is the state of the digests that the owner computes for the version. Digest covers the whole version.
	DigestState endpoint.DigestState `json:"digest_state,omitempty"`
	Digest      *module.Digest       `json:"digest,omitempty"`
	// Loading describes the next version, if the owner is loading it or has failed to load it.
	Loading *endpoint.LoadInfo `json:"loading,omitempty"`
}

// possibleTie is a metadata entry that names a tensor.
type possibleTie struct {
	Name   string `json:"name"`
	TiedTo string `json:"tied_to"`
}

// tensorRow is one tensor of a description.
type tensorRow struct {
	Name    string  `json:"name"`
	DType   string  `json:"dtype"`
	Shape   []int64 `json:"shape"`
	Strides []int64 `json:"strides,omitempty"` // in elements, if not row-major
	Bytes   int64   `json:"bytes"`
	TiedTo  string  `json:"tied_to,omitempty"`
	File    string  `json:"file,omitempty"`
	Digest  string  `json:"sha256,omitempty"`
}

// add appends a tensor.
func (d *description) add(t tensorRow) {
	if t.Shape == nil {
		t.Shape = []int64{} // a scalar is [] in JSON
	}
	d.Tensors = append(d.Tensors, &t)
	if t.TiedTo == "" {
		d.Bytes = term.Saturated(d.Bytes, t.Bytes)
	}
}

// fill copies the tensors of a manifest. Tied tensors are tied to the first of them.
func (d *description) fill(m *module.Manifest) error {
	tiedTo := map[string]string{}
	for _, group := range m.Aliases() {
		for _, name := range group[1:] {
			tiedTo[name] = group[0]
		}
	}
	for i := range m.Tensors {
		s := &m.Tensors[i]
		bytes, err := s.ByteLen()
		if err != nil {
			return fmt.Errorf("tensor %q: %w", s.Name, err)
		}
		t := tensorRow{Name: s.Name, DType: s.DType.String(), Shape: s.Shape, Bytes: bytes, TiedTo: tiedTo[s.Name]}
		if !s.Contiguous() {
			t.Strides = s.Strides
		}
		d.add(t)
	}
	d.Metadata = m.Metadata
	return nil
}

// pending reports whether there is no version yet, only one that is loading or failed to load.
func (d *description) pending() bool { return d.Loading != nil && d.Version == 0 }

// title returns a heading for the model.
func (d *description) title() string {
	if d.Path != "" {
		return d.Path
	}
	return d.Name
}

// print writes a heading, the metadata, and the table of tensors.
func (d *description) print(w io.Writer) error {
	from := "file     " + term.Printable(d.Path)
	switch {
	case d.pending():
		from = fmt.Sprintf("name     %s on %s, no version yet", term.Printable(d.Name), term.Printable(d.Socket))
	case d.Path == "":
		from = fmt.Sprintf("name     %s version %d on %s", term.Printable(d.Name), d.Version, term.Printable(d.Socket))
	}
	if l := d.Loading; l != nil {
		from += fmt.Sprintf("\nnext     %s, %s of %s from %s", term.Printable(loadText(l)), term.FormatBytes(l.Done), term.FormatBytes(l.Total), term.Printable(l.Source))
	}
	if d.pending() {
		_, err := fmt.Fprintln(w, from)
		return err
	}
	fmt.Fprintf(w, "%s\ntensors  %d\nbytes    %s (%d bytes)\n", from, len(d.Tensors), term.FormatBytes(d.Bytes), d.Bytes)
	switch {
	case d.Digest != nil:
		fmt.Fprintf(w, "digest   %v, computed by the owner\n", d.Digest)
	case d.DigestState != "":
		fmt.Fprintf(w, "digest   %s\n", d.DigestState)
	}
	for i, key := range slices.Sorted(maps.Keys(d.Metadata)) {
		label := "metadata"
		if i > 0 {
			label = ""
		}
		fmt.Fprintf(w, "%-8s %s = %s\n", label, term.Printable(key), term.Printable(d.Metadata[key]))
	}
	if len(d.PossibleTies) > 0 {
		first := d.PossibleTies[0]
		fmt.Fprintf(w, "hint     %s may be tied to %s, as in files of Python's save_model (%s): --python-ties ties them\n",
			term.Printable(first.Name), term.Printable(first.TiedTo), term.Count(len(d.PossibleTies), "such name"))
	}
	if len(d.Tensors) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return d.table().Print(w)
}

// table returns a row for each tensor, without columns that would be empty.
func (d *description) table() *term.Table {
	has := func(f func(*tensorRow) string) bool {
		return slices.ContainsFunc(d.Tensors, func(t *tensorRow) bool { return f(t) != "" })
	}
	type field struct {
		term.Column
		value    func(*tensorRow) string
		optional bool
	}
	fields := []field{
		{term.Column{Title: "TENSOR", Give: 1}, func(t *tensorRow) string { return t.Name }, false},
		{term.Column{Title: "DTYPE"}, func(t *tensorRow) string { return t.DType }, false},
		{term.Column{Title: "SHAPE", Give: 1}, func(t *tensorRow) string { return term.FormatShape(t.Shape) }, false},
		{term.Column{Title: "STRIDES", Give: 2}, func(t *tensorRow) string {
			if t.Strides == nil {
				return ""
			}
			return term.FormatShape(t.Strides)
		}, true},
		{term.Column{Title: "BYTES", Align: term.Right}, func(t *tensorRow) string { return term.FormatBytes(t.Bytes) }, false},
		{term.Column{Title: "TIED TO", Give: 2}, func(t *tensorRow) string { return t.TiedTo }, true},
		{term.Column{Title: "FILE", Give: 3}, func(t *tensorRow) string { return t.File }, true},
		{term.Column{Title: "SHA-256", Give: 4}, func(t *tensorRow) string { return t.Digest }, true},
	}
	fields = slices.DeleteFunc(fields, func(f field) bool { return f.optional && !has(f.value) })
	t := &term.Table{}
	for _, f := range fields {
		t.Columns = append(t.Columns, f.Column)
	}
	for _, row := range d.Tensors {
		cells := make([]string, len(fields))
		for i, f := range fields {
			cells[i] = f.value(row)
		}
		t.Add(cells...)
	}
	return t
}
