package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// call is one function with all that is needed to write it.
type call struct {
	*function
	params []param
	// perArch reports whether the words of the call differ between the architectures.
	perArch bool
	floats  bool
	// library reports whether the function is called through package dl.
	library bool
}

func (m *model) calls() ([]*call, error) {
	var out []*call
	for _, f := range m.functions {
		params, err := m.params(f)
		if err != nil {
			return nil, err
		}
		c := &call{function: f, params: params, library: m.target.library != nil}
		_, a := amd64.words(params)
		_, b := arm64.words(params)
		c.perArch = !slices.Equal(a, b)
		c.floats = slices.ContainsFunc(params, func(p param) bool { return p.class == float })
		if c.floats && c.perArch {
			return nil, fmt.Errorf("%s: floating point with a struct by value is not supported", f.name)
		}
		out = append(out, c)
	}
	return out, nil
}

func (c *call) signature() string {
	var b strings.Builder
	for i, p := range c.params {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(p.name)
		if i+1 == len(c.params) || c.params[i+1].goType != p.goType {
			b.WriteString(" " + p.goType)
		}
	}
	return b.String()
}

// index returns the Go constant for the function's position in the table.
func (c *call) index() string { return "fn" + c.goName }

func (c *call) emit(w *writer) {
	doc := c.doc
	if doc == "" {
		doc = "calls the function of the same name in " + w.header + "."
	}
	text := c.goName + " " + doc + "\n\nC: " + c.symbol
	if c.name != c.symbol && c.newer == nil {
		text = c.goName + " " + c.doc + "\n\nC: " + c.name + ", symbol " + c.symbol
	}
	if c.since > 0 {
		text += ", since CUDA " + versionText(c.since)
	}
	text += "."
	if c.deprecated {
		text += "\n\nDeprecated: " + w.header + " marks the function as deprecated."
	}
	w.comment("", text)
	if c.library {
		c.emitLibraryCall(w)
		return
	}
	w.printf("func %s(%s) Result {\n", c.goName, c.signature())
	switch {
	case c.perArch:
		w.printf("\treturn call%s(%s)\n", c.goName, strings.Join(c.names(), ", "))
	case c.floats:
		c.emitFloats(w)
	default:
		before, words := amd64.words(c.params)
		if base(c.symbol) == "cuGetProcAddress" { // also its older form
			// The header does this in an inline function if a program is compiled for per-thread default streams.
			before = append(before, "flags = procAddressFlags(flags)")
		}
		emitWords(w, "call", c.index(), before, words)
	}
	w.printf("}\n\n")
}

func (c *call) names() []string {
	var out []string
	for _, p := range c.params {
		out = append(out, p.name)
	}
	return out
}

// emitFloats writes the call of a function with floating-point parameters. Integer and floating-point arguments use
// separate registers, so their relative order does not matter.
func (c *call) emitFloats(w *writer) {
	ints, floats := []string{}, []string{}
	for _, p := range c.params {
		switch p.class {
		case float:
			floats = append(floats, p.name)
		default:
			ints = append(ints, "uintptr("+p.name+")")
		}
	}
	for len(ints) < 2 {
		ints = append(ints, "0")
	}
	for len(floats) < 2 {
		floats = append(floats, "0")
	}
	w.printf("\treturn callFloat(%s, %s, %s)\n", c.index(), strings.Join(ints, ", "), strings.Join(floats, ", "))
}

// generate returns the content of all files.
func (m *model) generate() (map[string][]byte, error) {
	calls, err := m.calls()
	if err != nil {
		return nil, err
	}
	if m.target.library != nil {
		return m.generateLibrary(calls)
	}
	files := map[string][]byte{}
	add := func(name, imports string, emit func(w *writer) error) {
		if err != nil {
			return
		}
		w := m.writer()
		if err = emit(w); err == nil {
			files[name], err = w.file(imports)
		}
	}
	groups := map[string][]*call{}
	for _, c := range calls {
		groups[c.group] = append(groups[c.group], c)
	}
	arity, inArity, err := arities(calls)
	if err != nil {
		return nil, err
	}
	for group, list := range groups {
		imports := "package cu\n\nimport \"unsafe\"\n\n"
		add("z_"+group+".go", imports, func(w *writer) error {
			for _, c := range list {
				c.emit(w)
			}
			if !strings.Contains(w.String(), "unsafe.") {
				w.printf("var _ unsafe.Pointer\n")
			}
			return nil
		})
	}
	add("z_types.go", "package cu\n\nimport (\n\t\"structs\"\n\t\"unsafe\"\n)\n\n", m.emitTypes)
	add("z_enums.go", "package cu\n\n", func(w *writer) error { return errors.Join(m.emitEnums(w), m.emitMacros(w)) })
	add("z_table.go", "package cu\n\n", func(w *writer) error { m.emitTable(w, calls); return nil })
	add("z_layout_test.go", "//go:build amd64 || arm64\n\npackage cu\n\nimport \"unsafe\"\n\n", m.emitLayout)
	add("z_recorded_test.go", "//go:build linux && (amd64 || arm64) && !nocuda\n\npackage cu\n\nimport \"unsafe\"\n\n", func(w *writer) error { return m.emitRecorded(w, calls) })
	recorder := m.writer()
	if err == nil {
		err = m.emitRecorder(recorder, calls)
		files["testdata/recorder.c"] = recorder.Bytes()
	}
	add("z_context_calls.go", "package cu\n\nimport \"unsafe\"\n\n", func(w *writer) error { emitMethods(w, calls); return nil })
	add("result/z_values.go", "package result\n\nimport (\n\"unsafe\"\n\n\"github.com/sharedtensor/sharedtensor/driver/cuda/cu\"\n)\n\n", func(w *writer) error {
		m.emitValues(w, calls)
		return nil
	})
	for _, a := range []arch{amd64, arm64} {
		imports := "//go:build !nocuda\n\npackage cu\n\nimport \"unsafe\"\n\n"
		if !a.largeOnStack {
			imports = "//go:build !nocuda\n\npackage cu\n\nimport (\n\"unsafe\"\n\n" + ccallImport + ")\n\n"
		}
		add("z_byvalue_linux_"+a.name+".go", imports, func(w *writer) error { return emitByValue(w, calls, a) })
	}
	add("z_byvalue_other.go", "//go:build !linux || (!amd64 && !arm64) || nocuda\n\npackage cu\n\n", func(w *writer) error {
		emitMissingByValue(w, calls)
		return nil
	})
	real := "//go:build linux && (amd64 || arm64) && !nocuda\n\npackage cu\n\n" +
		"import " + ccallImport + "\n"
	add("z_call_linux.go", real, func(w *writer) error { emitCalls(w, arity, inArity, true); return nil })
	stub := "//go:build !linux || (!amd64 && !arm64) || nocuda\n\npackage cu\n\n"
	add("z_call_other.go", stub, func(w *writer) error { emitCalls(w, arity, inArity, false); return nil })
	return files, err
}
