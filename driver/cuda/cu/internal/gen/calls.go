package main

import (
	"fmt"
	"slices"
	"strings"
)

// maxWords is the number of words of the largest frame of package ccall. Its frame for copied records has recordWords.
const (
	maxWords    = 16
	recordWords = 8
)

const ccallImport = "\"github.com/sharedtensor/sharedtensor/driver/cuda/internal/ccall\"\n"

// needsNoContext lists functions that do not depend on the current context, or that change it, in groups that otherwise
// depend on it. Groups in contextFree do not depend on it. Type Context has no methods for either.
var (
	needsNoContext = []string{
		"cuCtxCreate", "cuCtxDestroy", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuCtxSetCurrent", "cuCtxGetCurrent", "cuCtxAttach",
		"cuCtxDetach", "cuCtxFromGreenCtx", "cuDeviceCanAccessPeer", "cuDeviceGetP2PAttribute", "cuDeviceGetP2PAtomicCapabilities",
		"cuThreadExchangeStreamCaptureMode",
	}
	contextFree = []string{"driver", "device", "logs", "checkpoint"}
)

// usesContext reports whether type Context has a method for the function.
func (c *call) usesContext() bool {
	f := c
	if c.newer != nil {
		f = &call{function: c.newer}
	}
	name := base(f.symbol)
	return !c.floats && !slices.Contains(contextFree, f.group) && !slices.Contains(needsNoContext, name) &&
		!strings.HasPrefix(name, "cuDevicePrimaryCtx")
}

// arities returns the numbers of words for which call functions are needed, and those for calls in a context.
func arities(calls []*call) (all, in map[int]bool, err error) {
	all, in = map[int]bool{0: true}, map[int]bool{}
	for _, c := range calls {
		for _, a := range []arch{amd64, arm64} {
			_, words := a.words(c.params)
			if len(words) > maxWords {
				return nil, nil, fmt.Errorf("%s: %d words on %s, the largest frame has %d", c.name, len(words), a.name, maxWords)
			}
			all[len(words)] = true
			if c.usesContext() {
				in[len(words)] = true
			}
		}
	}
	return all, in, nil
}

// emitWords writes a call of the function callN or inN. function is "call" or "in", index the first of its arguments.
func emitWords(w *writer, function, index string, before, words []string) {
	for _, b := range before {
		w.printf("\t%s\n", b)
	}
	args := strings.Join(append([]string{index}, words...), ", ")
	w.printf("\treturn %s%d(%s)\n", function, len(words), args)
}

// emitMethods writes a method of Context for each function that uses the current context.
func emitMethods(w *writer, calls []*call) {
	for _, c := range calls {
		if !c.usesContext() {
			continue
		}
		w.comment("", fmt.Sprintf("%s calls [%s] in the context.", c.goName, c.goName))
		w.printf("func (current Context) %s(%s) Result {\n", c.goName, c.signature())
		if c.perArch {
			w.printf("\treturn in%s(%s)\n", c.goName, strings.Join(append([]string{"current"}, c.names()...), ", "))
		} else {
			before, words := amd64.words(c.params)
			emitWords(w, "in", "current, "+c.index(), before, words)
		}
		w.printf("}\n\n")
	}
}

// emitByValue writes the calls whose words differ between the architectures.
func emitByValue(w *writer, calls []*call, a arch) error {
	copies := map[int]bool{}
	for _, c := range calls {
		if !c.perArch {
			continue
		}
		before, words := a.words(c.params)
		function, index := "", c.index()
		if at, record, err := c.copied(words); err != nil {
			return err
		} else if record != "" {
			copies[len(words)] = true
			function, words[at] = "Copy", "0"
			index += fmt.Sprintf(", %d, (*[%d]uintptr)(unsafe.Pointer(&%s))", at, recordWords, record)
		}
		w.printf("func call%s(%s) Result {\n", c.goName, c.signature())
		emitWords(w, "call"+function, index, before, words)
		w.printf("}\n\n")
		w.printf("func in%s(current Context, %s) Result {\n", c.goName, c.signature())
		emitWords(w, "in"+function, "current, "+index, before, words)
		w.printf("}\n\n")
	}
	for n := range maxWords {
		if copies[n] {
			emitCopyCalls(w, n)
		}
	}
	return nil
}

// copied returns the index of the word that is the address of a copy of a record, and the name of its parameter. The name
// is empty if there is no such word.
func (c *call) copied(words []string) (at int, record string, err error) {
	for _, p := range c.params {
		i := slices.Index(words, "uintptr(unsafe.Pointer(&"+p.name+"))")
		if i < 0 {
			continue
		}
		if record != "" || p.words != recordWords || len(words) > recordWords {
			return 0, "", fmt.Errorf("%s: records by value other than one of %d bytes are not supported", c.name, 8*recordWords)
		}
		at, record = i, p.name
	}
	return at, record, nil
}

func emitMissingByValue(w *writer, calls []*call) {
	for _, c := range calls {
		if c.perArch {
			w.printf("func call%s(%s) Result { return missingResult(%s) }\n\n", c.goName, c.signature(), c.index())
			w.printf("func in%s(current Context, %s) Result { return missingResult(%s) }\n\n", c.goName, c.signature(), c.index())
		}
	}
}

// findAddress and findAddresses are repeated in every call because they are on the fast path and too large for the
// compiler to inline.
const (
	findAddress = `	fn := addresses[f].Load()
	if fn == 0 {
		var missing Result
		if fn, missing = resolve(f); fn == 0 {
			return missing
		}
	}
`
	findAddresses = `	fn, guard := addresses[f].Load(), guardOf(current)
	if fn == 0 || guard.Push == 0 || guard.Pop == 0 {
		var missing Result
		if fn, guard, missing = resolveIn(current, f); fn == 0 {
			return missing
		}
	}
`
)

// parameters returns the list of n words and its declaration.
func parameters(n int) (list, declaration string) {
	args := make([]string, n)
	for i := range args {
		args[i] = fmt.Sprintf("a%d", i)
	}
	list = strings.Join(args, ", ")
	if n > 0 {
		declaration = ", " + list + " uintptr"
	}
	return list, declaration
}

// setWords returns the assignments of n words to a frame. The compiler builds a composite literal of that size in a temporary
// and copies it, and the copy has to wait for the stores of the words.
func setWords(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "\tw.A[%d] = a%[1]d\n", i)
	}
	return b.String()
}

const pragmas = "//go:uintptrescapes\n//go:noinline\n"

// emitCalls writes call0 to callN and in0 to inN for the numbers of words in use.
func emitCalls(w *writer, arity, inArity map[int]bool, real bool) {
	for n := range maxWords + 1 {
		size := maxWords
		if n <= 6 {
			size = 6
		}
		_, params := parameters(n)
		if arity[n] {
			w.printf(pragmas+"func call%d(f function%s) Result {\n", n, params)
			if real {
				w.printf(findAddress)
				w.printf("\tvar w ccall.Frame%d\n\tw.Fn = fn\n%s\treturn Result(w.Call())\n}\n\n", size, setWords(n))
			} else {
				w.printf("\treturn missingResult(f)\n}\n\n")
			}
		}
		if inArity[n] {
			w.printf(pragmas+"func in%d(current Context, f function%s) Result {\n", n, params)
			if real {
				w.printf(findAddresses)
				w.printf("\tvar w ccall.Guarded%d\n\tw.Fn, w.Guard = fn, guard\n%s\treturn Result(w.Call())\n}\n\n", size, setWords(n))
			} else {
				w.printf("\treturn missingResult(f)\n}\n\n")
			}
		}
	}
}

// emitCopyCalls writes callCopyN and inCopyN, which pass the address of a copy of the record in word at.
func emitCopyCalls(w *writer, n int) {
	list, params := parameters(n)
	params = ", at uintptr, record *[8]uintptr" + params
	frame := fmt.Sprintf("ccall.FrameCopy{Fn: fn, A: [%d]uintptr{%s}, At: at, Record: *record}", recordWords, list)
	w.printf(pragmas+"func callCopy%d(f function%s) Result {\n", n, params)
	w.printf(findAddress)
	w.printf("\tw := %s\n\treturn Result(w.Call())\n}\n\n", frame)
	w.printf(pragmas+"func inCopy%d(current Context, f function%s) Result {\n", n, params)
	w.printf(findAddresses)
	w.printf("\tw := ccall.GuardedCopy{FrameCopy: %s, Guard: guard}\n\treturn Result(w.Call())\n}\n\n", frame)
}
