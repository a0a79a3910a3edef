package cu

import "fmt"

// function is the index of a function in the table.
type function uint16

// entry describes a function, for use without a driver.
type entry struct {
	name       string // C name
	goName     string
	symbol     string
	perThread  string
	since      Version
	replaced   Version
	deprecated bool
}

// FunctionInfo describes a function that this package binds.
type FunctionInfo struct {
	// Name is the function's C name, such as cuMemAlloc. For an older form it is the symbol.
	Name string
	// GoName is the name in this package.
	GoName string
	// Symbol is the symbol that is looked up in the library, such as cuMemAlloc_v2.
	Symbol string
	// PerThread is the symbol for per-thread default streams, if it differs.
	PerThread string
	// Since is the CUDA version that introduced the symbol.
	Since Version
	// Replaced is the CUDA version whose headers use the name for a newer form. It is 0 if this is the newest.
	Replaced Version
	// Deprecated reports whether cuda.h marks the function as deprecated.
	Deprecated bool
}

// Functions describes every function that this package binds, in the order of the header, with older forms last.
func Functions() []FunctionInfo {
	out := make([]FunctionInfo, 0, len(table))
	for _, e := range &table {
		out = append(out, FunctionInfo{e.name, e.goName, e.symbol, e.perThread, e.since, e.replaced, e.deprecated})
	}
	return out
}

// Available returns nil if the function can be called. name is its C name, such as cuMemAlloc, or its name in this
// package, such as MemAlloc. If the library or the function is missing, the error is an [*UnsupportedError]. Available
// loads the library if necessary, and does not call the function.
func Available(name string) error {
	for f := range functionCount {
		if e := &table[f]; e.name == name || e.goName == name {
			if fn, missing := address(f); fn == 0 {
				return missing.Err()
			}
			return nil
		}
	}
	return fmt.Errorf("cuda.h %s has no function %q", HeaderVersion, name)
}
