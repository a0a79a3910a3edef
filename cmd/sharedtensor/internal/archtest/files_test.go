package archtest

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// maxLines is the maximum length of a file. A longer file usually has two subjects.
const maxLines = 500

// checkSize finds files over maxLines. Generated files are exempt.
func checkSize(s *source) []Violation {
	if s.size <= maxLines || s.generated() {
		return nil
	}
	return []Violation{{File: s.path, Text: fmt.Sprintf("%d lines, at most %d", s.size, maxLines)}}
}

// checkPackages finds packages without a package comment. Folders that contain only tests need none.
func checkPackages(sources []*source) []Violation {
	documented := map[string]bool{}
	first := map[string]*source{}
	var order []string
	for _, s := range sources {
		if s.test {
			continue
		}
		if first[s.pkg] == nil {
			first[s.pkg] = s
			order = append(order, s.pkg)
		}
		documented[s.pkg] = documented[s.pkg] || s.file.Doc != nil
	}
	var found []Violation
	for _, pkg := range order {
		if !documented[pkg] {
			found = append(found, first[pkg].at(first[pkg].file.Package, "package %s has no package comment", pkg))
		}
	}
	return found
}

// personal matches paths that exist only on a developer's machine. The pattern is split so that this file does not
// match.
var personal = regexp.MustCompile(`(^|[\s"'` + "`" + `(=:])(/ho` + `me/|/Us` + `ers/|/ro` + `ot/|/wo` + `rk/|[A-Z]:\\Us` + `ers\\)[A-Za-z0-9_.-]`)

// checkText finds paths that exist only on a developer's machine.
func checkText(t text) []Violation {
	if !personal.Match(t.data) || bytes.IndexByte(t.data, 0) >= 0 {
		return nil
	}
	var found []Violation
	for i, line := range strings.Split(string(t.data), "\n") {
		if m := personal.FindString(line); m != "" {
			found = append(found, Violation{File: t.path, Line: i + 1, Text: fmt.Sprintf("names a path of one machine: %q", m)})
		}
	}
	return slices.Clip(found)
}
