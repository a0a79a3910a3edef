package archtest

import (
	"slices"
	"strconv"
	"strings"
)

// checkImports checks the imports of one file against the table.
func checkImports(s *source) []Violation {
	r, floor, ok := row(s.pkg)
	if !ok {
		return []Violation{s.at(s.file.Package, "package %s has no row in the import table", s.pkg)}
	}
	var found []Violation
	for _, spec := range s.file.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // unreachable: the parser accepted the path
		}
		if reason := refuse(s, r, floor, name); reason != "" {
			found = append(found, s.at(spec.Pos(), "%s may not import %s: %s", s.pkg, name, reason))
		}
	}
	return found
}

// refuse returns why the file may not import name, or "" if it may.
func refuse(s *source, r Row, floor int, name string) string {
	if name == "unsafe" && !unsafeAllowed(s.pkg, s.path) {
		return "only driver/cuda/cu and files named *_unsafe.go may"
	}
	if name == "C" {
		return "there is no cgo in this module"
	}
	if name == Module {
		return "there is no package at the root"
	}
	if ours, ok := strings.CutPrefix(name, Module+"/"); ok {
		if i := slices.IndexFunc(s.nested, func(m string) bool { return within(ours, m) }); i >= 0 {
			return s.nested[i] + " is a module of its own, which depends on this one"
		}
		if !oursAllowed(s, r, floor, ours) {
			return "not in its row of the import table"
		}
		return ""
	}
	if standard(name) || theirsAllowed(s, r, name) {
		return ""
	}
	return "not in its row of the import table"
}

// oursAllowed reports whether the file may import a package of this module.
func oursAllowed(s *source, r Row, floor int, pkg string) bool {
	if slices.Contains(r.Ours, everything) || slices.Contains(r.Ours, pkg) || sameHouse(s.pkg, pkg) {
		return true
	}
	if !s.test {
		return false
	}
	if within(s.pkg, "endpoint") && strings.HasSuffix(s.file.Name.Name, "_test") {
		_, of, _ := row(fixture)
		floor = max(floor, of+1)
	}
	_, lower, ok := row(pkg)
	return within(pkg, s.pkg) || slices.Contains(testDevices, pkg) || ok && lower < floor
}

// sameHouse reports whether one package is an internal package of the other, or both are internal packages of a third.
// Go itself refuses imports of internal packages from elsewhere.
func sameHouse(a, b string) bool {
	house := func(p string) string {
		house, _, _ := strings.Cut(p, "/internal/")
		return house
	}
	return a != b && (a != house(a) || b != house(b)) && house(a) == house(b)
}

// theirsAllowed reports whether the file may import a package of another module.
func theirsAllowed(s *source, r Row, name string) bool {
	if s.test && (within(name, testify) || within(name, xsys)) {
		return true
	}
	return slices.ContainsFunc(r.Theirs, func(m string) bool { return within(name, m) })
}

// standard reports whether an import path is of the standard library: its first element has no dot.
func standard(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return !strings.Contains(first, ".")
}
