package cu

import "fmt"

// function is the number of a function in the table.
type function uint16

// entry is what is known of a function without a driver.
type entry struct {
	name       string // in C
	goName     string
	symbol     string
	perThread  string
	since      Version
	replaced   Version
	deprecated bool
}

// FunctionInfo describes a function that this package binds.
type FunctionInfo struct {
	// Name is the function's name in C, such as cuMemAlloc; of an older form, its symbol.
	Name string
	// GoName is its name in this package.
	GoName string
	// Symbol is what is looked for in the library, such as cuMemAlloc_v2.
	Symbol string
	// PerThread is the symbol for a default stream per thread, if that is another one.
	PerThread string
	// Since is the CUDA version that brought the symbol.
	Since Version
	// Replaced is the CUDA version whose headers give the name to a newer form; 0 if this is the newest.
	Replaced Version
	// Deprecated reports whether cuda.h marks the function so.
	Deprecated bool
}

// Functions describes every function that this package binds, in the header's order, older forms last.
func Functions() []FunctionInfo {
	out := make([]FunctionInfo, 0, len(table))
	for _, e := range &table {
		out = append(out, FunctionInfo{e.name, e.goName, e.symbol, e.perThread, e.since, e.replaced, e.deprecated})
	}
	return out
}

// Available is nil where the function can be called. name is its name in C, such as cuMemAlloc, or in this package,
// such as MemAlloc. Where the library or the function is missing the error is an [*UnsupportedError]. The library is
// loaded if it is not yet, and nothing is called.
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
