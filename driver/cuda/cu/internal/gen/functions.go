package main

import (
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
}

func (m *model) calls() ([]*call, error) {
	var out []*call
	for _, f := range m.functions {
		params, err := m.params(f)
		if err != nil {
			return nil, err
		}
		c := &call{function: f, params: params}
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
	text := c.goName + " " + c.doc + "\n\nC: " + c.symbol
	if c.name != c.symbol && c.newer == nil {
		text = c.goName + " " + c.doc + "\n\nC: " + c.name + ", symbol " + c.symbol
	}
	if c.since > 0 {
		text += ", since CUDA " + versionText(c.since)
	}
	text += "."
	if c.deprecated {
		text += "\n\nDeprecated: cuda.h marks the function as deprecated."
	}
	w.comment("", text)
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
		emitWords(w, c.index(), before, words)
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

func emitWords(w *writer, index string, before, words []string) {
	for _, b := range before {
		w.printf("\t%s\n", b)
	}
	args := strings.Join(append([]string{index}, words...), ", ")
	w.printf("\treturn call%d(%s)\n", len(words), args)
}

// generate returns the content of all files.
func (m *model) generate() (map[string][]byte, error) {
	calls, err := m.calls()
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	add := func(name, imports string, emit func(w *writer) error) {
		if err != nil {
			return
		}
		w := &writer{version: m.version}
		if err = emit(w); err == nil {
			files[name], err = w.file(imports)
		}
	}
	groups := map[string][]*call{}
	arity := map[int]bool{0: true}
	for _, c := range calls {
		groups[c.group] = append(groups[c.group], c)
		for _, a := range []arch{amd64, arm64} {
			_, words := a.words(c.params)
			arity[len(words)] = true
		}
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
	add("z_enums.go", "package cu\n\n", func(w *writer) error { m.emitEnums(w); return m.emitMacros(w) })
	add("z_table.go", "package cu\n\n", func(w *writer) error { m.emitTable(w, calls); return nil })
	add("z_layout_test.go", "//go:build amd64 || arm64\n\npackage cu\n\nimport \"unsafe\"\n\n", m.emitLayout)
	add("z_recorded_test.go", "//go:build linux && (amd64 || arm64) && !nocuda\n\npackage cu\n\nimport \"unsafe\"\n\n", func(w *writer) error { return m.emitRecorded(w, calls) })
	recorder := &writer{version: m.version}
	if err == nil {
		err = m.emitRecorder(recorder, calls)
		files["testdata/recorder.c"] = recorder.Bytes()
	}
	for _, a := range []arch{amd64, arm64} {
		add("z_byvalue_linux_"+a.name+".go", "//go:build !nocuda\n\npackage cu\n\nimport \"unsafe\"\n\n", func(w *writer) error {
			emitByValue(w, calls, a)
			return nil
		})
	}
	add("z_byvalue_other.go", "//go:build !linux || (!amd64 && !arm64) || nocuda\n\npackage cu\n\n", func(w *writer) error {
		for _, c := range calls {
			if c.perArch {
				w.printf("func call%s(%s) Result { return missingResult(%s) }\n\n", c.goName, c.signature(), c.index())
			}
		}
		return nil
	})
	real := "//go:build linux && (amd64 || arm64) && !nocuda\n\npackage cu\n\nimport \"github.com/ebitengine/purego\"\n\n"
	add("z_call_linux.go", real, func(w *writer) error { emitCalls(w, arity, true); return nil })
	stub := "//go:build !linux || (!amd64 && !arm64) || nocuda\n\npackage cu\n\n"
	add("z_call_other.go", stub, func(w *writer) error { emitCalls(w, arity, false); return nil })
	return files, err
}

func emitByValue(w *writer, calls []*call, a arch) {
	for _, c := range calls {
		if !c.perArch {
			continue
		}
		w.printf("func call%s(%s) Result {\n", c.goName, c.signature())
		before, words := a.words(c.params)
		emitWords(w, c.index(), before, words)
		w.printf("}\n\n")
	}
}

// findAddress is repeated in every call because it is on the fast path and too large for the compiler to inline.
const findAddress = `	fn := addresses[f].Load()
	if fn == 0 {
		var missing Result
		if fn, missing = resolve(f); fn == 0 {
			return missing
		}
	}
`

// emitCalls writes call0 to callN for the numbers of words in use.
func emitCalls(w *writer, arity map[int]bool, real bool) {
	for n := range 40 {
		if !arity[n] {
			continue
		}
		args := make([]string, n)
		for i := range args {
			args[i] = fmt.Sprintf("a%d", i)
		}
		list := strings.Join(args, ", ")
		params := "f function"
		if n > 0 {
			params += ", " + list + " uintptr"
		}
		w.printf("//go:uintptrescapes\n//go:noinline\nfunc call%d(%s) Result {\n", n, params)
		switch {
		case !real:
			w.printf("\treturn missingResult(f)\n")
		case n == 0:
			w.printf(findAddress)
			w.printf("\tr, _, _ := purego.SyscallN(fn)\n\treturn Result(int32(r))\n")
		default:
			w.printf(findAddress)
			w.printf("\tw := frames.Get().(*frame)\n")
			w.printf("\t*(*[%d]uintptr)(w[:]) = [...]uintptr{%s}\n", n, list)
			w.printf("\tr, _, _ := purego.SyscallN(fn, w[:%d]...)\n", n)
			w.printf("\tframes.Put(w)\n\treturn Result(int32(r))\n")
		}
		w.printf("}\n\n")
	}
}
