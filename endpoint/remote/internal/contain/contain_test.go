package contain_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
)

// Each way to start a goroutine reports a panic and runtime.Goexit to its request.
func TestPanicsAreErrorsOfTheRequest(t *testing.T) {
	for name, start := range map[string]func(f func(), failed func(error)){
		"Go":     contain.Go,
		"In":     func(f func(), failed func(error)) { contain.In(new(sync.WaitGroup), f, failed) },
		"After":  func(f func(), failed func(error)) { contain.After(0, f, failed) },
		"OnDone": func(f func(), failed func(error)) { contain.OnDone(canceled(), f, failed) },
		"Call": func(f func(), failed func(error)) {
			failed(contain.Call(func() error { f(); return nil }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan error, 1)
			start(func() { panic("boom") }, func(err error) { got <- err })
			require.ErrorIs(t, <-got, contain.ErrPanic)
			start(func() { var p *int; *p = 1 }, func(err error) { got <- err })
			require.ErrorIs(t, <-got, contain.ErrPanic)
			if name != "Call" {
				start(runtime.Goexit, func(err error) { got <- err })
				require.ErrorIs(t, <-got, contain.ErrPanic)
				start(func() { panic("boom") }, nil)
				start(func() { panic("boom") }, func(error) { panic("again") })
				done := make(chan struct{})
				start(func() { close(done) }, func(err error) { got <- err })
				<-done
				time.Sleep(time.Millisecond)
				require.Empty(t, got, "it returned")
			}
		})
	}
	require.Equal(t, errors.ErrUnsupported, contain.Call(func() error { return errors.ErrUnsupported }))
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// ofRequests lists the packages whose goroutines belong to requests.
var ofRequests = []string{"admission", "admission/grpcguard", "bulk", "compute", "inference", "jsonrpc", "models", "modelwire", "stream", "stream/streamgate", "stream/torchsave"}

// ofProcess lists the functions of these packages whose goroutines belong to the process.
var ofProcess = map[string]bool{"compute.Serve": true, "compute.stop": true, "compute.Shutdown": true}

// Packages that handle requests start goroutines only with package contain.
func TestRequestsStartContainedGoroutines(t *testing.T) {
	var found []string
	for _, folder := range ofRequests {
		files, err := filepath.Glob(filepath.Join("../..", folder, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files, folder)
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			found = append(found, uncontained(t, path, text)...)
		}
	}
	require.Empty(t, found, "use contain.Go, contain.In, contain.After or contain.OnDone")
}

// The check finds each way to start a goroutine.
func TestUncontainedGoroutinesAreFound(t *testing.T) {
	for text, want := range map[string]int{
		"go f()":                          1,
		"go func() {}()":                  1,
		"var wg sync.WaitGroup; wg.Go(f)": 1,
		"g, _ := errgroup.WithContext(c); g.Go(f)": 1,
		"time.AfterFunc(1, f)":                     1,
		"context.AfterFunc(c, f)":                  1,
		"x.y.running.Go(func() { go f() })":        2,
		"contain.Go(f, nil)":                       0,
		"contain.In(&wg, f, nil); f()":             0,
	} {
		require.Len(t, uncontained(t, "x.go", []byte("package x\nfunc f() {\n"+text+"\n}\n")), want, text)
	}
}

// uncontained returns the places of a file that start a goroutine without package contain.
func uncontained(t *testing.T, path string, text []byte) (found []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, text, 0)
	require.NoError(t, err)
	for _, declared := range file.Decls {
		if f, is := declared.(*ast.FuncDecl); is && ofProcess[file.Name.Name+"."+f.Name.Name] {
			continue
		}
		ast.Inspect(declared, func(n ast.Node) bool {
			bad := false
			switch n := n.(type) {
			case *ast.GoStmt:
				bad = true
			case *ast.CallExpr:
				if called, is := n.Fun.(*ast.SelectorExpr); is {
					of, isName := called.X.(*ast.Ident)
					contained := isName && of.Name == "contain"
					bad = !contained && (called.Sel.Name == "Go" || called.Sel.Name == "TryGo" || called.Sel.Name == "AfterFunc")
				}
			}
			if bad {
				found = append(found, fmt.Sprintf("%s in %s", set.Position(n.Pos()), file.Name.Name))
			}
			return true
		})
	}
	return found
}
