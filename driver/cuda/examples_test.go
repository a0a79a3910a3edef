package cuda_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every exported type has a runnable example: one of the type, or of one of its methods.
func TestEveryTypeHasAnExample(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	types, examples := map[string]bool{}, map[string]bool{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.ParseComments)
		require.NoError(t, err)
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok && s.Name.IsExported() && !strings.HasSuffix(e.Name(), "_test.go") {
						types[s.Name.Name] = true
					}
				}
			case *ast.FuncDecl:
				if name, ok := strings.CutPrefix(d.Name.Name, "Example"); ok && d.Recv == nil {
					name, _, _ = strings.Cut(name, "_")
					examples[name] = true
				}
			}
		}
	}
	require.Greater(t, len(types), 50)
	for name := range types {
		require.True(t, examples[name], "type %s has no example", name)
	}
}
