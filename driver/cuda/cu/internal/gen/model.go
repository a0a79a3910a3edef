package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// function is one function to bind.
type function struct {
	name       string // public C name, or the symbol for an older form
	goName     string
	symbol     string
	perThread  string // the symbol under CUDA_API_PER_THREAD_DEFAULT_STREAM, if different
	since      int
	deprecated bool
	newer      *function // for an older form, the form that took over its name
	decl       declaration
	doc        string
	group      string
}

// model holds everything that is generated, with its Go names.
type model struct {
	target    *target
	header    *header
	version   int
	functions []*function
	left      []string // older forms that are not bound
	names     *names
	typeDocs  map[string]string // by C name
	missing   []string
}

// readModel reads a target's header. For package cu it also reads cudaTypedefs.h in the header's folder.
func readModel(t *target, path string) (*model, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m := &model{target: t, version: t.version, typeDocs: map[string]string{}}
	if err := m.readHeader(string(text)); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if t.library == nil {
		since, err := readSince(filepath.Join(filepath.Dir(path), "cudaTypedefs.h"))
		if err != nil {
			return nil, err
		}
		for _, f := range m.functions {
			f.since = since.of(f.symbol)
		}
		m.dropOldest()
	}
	m.names, err = newNames(m)
	return m, err
}

// readHeader collects the functions of the header, and its version unless the target states it.
func (m *model) readHeader(text string) (err error) {
	t := m.target
	if m.header, err = parse(text, t.defines...); err != nil {
		return err
	}
	perThread := map[string]string{}
	if t.library == nil {
		if m.version, err = strconv.Atoi(m.header.expanded["CUDA_VERSION"]); err != nil {
			return fmt.Errorf("CUDA_VERSION: %w", err)
		}
		if perThread, err = expand(text, "CUDA_API_PER_THREAD_DEFAULT_STREAM"); err != nil {
			return err
		}
	}
	m.public(perThread)
	if t.older == "" {
		return nil
	}
	internal, err := parse(text, t.older)
	if err == nil {
		m.older(internal)
	}
	return err
}

// public collects the functions that a program sees, each under the name that the program uses.
func (m *model) public(perThread map[string]string) {
	public := map[string]string{} // symbol to the name that a macro defines for it
	for _, macro := range m.header.macros {
		name := macro.Name.SrcStr()
		if symbol := m.header.expanded[name]; word.MatchString(symbol) && strings.HasPrefix(name, m.target.function) {
			public[symbol] = name
		}
	}
	seen := map[string]bool{}
	for _, d := range m.header.functions {
		if !strings.HasPrefix(d.name, m.target.function) || seen[d.name] {
			continue
		}
		seen[d.name] = true
		f := &function{name: d.name, symbol: d.name, deprecated: d.deprecated, decl: d}
		if p := public[d.name]; p != "" {
			f.name = p
		}
		if symbol := perThread[f.name]; word.MatchString(symbol) && symbol != f.symbol &&
			!strings.HasPrefix(f.name, "cuGetProcAddress") {
			f.perThread = symbol
		}
		m.functions = append(m.functions, f)
	}
	// cuGraphInstantiate is a macro for cuGraphInstantiateWithFlags, which is also public itself.
	for _, f := range slices.Clone(m.functions) {
		if f.name == "cuGraphInstantiate" {
			twin := *f
			twin.name = f.symbol
			m.functions = append(m.functions, &twin)
		}
	}
}

var (
	versionSuffix = regexp.MustCompile(`_v[0-9]+$`)
	word          = regexp.MustCompile(`^[A-Za-z_]\w*$`)
)

// older collects the older forms, which only the driver's own sources see and which drivers still export.
func (m *model) older(internal *header) {
	have := map[string]bool{}
	byName := map[string]*function{}
	for _, f := range m.functions {
		have[f.symbol] = true
		byName[f.name] = f
	}
	for _, d := range internal.functions {
		if !strings.HasPrefix(d.name, m.target.function) || have[d.name] || strings.HasSuffix(d.name, "_ptds") || strings.HasSuffix(d.name, "_ptsz") {
			continue
		}
		have[d.name] = true
		f := &function{name: d.name, symbol: d.name, decl: d, newer: byName[base(d.name)]}
		if base(d.name) == d.name {
			f.name = d.name + "_v1"
		}
		for _, suffix := range []string{"_ptds", "_ptsz"} {
			if slices.ContainsFunc(internal.functions, func(o declaration) bool { return o.name == d.name+suffix }) {
				f.perThread = d.name + suffix
			}
		}
		m.functions = append(m.functions, f)
	}
}

// dropOldest removes the forms that CUDA 3.2 replaced: their device pointers and sizes have 32 bits.
func (m *model) dropOldest() {
	replaced := func(f *function) bool {
		return f.newer != nil && slices.ContainsFunc(m.functions, func(g *function) bool {
			return g != f && base(g.symbol) == base(f.symbol) && f.since < g.since && g.since <= 3020
		})
	}
	kept := make([]*function, 0, len(m.functions))
	for _, f := range m.functions {
		if replaced(f) {
			m.left = append(m.left, f.symbol)
		} else {
			kept = append(kept, f)
		}
	}
	m.functions = kept
	slices.Sort(m.left)
}

// base returns a symbol without the number of its form.
func base(symbol string) string { return versionSuffix.ReplaceAllString(symbol, "") }

func (m *model) summary() string {
	older := 0
	for _, f := range m.functions {
		if f.newer != nil {
			older++
		}
	}
	if m.target.library != nil {
		return fmt.Sprintf("%d functions and %d older forms bound, %d names without a text", len(m.functions)-older, older, len(m.missing))
	}
	return fmt.Sprintf("%d functions and %d older forms bound, %d forms from before CUDA 3.2 omitted, %d without a doc comment",
		len(m.functions)-older, older, len(m.left), len(m.missing))
}
