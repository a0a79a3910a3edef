package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// moduleRoot returns the folder of go.mod, above this package.
func moduleRoot(t *testing.T) string {
	dir, err := os.Getwd()
	require.NoError(t, err)
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		require.NotEqual(t, dir, parent, "no go.mod above the test")
		dir = parent
	}
}

func TestRepository(t *testing.T) {
	found, err := Check(moduleRoot(t))
	require.NoError(t, err)
	for _, v := range found {
		t.Error(v)
	}
}

// plant writes files into a new module and returns what Check finds in it, as lines.
func plant(t *testing.T, files map[string]string) string {
	root := t.TempDir()
	files["go.mod"] = "module " + Module + "\n"
	for name, content := range files {
		name = filepath.Join(root, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
	}
	found, err := Check(root)
	require.NoError(t, err)
	var lines []string
	for _, v := range found {
		lines = append(lines, v.String())
	}
	return strings.Join(lines, "\n")
}

// pkg returns the source of a documented package that imports the given paths.
func pkg(name string, imports ...string) string {
	var b strings.Builder
	b.WriteString("// Package " + name + " is planted.\npackage " + name + "\n")
	for _, i := range imports {
		b.WriteString("import _ \"" + i + "\"\n")
	}
	return b.String()
}

func TestViolationsFound(t *testing.T) {
	ours := func(p string) string { return Module + "/" + p }
	for name, c := range map[string]struct {
		path, content, want string
	}{
		"upper floor":          {"tensor/x.go", pkg("tensor", ours("module")), "tensor may not import " + ours("module")},
		"side wing":            {"endpoint/x.go", pkg("endpoint", ours("driver/host")), "endpoint may not import " + ours("driver/host")},
		"upper floor in test":  {"tensor/x_test.go", pkg("tensor", ours("module")), "tensor may not import " + ours("module")},
		"other file systems":   {"tensor/x_windows.go", pkg("tensor", ours("module")), "tensor may not import " + ours("module")},
		"other build tags":     {"tensor/x.go", "//go:build nocuda\n\n" + pkg("tensor", ours("wire")), "tensor may not import " + ours("wire")},
		"third party":          {"tensor/x.go", pkg("tensor", xsys+"/unix"), "tensor may not import " + xsys + "/unix"},
		"testify in product":   {"tensor/x.go", pkg("tensor", testify+"/require"), "tensor may not import " + testify},
		"unknown module":       {"cmd/a/x.go", pkg("main", "example.org/x"), "cmd/a may not import example.org/x"},
		"look-alike module":    {"wire/x.go", pkg("wire", xsys+"tem"), "wire may not import " + xsys + "tem"},
		"unsafe":               {"tensor/x.go", pkg("tensor", "unsafe"), "tensor may not import unsafe"},
		"unsafe by folder":     {"tensor/internal/unsafe/unsafe.go", pkg("unsafe", "unsafe"), "may not import unsafe"},
		"purego":               {"driver/cuda/x.go", pkg("cuda", purego), "driver/cuda may not import " + purego},
		"cgo":                  {"driver/cuda/cu/x.go", pkg("cu", "C"), "driver/cuda/cu may not import C"},
		"no row":               {"utils/x.go", pkg("utils"), "package utils has no row"},
		"code at the root":     {"x.go", pkg("sharedtensor", ours("tensor")), ". may not import " + ours("tensor")},
		"internal of no row":   {"utils/internal/a/x.go", pkg("a"), "package utils/internal/a has no row"},
		"internal has a row":   {"tensor/internal/a/x.go", pkg("a", ours("wire")), "tensor/internal/a may not import " + ours("wire")},
		"package comment":      {"tensor/x.go", "package tensor\n", "tensor/x.go:1: package tensor has no package comment"},
		"function":             {"tensor/x.go", pkg("tensor") + "\nfunc F() {}\n", "tensor/x.go:4: exported function F"},
		"method":               {"tensor/x.go", pkg("tensor") + "// T is.\ntype T[E any] int\nfunc (*T[E]) M() {}\n", "exported function M"},
		"type":                 {"tensor/x.go", pkg("tensor") + "type T int\n", "exported type T"},
		"field beside another": {"tensor/x.go", pkg("tensor") + "// T is.\ntype T struct{\n// A is.\nA int\nB int\n}\n", "exported field T.B"},
		"field":                {"tensor/x.go", pkg("tensor") + "// T is.\ntype T struct{ A, b int }\n", "exported field T.A"},
		"interface method":     {"tensor/x.go", pkg("tensor") + "// T is.\ntype T interface{ M() }\n", "exported method T.M"},
		"constant":             {"tensor/x.go", pkg("tensor") + "const C = 1\n", "exported const C"},
		"long file":            {"tensor/x.go", pkg("tensor") + strings.Repeat("\n", maxLines), "at most 500"},
		"personal path":        {"tensor/x.md", "see /ho" + "me/me/x\n", "tensor/x.md:1: names a path of one machine"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, plant(t, map[string]string{c.path: c.content}), c.want)
		})
	}
}

// Packages that may import everything still must not import a nested module.
func TestNestedModuleIsNotImported(t *testing.T) {
	for _, importer := range []string{"cmd/a/x.go", "cmd/a/x_test.go", "endpoint/x_test.go"} {
		found := plant(t, map[string]string{
			"endpoint/remote/go.mod": "module " + Module + "/endpoint/remote\n",
			importer:                 pkg("a", Module+"/endpoint/remote/gateway"),
		})
		require.Contains(t, found, "endpoint/remote is a module of its own", importer)
	}
}

func TestAllowedImportsPass(t *testing.T) {
	ours := func(p string) string { return Module + "/" + p }
	require.Empty(t, plant(t, map[string]string{
		"tensor/x.go":                    pkg("tensor", "fmt", ours("driver"), ours("tensor/internal/a")),
		"tensor/x_unsafe.go":             pkg("tensor", "unsafe"),
		"tensor/x_test.go":               pkg("tensor_test", ours("tensor"), ours("driver/host"), testify+"/require"),
		"tensor/internal/a/x.go":         pkg("a", ours("driver")),
		"driver/cuda/cu/x.go":            pkg("cu", "unsafe", purego),
		"driver/cuda/cu/gen_x.go":        "// Code generated by gen. DO NOT EDIT.\n\n" + pkg("cu") + "// T is.\ntype T struct{ F int }\n" + strings.Repeat("\n", maxLines),
		"driver/cuda/cu/internal/a/x.go": pkg("a", "strings"),
		"endpoint/x_test.go":             pkg("endpoint", ours("module/safetensors"), ours("driver/cuda/cudatest")),
		"endpoint/remote/go.mod":         "module " + ours("endpoint/remote") + "\n",
		"endpoint/remote/x.go":           "package remote\nimport _ \"example.org/x\"\n",
		"cmd/a/x.go":                     pkg("main", cobra, ours("endpoint/keeper"), ours("driver/cuda")),
		"tensor/testdata/x.go":           "package broken",
	}))
}

func TestTableOrder(t *testing.T) {
	floor := map[string]int{}
	for i, r := range Table {
		require.NotContains(t, floor, r.Package, "two rows for one package")
		floor[r.Package] = i
	}
	for i, r := range Table {
		for _, p := range r.Ours {
			if p == everything {
				continue
			}
			require.Contains(t, floor, p, "row %s names a package without a row", r.Package)
			require.Less(t, floor[p], i, "row %s imports %s, which is not below it", r.Package, p)
		}
	}
}
