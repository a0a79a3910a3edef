package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"modernc.org/cc/v4"
)

// generateLibrary returns the files of a package that calls its library through package dl.
func (m *model) generateLibrary(calls []*call) (files map[string][]byte, err error) {
	files = map[string][]byte{}
	add := func(name, constraint string, imports []string, emit func(w *writer) error) {
		if err != nil {
			return
		}
		w := m.writer()
		if err = emit(w); err == nil {
			files[name], err = w.file(constraint + m.imports(w.String(), imports))
		}
	}
	groups := map[string][]*call{}
	for _, c := range calls {
		if err := m.checkCall(c); err != nil {
			return nil, err
		}
		groups[c.group] = append(groups[c.group], c)
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		add("z_"+group+".go", "", []string{"unsafe"}, func(w *writer) error {
			for _, c := range groups[group] {
				c.emit(w)
			}
			return nil
		})
	}
	add("z_types.go", "", []string{"structs", "unsafe"}, m.emitTypes)
	add("z_enums.go", "", nil, func(w *writer) error {
		if err := m.emitEnums(w); err != nil || len(m.macroConstants()) == 0 {
			return err
		}
		return m.emitMacros(w)
	})
	add("z_table.go", "", []string{"github.com/sharedtensor/sharedtensor/driver/cuda/internal/dl"}, func(w *writer) error {
		m.emitLibraryTable(w, calls)
		return nil
	})
	add("z_result.go", "", []string{"errors", "github.com/sharedtensor/sharedtensor/driver/cuda/internal/dl"}, func(w *writer) error {
		m.emitLibrary(w)
		return nil
	})
	if m.target.layouts {
		add("z_layout_test.go", "//go:build amd64 || arm64\n\n", []string{"unsafe"}, func(w *writer) error {
			w.printf("// layout is the size, the alignment and the field offsets of a record, in bytes.\n")
			w.printf("type layout struct {\n\tSize, Align uintptr\n\tFields map[string]uintptr\n}\n\n")
			return m.emitLayout(w)
		})
	}
	return files, err
}

// imports returns the package clause and the imports that the text uses.
func (m *model) imports(text string, candidates []string) string {
	var std, ours []string
	for _, path := range candidates {
		if !strings.Contains(text, path[strings.LastIndex(path, "/")+1:]+".") {
			continue
		}
		if strings.Contains(path, ".") {
			ours = append(ours, fmt.Sprintf("\t%q\n", path))
		} else {
			std = append(std, fmt.Sprintf("\t%q\n", path))
		}
	}
	clause := "package " + m.target.name + "\n\n"
	if len(std)+len(ours) == 0 {
		return clause
	}
	return clause + "import (\n" + strings.Join(std, "") + "\n" + strings.Join(ours, "") + ")\n\n"
}

// checkCall returns an error for a function that package dl cannot call: one with a struct by value or a floating-point
// parameter, or with another result than a code, a text or nothing.
func (m *model) checkCall(c *call) error {
	if _, words := amd64.words(c.params); len(words) > maxWords {
		return fmt.Errorf("%s: %d words, the largest frame has %d", c.name, len(words), maxWords)
	}
	if c.perArch || c.floats || slices.ContainsFunc(c.params, func(p param) bool { return p.class == record }) {
		return fmt.Errorf("%s: parameters other than integers and pointers are not supported", c.name)
	}
	if _, err := c.resultType(); err != nil {
		return err
	}
	return nil
}

// resultType returns the Go type of a function's result: Result, or string for text of the library.
func (c *call) resultType() (string, error) {
	switch t := c.decl.result; {
	case t.Kind() == cc.Enum:
		return "Result", nil
	case t.Kind() == cc.Ptr && t.(*cc.PointerType).Elem().Kind() == cc.Char:
		return "string", nil
	default:
		return "", fmt.Errorf("%s: a result of type %s is not supported", c.name, t)
	}
}

func (c *call) emitLibraryCall(w *writer) {
	_, words := amd64.words(c.params)
	args := strings.Join(append([]string{c.index()}, words...), ", ")
	result, _ := c.resultType() // checked by checkCall
	if result == "string" {
		w.printf("func %s(%s) string {\n\treturn lib.CallString(%s)\n}\n\n", c.goName, c.signature(), args)
		return
	}
	w.printf("func %s(%s) Result {\n\treturn Result(lib.Call(%s))\n}\n\n", c.goName, c.signature(), args)
}

// emitLibraryTable writes the table of functions, their indices, and the texts of the codes.
func (m *model) emitLibraryTable(w *writer, calls []*call) {
	l := m.target.library
	w.printf("// HeaderVersion is the CUDA version of the %s from which this package was generated: 1000 times the major plus 10\n", m.target.header)
	w.printf("// times the minor number.\nconst HeaderVersion = %d\n\nconst (\n", m.version)
	for i, c := range calls {
		if i == 0 {
			w.printf("\t%s = iota\n", c.index())
			continue
		}
		w.printf("\t%s\n", c.index())
	}
	w.printf(")\n\n// lib is the library of this process.\nvar lib = dl.New(dl.Config{\n")
	w.printf("\tTitle: %q,\n\tEnv: %q,\n\tNoLibrary: ErrNoLibrary,\n", l.title, l.env)
	w.printf("\tNames: %#v,\n\tWheel: %#v,\n\tFunctions: []dl.Function{\n", l.names, l.wheel)
	for _, c := range calls {
		name := c.name
		if c.newer != nil {
			name = c.symbol
		}
		w.printf("\t\t%s: {Name: %q, GoName: %q, Symbol: %q},\n", c.index(), name, c.goName, c.symbol)
	}
	w.printf("\t},\n\tResultType: %q,\n\tResults: map[int32]dl.Result{\n", m.target.result)
	for _, e := range m.enums() {
		if m.names.owners[enumID(e)] != m.target.result {
			continue
		}
		for _, v := range e.Enumerators() {
			c := v.Token.SrcStr()
			w.printf("\t\tint32(%s): {Name: %q, Text: %q},\n", m.target.goName(c), c, m.typeDocs[c])
		}
	}
	w.printf("\t},\n})\n")
}

// emitLibrary writes the part that is equal in all packages: opening the library, and codes as errors.
func (m *model) emitLibrary(w *writer) {
	r := strings.NewReplacer("LIBRARY", m.target.library.title, "HEADER", m.target.header, "ENV", m.target.library.env, "RESULT", m.target.result)
	w.printf("%s", r.Replace(libraryText))
}

const libraryText = `// ErrNoLibrary means that the library LIBRARY is missing: it is not installed, not found, or this build has no support
// for CUDA.
var ErrNoLibrary = errors.New("no LIBRARY library")

// UnsupportedError describes a function that could not be called: Function is its C name, Symbol the symbol that was
// looked up, Library the file that lacks it, and Err the cause. Library is empty if there is no library. The error
// matches [errors.ErrUnsupported] with errors.Is, and also [ErrNoLibrary] if that is the cause.
type UnsupportedError = dl.UnsupportedError

// LibraryError means that the library was not found. Tried lists the names under which it was searched, in order, and Err is
// the first reason. It matches [ErrNoLibrary] and [errors.ErrUnsupported] with errors.Is.
type LibraryError = dl.LibraryError

// FunctionInfo describes a function that this package binds: Name is its C name, GoName its name in this package, and
// Symbol the symbol that is looked up in the library.
type FunctionInfo = dl.Function

// Load opens the library from path, which is a file or a name for the dynamic linker. If path is empty, Load uses the
// environment variable ENV or, if that is not set, the default places, which the package comment lists. Calling Load is
// optional: the first call of a function loads the library with an empty path. A process uses one library: once it is open,
// Load with another path is an error.
func Load(path string) error { return lib.Load(path) }

// Path returns the name under which the library was opened. It is empty before.
func Path() string { return lib.Path() }

// File returns the path of the file that was opened. It is empty if there is no library.
func File() string { return lib.File() }

// Functions describes every function that this package binds, in the order of the header, with older forms last.
func Functions() []FunctionInfo { return lib.Functions() }

// Available returns nil if the function can be called. name is its C name or its name in this package. If the library or
// the function is missing, the error is an [*UnsupportedError]. Available loads the library if necessary, and does not call
// the function.
func Available(name string) error { return lib.Available(name) }

// Error is a result code as an error: its field Result is the library's code, never [SUCCESS]. Errors with the same code are
// equal, so errors.Is finds a code in a chain of errors.
type Error = dl.Error[Result]

// OK reports whether the call succeeded.
func (r Result) OK() bool { return r == SUCCESS }

// String returns the vendor's name of the code. A code that HEADER does not define is formatted as a number.
func (r Result) String() string { return lib.ResultName(int32(r)) }

// Text describes the code in a few words. It is empty for a code that HEADER does not define.
func (r Result) Text() string { return lib.ResultText(int32(r)) }

// Err returns nil for [SUCCESS], an [*UnsupportedError] if the function was not called because the library or the function
// is missing, and an [Error] for other codes.
func (r Result) Err() error { return dl.Err(lib, r) }

// Missing reports whether the function was not called, because the library is missing or lacks the function. [Result.Err]
// returns the details.
func (r Result) Missing() bool { return lib.MissingError(int32(r)) != nil }
`
