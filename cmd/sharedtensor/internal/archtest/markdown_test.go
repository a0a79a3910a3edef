package archtest

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Markdown returns the table as shown in CONTRIBUTING.md. Consecutive rows with the same permissions share a line.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| package | of ours | of others |\n|---|---|---|\n")
	for i := 0; i < len(Table); {
		first, names := Table[i], []string{}
		for ; i < len(Table) && sameRights(first, Table[i]); i++ {
			names = append(names, "`"+strings.TrimSuffix(Table[i].Package, "/...")+"`")
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", strings.Join(names, ", "), cell(first.Ours, ourName), cell(first.Theirs, theirName))
	}
	return b.String()
}

// sameRights reports whether two rows allow the same imports.
func sameRights(a, b Row) bool {
	return slices.Equal(a.Ours, b.Ours) && slices.Equal(a.Theirs, b.Theirs)
}

func cell(imports []string, name func(string) string) string {
	if len(imports) == 0 {
		return "-"
	}
	names := make([]string, len(imports))
	for i, p := range imports {
		names[i] = name(p)
	}
	return strings.Join(names, ", ")
}

func ourName(pkg string) string {
	if pkg == everything {
		return "everything"
	}
	return pkg
}

// theirName returns the common name of a module.
func theirName(module string) string {
	if name, ok := strings.CutPrefix(module, "golang.org/"); ok {
		return name
	}
	if base := path.Base(module); !strings.HasPrefix(base, "v") || len(base) > 2 {
		return base
	}
	return path.Base(path.Dir(module))
}
