package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Violation describes one broken rule.
type Violation struct {
	// File is the slash-separated path relative to the root.
	File string
	// Line is the line number, or 0 for the whole file.
	Line int
	// Text describes the violation.
	Text string
}

// String returns the violation as "file:line: text".
func (v Violation) String() string {
	if v.Line == 0 {
		return v.File + ": " + v.Text
	}
	return fmt.Sprintf("%s:%d: %s", v.File, v.Line, v.Text)
}

// source is one Go file of the root module.
type source struct {
	path string // relative to the root, with slashes
	pkg  string // the file's folder
	test bool
	file *ast.File
	fset *token.FileSet
	size int // in lines
	// nested lists the folders of modules inside the root module.
	nested []string
}

// at returns a violation at a position in the file.
func (s *source) at(pos token.Pos, format string, args ...any) Violation {
	return Violation{File: s.path, Line: s.fset.Position(pos).Line, Text: fmt.Sprintf(format, args...)}
}

// generated reports whether the file is marked as generated.
func (s *source) generated() bool { return ast.IsGenerated(s.file) }

// Check reads the module at root and returns all violations in order of path. Nested modules are skipped.
func Check(root string) ([]Violation, error) {
	sources, texts, err := read(root)
	if err != nil {
		return nil, err
	}
	var found []Violation
	for _, s := range sources {
		found = append(found, checkImports(s)...)
		found = append(found, checkSize(s)...)
		if !s.test {
			found = append(found, checkDocs(s)...)
		}
	}
	found = append(found, checkPackages(sources)...)
	for _, t := range texts {
		found = append(found, checkText(t)...)
	}
	return found, nil
}

// text is a file that is not Go source: documentation, scripts, configuration.
type text struct {
	path string
	data []byte
}

// textSuffixes are the file name suffixes that checkText covers.
var textSuffixes = []string{
	".go", ".md", ".mod", ".sum", ".yml", ".yaml", ".json", ".cddl", ".c", ".h", ".cu", ".ptx", ".py", ".sh", ".txt", "/run", "LICENSE",
}

// read parses the Go files and collects the text files below root.
func read(root string) (sources []*source, texts []text, err error) {
	var nested []string
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if isModule(name) && rel != "." {
				nested = append(nested, rel)
			}
			return enter(name, rel)
		}
		if !d.Type().IsRegular() || !isText(rel) {
			return nil
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		texts = append(texts, text{path: rel, data: data})
		if !strings.HasSuffix(rel, ".go") || hidden(rel) {
			return nil
		}
		s, err := parse(rel, data)
		sources = append(sources, s)
		return err
	})
	for _, s := range sources {
		s.nested = nested
	}
	return sources, texts, err
}

// enter returns an error that skips folders outside the module's sources.
func enter(name, rel string) error {
	switch rel {
	case ".":
		return nil
	case ".git", "bin", "gpu_test/bin":
		return fs.SkipDir
	}
	if isModule(name) {
		return fs.SkipDir
	}
	return nil
}

// isModule reports whether the folder is the root of a module.
func isModule(name string) bool {
	_, err := os.Stat(filepath.Join(name, "go.mod"))
	return err == nil
}

// hidden reports whether the go command ignores the file because of its folder.
func hidden(rel string) bool {
	for part := range strings.SplitSeq(rel, "/") {
		if part == "testdata" || strings.HasPrefix(part, ".") || strings.HasPrefix(part, "_") {
			return true
		}
	}
	return false
}

func isText(rel string) bool {
	for _, suffix := range textSuffixes {
		if strings.HasSuffix(rel, suffix) {
			return true
		}
	}
	return false
}

func parse(rel string, data []byte) (*source, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, rel, data, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return &source{
		path: rel, pkg: path.Dir(rel), test: strings.HasSuffix(rel, "_test.go"),
		file: f, fset: fset, size: strings.Count(string(data), "\n"),
	}, nil
}
