package main

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"modernc.org/cc/v4"
)

// header holds the declarations of cuda.h in order. The compiler front end modernc.org/cc parses it for 64-bit Linux.
// Sizes and offsets are the same in the System V and AAPCS64 conventions.
type header struct {
	typedefs  []typedef
	functions []declaration
	macros    []*cc.Macro
	expanded  map[string]string // full expansion of each macro without parameters, at the end of the file
}

// typedef is one typedef. alias is the name of the other typedef that it repeats, or empty.
type typedef struct {
	name, alias string
	typ         cc.Type
}

// declaration is a declaration of a function under its symbol's name.
type declaration struct {
	name       string
	params     []*cc.Parameter
	result     cc.Type
	deprecated bool
}

// builtin replaces a C compiler's own definitions and the files that cuda.h includes.
const builtin = `
#define __LP64__ 1
#define __GNUC__ 4
#define __STDC_VERSION__ 201112L
#define __SIZE_TYPE__ unsigned long
#define __PTRDIFF_TYPE__ long
#define __WCHAR_TYPE__ int
int __predefined_declarator;
typedef unsigned long size_t;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
`

var (
	includeLine = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include\b.*$`)
	defineLine  = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*define[ \t]+(\w+)`)
)

// sources returns the configuration and the inputs for a header and additional macros.
func sources(text string, macros []string) (*cc.Config, []cc.Source, error) {
	abi, err := cc.NewABI("linux", "amd64")
	if err != nil {
		return nil, nil, err
	}
	defines := builtin
	for _, m := range macros {
		defines += "#define " + m + "\n"
	}
	return &cc.Config{ABI: abi, Header: true, EvalAllMacros: true}, []cc.Source{
		{Name: "<builtin>", Value: defines}, {Name: "cuda.h", Value: includeLine.ReplaceAllString(text, "")},
	}, nil
}

// parse reads a header with additional macros.
func parse(text string, macros ...string) (*header, error) {
	config, inputs, err := sources(text, macros)
	if err != nil {
		return nil, err
	}
	ast, err := cc.Translate(config, inputs)
	if err != nil {
		return nil, err
	}
	h := &header{}
	for unit := ast.TranslationUnit; unit != nil; unit = unit.TranslationUnit {
		if d := unit.ExternalDeclaration.Declaration; d != nil && d.DeclarationSpecifiers != nil {
			h.add(d)
		}
	}
	h.macros = slices.SortedFunc(maps.Values(ast.Macros), func(a, b *cc.Macro) int {
		return cmp.Compare(a.Position().Line, b.Position().Line)
	})
	h.expanded, err = expand(text, macros...)
	return h, err
}

// add adds the typedefs and functions of one declaration.
func (h *header) add(d *cc.Declaration) {
	for l := d.InitDeclaratorList; l != nil; l = l.InitDeclaratorList {
		declarator := l.InitDeclarator.Declarator
		t := declarator.Type()
		switch f, isFunction := t.(*cc.FunctionType); {
		case declarator.IsTypename():
			alias := ""
			if declarator.Pointer == nil && declarator.DirectDeclarator.Case == cc.DirectDeclaratorIdent {
				alias = typedefName(d.DeclarationSpecifiers.Type())
			}
			h.typedefs = append(h.typedefs, typedef{declarator.Name(), alias, t})
		case isFunction:
			// cc sets attributes on the type of the declarator that follows them.
			deprecated := t.Attributes() != nil && t.Attributes().IsAttrSet("deprecated")
			params := f.Parameters()
			if len(params) == 1 && params[0].Type().Kind() == cc.Void {
				params = nil
			}
			h.functions = append(h.functions, declaration{declarator.Name(), params, f.Result(), deprecated})
		}
	}
}

// expand returns the full expansions of all macros without parameters, as text.
func expand(text string, macros ...string) (map[string]string, error) {
	names := map[string]bool{}
	for _, match := range defineLine.FindAllStringSubmatch(text, -1) {
		names[match[1]] = true
	}
	var ends strings.Builder
	for name := range names {
		fmt.Fprintf(&ends, "\n#ifdef %s\n\"%s\" %s\n#endif\n", name, name, name)
	}
	config, inputs, err := sources(text+ends.String(), macros)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := cc.Preprocess(config, inputs, &out); err != nil {
		return nil, err
	}
	expanded := map[string]string{}
	for lines := bufio.NewScanner(&out); lines.Scan(); {
		if name, body, ok := strings.Cut(strings.TrimPrefix(lines.Text(), `"`), `"`); ok && names[name] {
			expanded[name] = strings.TrimSpace(body)
		}
	}
	return expanded, nil
}

// typedefName returns the name of the typedef with which a type was written, or "".
func typedefName(t cc.Type) string {
	if d := t.Typedef(); d != nil {
		return d.Name()
	}
	return ""
}

// fields returns the members of a struct or union. A struct that is declared but not defined has none.
func fields(t cc.Type) []*cc.Field {
	r, ok := t.(interface {
		NumFields() int
		FieldByIndex(i int) *cc.Field
	})
	if !ok || t.IsIncomplete() {
		return nil
	}
	out := make([]*cc.Field, r.NumFields())
	for i := range out {
		out[i] = r.FieldByIndex(i)
	}
	return out
}

func isRecord(t cc.Type) bool { return t.Kind() == cc.Struct || t.Kind() == cc.Union }

// recordID identifies a struct or union by the position of its first member, because cc copies a type for each typedef.
func recordID(t cc.Type) string {
	members := fields(t)
	switch {
	case len(members) == 0:
		return ""
	case members[0].Declarator() == nil:
		return "(" + recordID(members[0].Type())
	}
	return members[0].Declarator().Position().String()
}

// enumID identifies an enumeration by its first value.
func enumID(e *cc.EnumType) *cc.Enumerator {
	if all := e.Enumerators(); len(all) > 0 {
		return all[0]
	}
	return nil
}

// number returns an integer constant. An unsigned 64-bit constant of 1<<63 or more becomes negative.
func number(v cc.Value) (int64, bool) {
	switch v := v.(type) {
	case cc.Int64Value:
		return int64(v), true
	case cc.UInt64Value:
		return int64(v), true
	}
	return 0, false
}
