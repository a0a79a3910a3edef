package inference

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// model is an endpoint as a model of the protocol.
type model struct {
	name   string
	caller endpoint.Caller
	// owned is true for the owner's endpoints and false for the embedding program's.
	owned           bool
	writes          bool // its function may write to its arguments
	stream          bool
	cached          bool
	inputs, outputs []port
	whole           bool // the argument is the input itself, not a struct
	batching        batching
	batcher         *batcher // nil without batching
	// why is the reason why the endpoint cannot be served; empty if it can.
	why   string
	stats *recorder
	versions
}

// newModel describes an endpoint. It returns nil if the argument has no tensors.
func newModel(caller endpoint.Caller, info endpoint.EndpointInfo) *model {
	_, owned := caller.(*endpoint.Client)
	m := &model{name: info.Name, caller: caller, owned: owned, writes: info.Writable, stream: info.Stream, cached: info.Cache, stats: &recorder{}}
	m.batching = batching{info.BatchMax, info.BatchDelay}
	var lacks []string
	m.inputs, lacks = portsOf(wholeInput, info.In, info.InTensor, info.InFields)
	if !hasTensor(m.inputs) {
		return nil
	}
	m.whole = len(m.inputs) == 1 && m.inputs[0].path == nil
	if len(lacks) > 0 {
		m.why = "no input can be given for " + strings.Join(lacks, ", ")
		return m
	}
	if m.outputs, lacks = portsOf(wholeOutput, info.Out, info.OutTensor, info.OutFields); len(m.outputs) == 0 && len(lacks) > 0 {
		m.why = "there is no output for a result of " + strings.Join(lacks, ", ")
	}
	return m
}

// equal reports whether both describe the same function with the same settings.
func (m *model) equal(other *model) bool {
	return m.caller == other.caller && m.writes == other.writes && m.stream == other.stream && m.cached == other.cached &&
		m.whole == other.whole && m.why == other.why && m.batching == other.batching &&
		slices.EqualFunc(m.inputs, other.inputs, port.equal) && slices.EqualFunc(m.outputs, other.outputs, port.equal)
}

// input returns the input with the given name.
func (m *model) input(name string) (port, bool) { return find(m.inputs, name) }

// output returns the output with the given name.
func (m *model) output(name string) (port, bool) { return find(m.outputs, name) }

func find(list []port, name string) (port, bool) {
	i := slices.IndexFunc(list, func(p port) bool { return p.name == name })
	if i < 0 {
		return port{}, false
	}
	return list[i], true
}

func names(list []port) string {
	all := make([]string, len(list))
	for i, p := range list {
		all[i] = p.name
	}
	return strings.Join(all, ", ")
}

// ready returns nil if the model can be called.
func (m *model) ready() error {
	if m.why != "" {
		return fmt.Errorf("%w: model %q: %s", ErrNotReady, m.name, m.why)
	}
	return nil
}
