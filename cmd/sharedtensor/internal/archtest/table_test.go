// Package archtest checks the structure of the repository: which package may import which, which files use unsafe, that
// exported identifiers are documented, and that files stay small. It reads source files of all operating systems and
// build tags. Its test runs the checks on this repository.
//
// The table in table_test.go is the only source of the import rules. The list in the contributing guide
// (.github/CONTRIBUTING.md) is generated from it, and a test fails if it differs.
package archtest

import (
	"path"
	"slices"
	"strings"
)

// Module is the path of the root module.
const Module = "github.com/sharedtensor/sharedtensor"

// Third-party modules that the root module uses.
const (
	cbor        = "github.com/fxamacker/cbor/v2"
	cobra       = "github.com/spf13/cobra"
	progressbar = "github.com/schollz/progressbar/v3"
	purego      = "github.com/ebitengine/purego"
	testify     = "github.com/stretchr/testify"
	xsys        = "golang.org/x/sys"
	xterm       = "golang.org/x/term"
	yaml        = "go.yaml.in/yaml/v3"
)

// fixture is the package that the tests of the whole product share.
const fixture = "endpoint/internal/fixture"

// everything, in Row.Ours, allows all packages of the module.
const everything = "..."

// Row lists what one package may import outside the standard library.
type Row struct {
	// Package is a path relative to the module. A trailing "/..." includes all packages below it.
	Package string
	// Ours lists the packages of this module that the package may import.
	Ours []string
	// Theirs lists the third-party modules that the package may import.
	Theirs []string
}

// Table lists the packages from the lowest floor to the highest. A package may import what its row names. Internal
// packages share the row of their parent unless they have a separate row, and their parent may import them. Test files
// may also import testify, x/sys, the package under test, packages in its folders, every lower floor, and testDevices.
// External test packages below endpoint test the whole product, so they may import fixture and every floor below it.
var Table = []Row{
	{Package: "."},
	{Package: "internal/ended"},
	{Package: "internal/userns"},
	{Package: "internal/logs"},
	{Package: "driver"},
	{Package: "driver/internal/reaper"},
	{Package: "task/panics"},
	{Package: "internal/trusted", Ours: []string{"internal/userns"}},
	{Package: "cache", Ours: []string{"internal/ended", "task/panics"}},
	{Package: "task", Ours: []string{"internal/ended", "task/panics"}},
	{Package: "wire/internal/ring", Theirs: []string{xsys}},
	{Package: "wire", Ours: []string{"internal/ended", "internal/userns", "wire/internal/ring"}, Theirs: []string{xsys}},
	{Package: "wire/message", Ours: []string{"wire", "wire/internal/ring"}, Theirs: []string{cbor}},
	{Package: "driver/drivertest", Ours: []string{"driver"}, Theirs: []string{testify}},
	{Package: "driver/host", Ours: []string{"driver", "driver/internal/reaper"}, Theirs: []string{xsys}},
	{Package: "driver/cuda/internal/ccall", Theirs: []string{purego}},
	{Package: "driver/cuda/internal/dl", Ours: []string{"driver/cuda/internal/ccall"}, Theirs: []string{purego}},
	{Package: "driver/cuda/cu", Ours: []string{"driver/cuda/internal/ccall", "driver/cuda/internal/dl"}, Theirs: []string{purego}},
	{Package: "driver/cuda/jitcache", Ours: []string{"internal/userns"}},
	{Package: "driver/cuda/nvrtc", Ours: []string{"driver/cuda/internal/dl", "driver/cuda/jitcache"}},
	{Package: "driver/cuda/nvjitlink", Ours: []string{"driver/cuda/internal/dl", "driver/cuda/jitcache"}},
	{Package: "driver/cuda/nvml", Ours: []string{"driver/cuda/internal/dl"}},
	{Package: "driver/cuda/nvml/nvmltest", Ours: []string{"driver/cuda/nvml"}},
	{Package: "driver/cuda/cu/result", Ours: []string{"driver/cuda/cu"}},
	{Package: "driver/cuda", Ours: []string{"driver", "driver/internal/reaper", "driver/cuda/cu"}, Theirs: []string{xsys}},
	{Package: "driver/cuda/cudatest", Ours: []string{"driver", "driver/cuda", "driver/cuda/cu"}, Theirs: []string{testify}},
	{Package: "internal/storages/hook"},
	{Package: "tensor", Ours: []string{"driver", "internal/storages/hook"}},
	{Package: "internal/storages", Ours: []string{"driver", "tensor", "internal/storages/hook"}},
	{Package: "module/safetensors", Ours: []string{"tensor"}, Theirs: []string{xsys}},
	{Package: "module/gguf", Ours: []string{"tensor"}},
	{Package: "module", Ours: []string{"internal/ended", "internal/storages", "driver", "tensor", "module/safetensors", "module/gguf"}},
	{Package: "module/hub"},
	{Package: "module/catalog", Ours: []string{"driver", "module"}},
	{Package: "endpoint/access"},
	{
		Package: "endpoint/internal/status",
		Ours:    []string{"driver", "tensor", "module", "module/catalog", "wire", "wire/message", "cache", "task", "task/panics"},
	},
	{Package: "endpoint/internal/codec", Ours: []string{"driver", "tensor", "module", "wire/message", "endpoint/internal/status"}},
	{Package: "endpoint/internal/transport", Ours: []string{"internal/ended", "internal/userns", "driver", "tensor", "wire", "wire/message", "endpoint/internal/status"}},
	{
		Package: "endpoint/internal/transfer",
		Ours:    []string{"driver", "tensor", "module", "wire", "wire/message", "endpoint/internal/codec", "endpoint/internal/status"},
	},
	{
		Package: "endpoint/internal/engine",
		Ours: []string{
			"internal/ended", "driver", "tensor", "module/catalog", "wire", "wire/message", "cache", "task", "task/panics", "endpoint/internal/status", "endpoint/internal/codec",
			"endpoint/internal/transfer", "endpoint/internal/transport",
		},
	},
	{
		Package: "endpoint/internal/client",
		Ours: []string{
			"internal/ended", "driver", "tensor", "module", "module/catalog", "wire", "wire/message", "task", "endpoint/internal/status", "endpoint/internal/codec",
			"endpoint/internal/transfer", "endpoint/internal/transport", "endpoint/internal/engine",
		},
	},
	{
		Package: "endpoint/internal/offering",
		Ours: []string{
			"driver", "tensor", "module/catalog", "wire", "wire/message", "endpoint/internal/status", "endpoint/internal/codec",
			"endpoint/internal/transfer", "endpoint/internal/engine",
		},
	},
	{
		Package: "endpoint/internal/session", // independent of the operations of a server
		Ours: []string{
			"internal/ended", "tensor", "wire", "wire/message", "task", "task/panics", "endpoint/internal/status", "endpoint/internal/transport",
		},
	},
	{Package: "endpoint/internal/handover", Ours: []string{"wire", "wire/message", "endpoint/internal/status"}, Theirs: []string{xsys}},
	{Package: "endpoint/internal/persist", Ours: []string{"wire/message", "endpoint/internal/status"}, Theirs: []string{xsys}},
	{
		Package: "endpoint/internal/server",
		Ours: []string{
			"driver", "tensor", "module", "module/catalog", "wire", "wire/message", "cache", "task", "endpoint/internal/status", "endpoint/internal/codec",
			"endpoint/internal/transfer", "endpoint/internal/transport", "endpoint/internal/engine",
			"endpoint/internal/offering", "endpoint/internal/session", "endpoint/internal/persist", "endpoint/internal/handover", "endpoint/access", "internal/ended", "internal/logs",
		},
	},
	{Package: "endpoint/internal/proctest", Ours: []string{"driver/drivertest", "wire", "wire/message"}, Theirs: []string{testify}},
	{
		Package: "endpoint",
		Ours: []string{
			"internal/ended", "driver", "tensor", "module", "module/catalog", "wire", "wire/message", "cache", "task", "task/panics",
			"endpoint/internal/status", "endpoint/internal/codec", "endpoint/internal/transfer", "endpoint/internal/transport",
			"endpoint/internal/client",
			"endpoint/internal/engine", "endpoint/internal/offering", "endpoint/internal/session", "endpoint/internal/persist", "endpoint/internal/handover",
			"endpoint/internal/server", "endpoint/access",
		},
	},
	{Package: "endpoint/intercept", Ours: []string{"endpoint"}},
	{Package: "endpoint/node", Ours: []string{"driver", "endpoint", "endpoint/internal/status", "endpoint/internal/transport"}},
	{
		Package: fixture,
		Ours: []string{
			"driver", "driver/host", "driver/cuda", "driver/cuda/cudatest", "driver/drivertest", "tensor", "module", "wire", "wire/message", "task", "endpoint",
			"endpoint/node", "endpoint/internal/proctest", "endpoint/internal/transport",
		},
		Theirs: []string{testify, xsys},
	},
	{Package: "endpoint/endpointtest", Ours: []string{"internal/ended", "endpoint", "driver", "driver/host", "driver/drivertest"}},
	{
		Package: "endpoint/keeper", Ours: []string{"internal/userns", "wire", "wire/message", "endpoint", "endpoint/internal/status", "endpoint/internal/transport"},
		Theirs: []string{xsys},
	},
	{Package: "endpoint/jsonvalue", Ours: []string{"endpoint"}},
	{Package: "endpoint/metrics", Ours: []string{"endpoint", "endpoint/access", "driver"}},
	{Package: "endpoint/internal/chaos", Ours: append([]string{"driver/host", "endpoint/keeper"}, belowEndpoint...)},
	{Package: "cmd/sharedtensor/internal/term", Ours: []string{"driver"}, Theirs: []string{progressbar, xterm}},
	{Package: "cmd/sharedtensor/internal/policyfile", Ours: []string{"internal/trusted", "endpoint/access"}, Theirs: []string{yaml}},
	{Package: "cmd/sharedtensor/internal/systemd", Ours: []string{"cmd/sharedtensor/internal/term"}},
	{
		Package: "cmd/sharedtensor/internal/cli", Theirs: []string{cobra},
		Ours: append([]string{"cmd/sharedtensor/internal/term", "driver/host", "driver/cuda"}, belowEndpoint...),
	},
	{Package: "cmd/...", Ours: []string{everything}, Theirs: []string{cobra, xsys}},
	{Package: "examples/...", Ours: []string{everything}, Theirs: []string{cobra}},
	{Package: "gpu_test/...", Ours: []string{everything}, Theirs: []string{xsys}},
}

// belowEndpoint is endpoint and its permitted imports.
var belowEndpoint = []string{
	"endpoint", "driver", "tensor", "module", "module/safetensors", "module/gguf", "module/catalog", "wire", "wire/message", "cache", "task", "task/panics",
}

// testDevices are the devices that tests run on, and their suite. Test files of every package may import them.
var testDevices = []string{"driver", "driver/host", "driver/drivertest", "driver/cuda", "driver/cuda/cudatest", "driver/cuda/nvml/nvmltest"}

// unsafeAllowed reports whether a file may import unsafe: every file of the binding and of package dl, generated files of
// the other bindings, and elsewhere files with unsafe in their name, such as cast_unsafe.go or recvmsg_unsafe_linux.go.
func unsafeAllowed(pkg, file string) bool {
	words := strings.Split(strings.TrimSuffix(path.Base(file), ".go"), "_")
	if words[0] == "z" && (pkg == "driver/cuda/nvrtc" || pkg == "driver/cuda/nvjitlink" || pkg == "driver/cuda/nvml") {
		return true
	}
	return within(pkg, "driver/cuda/cu") || within(pkg, "driver/cuda/internal/dl") || slices.Contains(words[1:], "unsafe")
}

// row returns the row that applies to a package: its own, the row of its parent if it is internal, or the row of a tree
// that contains it. floor is the row's index.
func row(pkg string) (r Row, floor int, ok bool) {
	owner := pkg
	for {
		for i, r := range Table {
			tree, isTree := strings.CutSuffix(r.Package, "/...")
			if r.Package == owner || isTree && within(owner, tree) {
				return r, i, true
			}
		}
		cut := strings.LastIndex("/"+owner, "/internal/")
		if cut <= 0 {
			return Row{}, 0, false
		}
		owner = owner[:cut-1]
	}
}

// within reports whether pkg is tree or below it.
func within(pkg, tree string) bool { return pkg == tree || strings.HasPrefix(pkg, tree+"/") }
