package cu

import (
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// These counts of declarations in the header were made by hand for the version from which the package was generated.
// They detect a generator that loses functions, also without a header.
const (
	wantBound    = 539 // functions of this package: 493 current names, 46 older forms
	wantDeclared = 685 // declarations in the header, including older forms and both kinds of default stream
	wantUnbound  = 42  // forms from before CUDA 3.2, with 32-bit device pointers
)

// declared finds declarations independently of the generator's parser.
var declared = regexp.MustCompile(`CUresult\s+CUDAAPI\s+(cu\w+)\s*\(`)

// The package binds all functions that cuda.h declares.
func TestCoverage(t *testing.T) {
	require.Len(t, table, wantBound)
	require.Len(t, unboundSymbols, wantUnbound)
	header := os.Getenv("CUDA_H")
	if header == "" {
		t.Skip("no cuda.h in CUDA_H: functions are not counted against the header")
	}
	text, err := os.ReadFile(header)
	require.NoError(t, err)
	symbols, names := map[string]bool{}, map[string]bool{}
	for _, e := range &table {
		symbols[e.symbol], names[e.name] = true, true
		if e.perThread != "" {
			symbols[e.perThread] = true
		}
	}
	unbound := map[string]bool{}
	for _, s := range unboundSymbols {
		unbound[s] = true
	}

	// The part after the mark is for the driver's own sources. Programs see the part before it.
	mark := strings.Index(string(text), "CUDA API versioning support")
	require.Positive(t, mark)
	end := mark + strings.Index(string(text[mark:]), "#elif")
	seen, covered := 0, 0
	var missing, left []string
	all := declared.FindAllStringSubmatchIndex(string(text), -1)
	for _, m := range all {
		name := string(text[m[2]:m[3]])
		public := m[0] < mark || m[0] > end
		switch {
		case symbols[name] || public && names[name]:
			covered++
		case !public && unbound[name]:
			left = append(left, name)
		default:
			missing = append(missing, name)
		}
		if public {
			seen++
		}
	}
	t.Logf("cuda.h %s: %d functions that programs see and %d other forms; %d of these %d are called, %d from before CUDA 3.2 are not: %.1f %% of what programs see",
		HeaderVersion, seen, len(all)-seen, covered, len(all), len(left), 100*float64(seen-len(missing))/float64(seen))
	require.Empty(t, missing)
	require.Len(t, all, wantDeclared)
}

// Every function has the version and symbol that the typed errors need.
func TestEveryFunctionHasVersion(t *testing.T) {
	names := map[string]bool{}
	for _, f := range Functions() {
		require.GreaterOrEqual(t, f.Since, Version(2000), f.Name)
		require.LessOrEqual(t, f.Since, HeaderVersion, f.Name)
		require.False(t, names[f.GoName], f.GoName)
		names[f.GoName] = true
		require.True(t, strings.HasPrefix(f.Symbol, "cu"), f.Symbol)
	}
	for r, n := range resultNames {
		require.NotEmpty(t, n.text, n.name)
		require.Equal(t, n.name, r.String())
	}
}

// Every exported name has a comment that starts with the name.
func TestEverythingIsDocumented(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	functions := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() {
					functions++
					requireDoc(t, d.Name.Name, d.Doc)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if ts, ok := s.(*ast.TypeSpec); ok && ts.Name.IsExported() {
						requireDoc(t, ts.Name.Name, d.Doc)
					}
				}
				if d.Tok == token.CONST && d.Lparen.IsValid() && strings.HasPrefix(name, "z_enums") {
					require.NotNil(t, d.Doc, name)
				}
			}
		}
	}
	require.Greater(t, functions, wantBound)
}

// requireDoc requires a comment of at least a short sentence in addition to the line with the C name.
func requireDoc(t *testing.T, name string, doc *ast.CommentGroup) {
	t.Helper()
	require.NotNil(t, doc, name)
	require.True(t, strings.HasPrefix(doc.Text(), name+" "), name)
	var p comment.Parser
	first, ok := p.Parse(doc.Text()).Content[0].(*comment.Paragraph)
	require.True(t, ok, name)
	require.GreaterOrEqual(t, len(first.Text), 1, name)
	sentence, _, _ := strings.Cut(doc.Text(), "\n\n")
	require.Greater(t, len(strings.Fields(sentence)), 3, name)
}
