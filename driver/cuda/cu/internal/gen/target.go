package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// target is a header and the package that is generated from it.
type target struct {
	name     string // of the Go package, and of its directory beside package cu
	header   string // file name of the header
	env      string // environment variable with the header's path
	function string // prefix of the functions to bind
	result   string // C type of the result codes; its Go name is Result
	version  int    // the header's version, if the header does not define it
	// prefixes matches the prefix that Go names lack and the character after it. suffix is removed from the names of types.
	prefixes  *regexp.Regexp
	suffix    string
	types     []string          // prefixes of typedefs of the vendor
	constants *regexp.Regexp    // numeric macros to bind
	renamed   map[string]string // exceptions from the rule for names
	overrides map[string]string
	// older is the macro that makes the older forms visible. defines are macros for all parses.
	older   string
	defines []string
	// handwritten are the names of the package, besides the generated ones, that the texts may refer to.
	handwritten []string
	// library describes a package that calls its library through package dl. It is nil for package cu, which has its own calls.
	library *library
	// brief permits functions and types without a text. Their comments name the C declaration.
	brief bool
	// layouts requests a table of the layouts of the records, for a test of the package.
	layouts bool
}

// library is the part of a target that the generated table passes to package dl.
type library struct {
	title string   // name of the library in errors
	env   string   // environment variable with its path
	names []string // file names, newest first
	wheel []string // folders of Python wheels below site-packages, newest first
}

var targets = []*target{cuTarget, nvrtcTarget, nvjitlinkTarget, nvmlTarget}

func findTarget(name string) (*target, error) {
	for _, t := range targets {
		if t.name == name {
			return t, nil
		}
	}
	return nil, fmt.Errorf("there is no target %q", name)
}

// dir returns the directory of the package, relative to the generator.
func (t *target) dir() string { return filepath.Join("../../..", t.name) }

// docs returns the directory of the texts.
func (t *target) docs() string {
	if t.library == nil {
		return "docs"
	}
	return filepath.Join("docs", t.name)
}

var cuTarget = &target{
	name: "cu", header: "cuda.h", env: "CUDA_H", function: "cu", result: "CUresult",
	prefixes:  regexp.MustCompile(`^(cu|CUDA_|CU_|CU)([A-Z0-9a-z])`),
	types:     []string{"CU", "cl_"},
	constants: regexp.MustCompile(`^(CU|CUDA)_[A-Z0-9_]+$`),
	older:     "__CUDA_API_VERSION_INTERNAL",
	renamed:   map[string]string{"CUdeviceptr": "DevicePtr", "CUuuid": "UUID"},
	overrides: map[string]string{
		"*.userData":            "uintptr",
		"*.extra":               "*uintptr",
		"*.optionValues":        "*uintptr",
		"*.jitOptionsValues":    "*uintptr",
		"*.libraryOptionValues": "*uintptr",
		"*.globalAddress":       "DevicePtr",
		"*.pfn":                 "*uintptr",
		"*.fptr":                "*uintptr",

		"cuMemImportFromShareableHandle.osHandle":   "uintptr",
		"cuMemPoolImportFromShareableHandle.handle": "uintptr",
		"cuMemRetainAllocationHandle.addr":          "DevicePtr",
		"cuLogicalEndpointBindAddr.ptr":             "DevicePtr",
		"cuUserObjectCreate.ptr":                    "uintptr",
		"CUaccessPolicyWindow.base_ptr":             "DevicePtr",
	},
	handwritten: []string{"NewTensorMap", "DeviceLocation", "NewCallback", "UsePerThreadDefaultStream"},
}

var nvrtcTarget = &target{
	name: "nvrtc", header: "nvrtc.h", env: "NVRTC_H", function: "nvrtc", result: "nvrtcResult", version: 13050,
	prefixes:    regexp.MustCompile(`^(nvrtc|NVRTC_)([A-Z])`),
	types:       []string{"nvrtc"},
	constants:   regexp.MustCompile(`^NVRTC_INSTALL_[A-Z0-9_]+$`),
	renamed:     map[string]string{"nvrtcProgram": "ProgramHandle", "nvrtcVersion": "GetVersion"},
	overrides:   map[string]string{"nvrtcSetFlowCallback.payload": "uintptr"},
	handwritten: []string{"Compile", "Error"},
	library: &library{
		title: "NVRTC", env: "SHAREDTENSOR_LIBNVRTC",
		names: []string{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"},
		wheel: []string{"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"},
	},
}

var nvjitlinkTarget = &target{
	name: "nvjitlink", header: "nvJitLink.h", env: "NVJITLINK_H", function: "nvJitLink", result: "nvJitLinkResult", version: 13050,
	prefixes:  regexp.MustCompile(`^(nvJitLink|NVJITLINK_)([A-Z])`),
	types:     []string{"nvJitLink"},
	constants: regexp.MustCompile(`^NVJITLINK_[A-Z]+_[A-Z0-9_]+$`),
	renamed:   map[string]string{"nvJitLinkVersion": "GetVersion"},
	// The unversioned functions are inline functions unless this macro is defined. The library exports them as well.
	defines:     []string{"NVJITLINK_NO_INLINE"},
	handwritten: []string{"Link", "Error"},
	library: &library{
		title: "nvJitLink", env: "SHAREDTENSOR_LIBNVJITLINK",
		names: []string{"libnvJitLink.so.13", "libnvJitLink.so.12", "libnvJitLink.so"},
		wheel: []string{"nvidia/cu13/lib", "nvidia/nvjitlink/lib"},
	},
}

var nvmlTarget = &target{
	name: "nvml", header: "nvml.h", env: "NVML_H", function: "nvml", result: "nvmlReturn_t", version: 13050, brief: true, layouts: true,
	prefixes:  regexp.MustCompile(`^(nvml|NVML_)([A-Z])`),
	suffix:    "_t",
	types:     []string{"nvml"},
	constants: regexp.MustCompile(`^(NVML_[A-Z0-9_]+|nvml[A-Z]\w*_v[0-9]+)$`),
	older:     "NVML_NO_UNVERSIONED_FUNC_DEFS",
	renamed:   map[string]string{"nvmlReturn_t": "Result", "nvmlDevice_t": "Device"},
	library: &library{
		title: "NVML", env: "SHAREDTENSOR_LIBNVIDIA_ML",
		names: []string{"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"},
	},
}

// goName returns the Go name of a C name: the vendor's name without its prefix, with a capital first letter. If two names
// collide, the type keeps its prefix.
func (t *target) goName(c string) string {
	if n, ok := t.renamed[c]; ok {
		return n
	}
	name := c
	if m := t.prefixes.FindStringSubmatch(c); m != nil && !(m[2][0] >= '0' && m[2][0] <= '9') {
		name = c[len(m[1]):]
	}
	return exported(name)
}

// versionMacro matches a macro of nvml.h with the version and size of a record, which has the same name as the record.
var versionMacro = regexp.MustCompile(`^nvml[A-Z]\w*_v[0-9]+$`)

// constantName returns the Go name of an enumerator or a macro.
func (t *target) constantName(c string) string {
	if versionMacro.MatchString(c) {
		return t.goName(c) + "_VERSION"
	}
	return t.goName(c)
}

// typeName returns the Go name of a typedef.
func (t *target) typeName(c string) string { return strings.TrimSuffix(t.goName(c), t.suffix) }

// wanted reports whether a typedef belongs to the vendor rather than to the standard library.
func (t *target) wanted(c string) bool {
	for _, prefix := range t.types {
		if strings.HasPrefix(c, prefix) {
			return true
		}
	}
	return false
}

// override returns the Go type of a parameter or field whose C type is misleading: a descriptor or a small number in a
// void *, a device address, an id that a callback receives. A Go pointer type would be wrong for them, because the garbage
// collector fails on invalid pointers. The keys of overrides are "function.parameter", "type.field" and "*.name".
func (t *target) override(owner, name string) string {
	if goType := t.overrides[owner+"."+name]; goType != "" {
		return goType
	}
	return t.overrides["*."+name]
}
