package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu/internal/cheader"
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
	decl       cheader.Function
	doc        string
	group      string
}

// model holds everything that is generated, with its Go names.
type model struct {
	header    *cheader.Header
	unit      *cheader.Unit
	version   int
	functions []*function
	left      []string // older forms that are not bound
	names     *names
	typeDocs  map[string]string // by C name
	missing   []string
}

// predefined are the macros of a C compiler on 64-bit Linux that cuda.h requires.
var predefined = map[string]string{"__LP64__": "1", "__GNUC__": "4", "__STDC_VERSION__": "201112L"}

// read preprocesses and parses a header with additional macros.
func read(text string, macros ...string) (*cheader.Unit, *cheader.Header, error) {
	defines := map[string]string{}
	for k, v := range predefined {
		defines[k] = v
	}
	for _, m := range macros {
		defines[m] = ""
	}
	u, err := cheader.Preprocess(text, defines)
	if err != nil {
		return nil, nil, err
	}
	h, err := cheader.Parse(u)
	return u, h, err
}

func readModel(headerPath, typedefsPath string) (*model, error) {
	text, err := os.ReadFile(headerPath)
	if err != nil {
		return nil, err
	}
	m := &model{typeDocs: map[string]string{}}
	if m.unit, m.header, err = read(string(text)); err != nil {
		return nil, fmt.Errorf("%s: %w", headerPath, err)
	}
	perThread, _, err := read(string(text), "CUDA_API_PER_THREAD_DEFAULT_STREAM")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", headerPath, err)
	}
	_, internal, err := read(string(text), "__CUDA_API_VERSION_INTERNAL")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", headerPath, err)
	}
	if v, ok := m.unit.Expand("CUDA_VERSION"); ok {
		value, err := m.header.Constant(v)
		if err != nil {
			return nil, err
		}
		m.version = int(value.Int64())
	}
	since, err := readSince(typedefsPath)
	if err != nil {
		return nil, err
	}
	m.public(perThread)
	m.older(internal)
	for _, f := range m.functions {
		f.since = since.of(f.symbol)
	}
	m.dropOldest()
	m.names, err = newNames(m)
	return m, err
}

// public collects the functions that a program sees, each under the name that the program uses.
func (m *model) public(perThread *cheader.Unit) {
	public := map[string]string{} // symbol to the name that a macro defines for it
	for _, macro := range m.unit.Defined {
		if body, ok := m.unit.Expand(macro.Name); ok && len(body) == 1 && strings.HasPrefix(macro.Name, "cu") {
			public[body[0].Text] = macro.Name
		}
	}
	seen := map[string]bool{}
	for _, d := range m.header.Functions {
		if !strings.HasPrefix(d.Name, "cu") || seen[d.Name] {
			continue
		}
		seen[d.Name] = true
		f := &function{name: d.Name, symbol: d.Name, deprecated: d.Deprecated, decl: d}
		if p := public[d.Name]; p != "" {
			f.name = p
		}
		if body, ok := perThread.Expand(f.name); ok && len(body) == 1 && body[0].Text != f.symbol &&
			!strings.HasPrefix(f.name, "cuGetProcAddress") {
			f.perThread = body[0].Text
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

var versionSuffix = regexp.MustCompile(`_v[0-9]+$`)

// older collects the older forms, which only the driver's own sources see and which drivers still export.
func (m *model) older(internal *cheader.Header) {
	have := map[string]bool{}
	byName := map[string]*function{}
	for _, f := range m.functions {
		have[f.symbol] = true
		byName[f.name] = f
	}
	for _, d := range internal.Functions {
		if have[d.Name] || strings.HasSuffix(d.Name, "_ptds") || strings.HasSuffix(d.Name, "_ptsz") {
			continue
		}
		have[d.Name] = true
		f := &function{name: d.Name, symbol: d.Name, decl: d, newer: byName[base(d.Name)]}
		if base(d.Name) == d.Name {
			f.name = d.Name + "_v1"
		}
		for _, suffix := range []string{"_ptds", "_ptsz"} {
			if slices.ContainsFunc(internal.Functions, func(o cheader.Function) bool { return o.Name == d.Name+suffix }) {
				f.perThread = d.Name + suffix
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
	return fmt.Sprintf("%d functions and %d older forms bound, %d forms from before CUDA 3.2 omitted, %d without a doc comment",
		len(m.functions)-older, older, len(m.left), len(m.missing))
}
