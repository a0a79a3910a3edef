package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"modernc.org/cc/v4"
)

// The forms of package result return what a function stores through its pointers. The header does not distinguish outputs,
// arrays and variables that the caller sets before, so only functions whose every pointer to a variable is plainly an output have
// such a form: the first parameters, or the last ones of a query.

// inOut matches names of parameters that the caller sets, or that are arrays.
var inOut = regexp.MustCompile(`^(p?num\w*|nbGroups|size|pInOut\w*|\w*(List|Array|Params|Info)(_out)?|attrValues|nodes|edges|from|to|kernels|functions|data)$`)

// notOutputs lists functions with arrays, or with variables that the caller sets, whose names do not show it.
var notOutputs = []string{
	"cuDeviceGetHostAtomicCapabilities", "cuDeviceGetP2PAtomicCapabilities", "cuDeviceGetDevResource", "cuLogsCurrent", "cuDeviceGetLuid",
	"cuThreadExchangeStreamCaptureMode", "cuCheckpointProcessLock", "cuGetExportTable", "cuCtxDetach", "cuMemcpyBatchAsync", "cuGLGetDevices",
	"cuStreamBatchMemOp", "cuMemPrefetchBatchAsync", "cuMemDiscardBatchAsync", "cuMemDiscardAndPrefetchBatchAsync", "cuFabricCpyBatchAsync",
	"cuMemcpy3DWithAttributesAsync", "cuMemGetDefaultMemPool", "cuMemGetMemPool", "cuMemSetMemPool", "cuDevResourceGenerateDesc",
	"cuTensorMapReplaceAddress", "cuLogsDumpToFile", "cuLogicalEndpointQuery", "cuMemGetLocationInfo", "cuGraphicsMapResources", "cuGraphicsUnmapResources", "cuSignalExternalSemaphoresAsync", "cuWaitExternalSemaphoresAsync", "cuModuleGetLoadingMode",
}

// query matches functions whose last parameters are outputs.
var query = regexp.MustCompile(`^cu\w*(Get|Is|Query|CanAccess|Occupancy)`)

// setOutputs marks the outputs of a function. It marks none if they cannot be distinguished from other pointers.
func (m *model) setOutputs(c *call) {
	if c.newer != nil || c.deprecated || c.floats || c.perArch || slices.Contains(notOutputs, base(c.symbol)) {
		return
	}
	first, last := 0, len(c.params)
	for first < len(c.params) && m.storable(c, first) {
		first++
	}
	if first == 0 && query.MatchString(c.name) {
		for last > 0 && m.storable(c, last-1) {
			last--
		}
	}
	for i := range c.params {
		p := &c.params[i]
		p.output = i < first || i >= last
		if !p.output && m.writable(c, i) {
			for j := range c.params {
				c.params[j].output = false
			}
			return
		}
	}
}

// writable reports whether a parameter is a pointer to a variable.
func (m *model) writable(c *call, i int) bool {
	t, ok := c.decl.params[i].Type().Decay().(*cc.PointerType)
	return ok && c.params[i].class == pointer && !t.Elem().Attributes().IsConst()
}

// storable reports whether a parameter is a pointer to one variable that the function sets.
func (m *model) storable(c *call, i int) bool {
	name := c.decl.params[i].Name()
	if !m.writable(c, i) || inOut.MatchString(name) && name != "numBlocks" && name != "numClusters" {
		return false
	}
	t := c.decl.params[i].Type().Decay().(*cc.PointerType)
	return t.Elem().Kind() != cc.Char && t.Undecay().Kind() != cc.Array
}

// emitValues writes the forms of package result.
func (m *model) emitValues(w *writer, calls []*call) {
	for _, c := range calls {
		m.setOutputs(c)
		if slices.ContainsFunc(c.params, func(p param) bool { return p.output }) {
			c.emitValue(w)
		}
	}
}

func (c *call) emitValue(w *writer) {
	receiver := "cu."
	var params, results, args, outputs []string
	if c.usesContext() {
		receiver = "current."
		params = append(params, "current cu.Context")
	}
	for _, p := range c.params {
		if !p.output {
			params, args = append(params, p.name+" "+qualified(p.goType)), append(args, p.name)
			continue
		}
		name := c.outputName(p)
		args, outputs = append(args, "&"+name), append(outputs, name)
		results = append(results, name+" "+qualified(p.goType[1:]))
	}
	where := ""
	if c.usesContext() {
		where = " in the context"
	}
	w.comment("", fmt.Sprintf("%s calls [cu.%s]%s and returns %s.", c.goName, c.goName, where, strings.Join(outputs, " and ")))
	w.printf("func %s(%s) (%s, err error) {\n", c.goName, strings.Join(params, ", "), strings.Join(results, ", "))
	w.printf("\terr = check(%q, %s%s(%s))\n", c.name, receiver, c.goName, strings.Join(args, ", "))
	w.printf("\treturn %s, err\n}\n\n", strings.Join(outputs, ", "))
}

var outputPrefix = regexp.MustCompile(`^ph?([A-Z]\w*)$`)

// outputName returns the name of an output as a result: without the prefix of a pointer.
func (c *call) outputName(p param) string {
	name := strings.TrimSuffix(p.name, "_out")
	if match := outputPrefix.FindStringSubmatch(name); match != nil {
		name = paramName(strings.ToLower(match[1][:1])+match[1][1:], 0)
	}
	if slices.Contains(c.names(), name) {
		return p.name
	}
	return name
}

var exportedName = regexp.MustCompile(`\b[A-Z]\w*`)

// qualified adds the package to a type of package cu.
func qualified(goType string) string {
	if goType == "unsafe.Pointer" || goType == "*unsafe.Pointer" {
		return goType
	}
	return exportedName.ReplaceAllString(goType, "cu.$0")
}
