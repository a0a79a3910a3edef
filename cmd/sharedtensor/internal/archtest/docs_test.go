package archtest

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"unicode"
)

// checkDocs finds exported identifiers without a doc comment. Constants and variables may share the comment of their
// group. A field may be documented at the end of its line or in the comment of a field before it. Fields of generated
// types, which mirror a C header, need no comment.
func checkDocs(s *source) []Violation {
	var found []Violation
	missing := func(pos token.Pos, kind, name string) {
		found = append(found, s.at(pos, "exported %s %s has no doc comment", kind, name))
	}
	for _, decl := range s.file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && d.Doc == nil && receiverExported(d) {
				missing(d.Pos(), "function", d.Name.Name)
			}
		case *ast.GenDecl:
			checkGroup(d, !s.generated(), missing)
		}
	}
	return found
}

// checkGroup checks the types, constants and variables of one declaration, and the members of types if members is set.
func checkGroup(d *ast.GenDecl, members bool, missing func(token.Pos, string, string)) {
	for _, spec := range d.Specs {
		switch sp := spec.(type) {
		case *ast.TypeSpec:
			if !sp.Name.IsExported() {
				continue
			}
			if sp.Doc == nil && (d.Lparen.IsValid() || d.Doc == nil) {
				missing(sp.Pos(), "type", sp.Name.Name)
			}
			if members {
				checkMembers(sp, missing)
			}
		case *ast.ValueSpec:
			if d.Doc != nil || sp.Doc != nil || sp.Comment != nil {
				continue
			}
			for _, name := range sp.Names {
				if name.IsExported() {
					missing(name.Pos(), d.Tok.String(), name.Name)
				}
			}
		}
	}
}

// checkMembers checks the fields of a struct and the methods of an interface.
func checkMembers(sp *ast.TypeSpec, missing func(token.Pos, string, string)) {
	var members *ast.FieldList
	kind := "field"
	switch t := sp.Type.(type) {
	case *ast.StructType:
		members = t.Fields
	case *ast.InterfaceType:
		members, kind = t.Methods, "method"
	default:
		return
	}
	var said string // comment of the last documented field
	for _, f := range members.List {
		if f.Doc != nil || f.Comment != nil {
			said = f.Doc.Text()
			continue
		}
		for _, name := range f.Names { // an embedded field has no names: it is documented at its declaration
			if name.IsExported() && !names(said, name.Name) {
				missing(name.Pos(), kind, sp.Name.Name+"."+name.Name)
			}
		}
	}
}

// names reports whether a comment mentions an identifier.
func names(comment, identifier string) bool {
	return slices.Contains(strings.FieldsFunc(comment, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }), identifier)
}

// receiverExported reports whether d is a function, or a method of an exported type.
func receiverExported(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}
