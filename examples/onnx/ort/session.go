//go:build linux

package ort

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// Optimization is the level of graph optimization. With a level above 0, creating a session copies the weights, and weights
// that the optimizer replaces become private memory. Optimize a graph before it is split instead, see SaveOptimized.
type Optimization int

// The levels of ONNX Runtime.
const (
	OptimizeNone     Optimization = 0
	OptimizeBasic    Optimization = 1
	OptimizeExtended Optimization = 2
	OptimizeAll      Optimization = 99
)

// Options configures a session.
type Options struct {
	// Weights are the external initializers of the graph by name. The session uses the memory in place; it must stay
	// mapped until the session is closed.
	Weights map[string]Tensor
	// WeightsFolder contains an empty file with the name of each external data file of the graph.
	WeightsFolder string
	// Prepack lets kernels copy weights into a faster layout, which is private memory.
	Prepack bool
	// Optimize is the level of graph optimization.
	Optimize Optimization
	// Threads is the number of threads for one run; 0 means one.
	Threads int
	// Arena keeps freed memory for later runs.
	Arena bool
}

// Session is a loaded graph. Run is safe for concurrent use; Close requires that no run is in flight.
type Session struct {
	// Inputs and Outputs are names in the order of the graph.
	Inputs, Outputs []string

	library *Library
	handle  uintptr
	weights []uintptr // values over the caller's memory, which the session refers to
}

// NewSession creates a session from the bytes of a graph, which it borrows until it returns. The caller closes the session.
func (l *Library) NewSession(graph []byte, opts Options) (*Session, error) {
	if len(graph) == 0 {
		return nil, errors.New("the graph is empty")
	}
	return l.newSession(opts, func(options uintptr, handle *uintptr) error {
		return l.call(createSessionFromArray, l.env, uintptr(unsafe.Pointer(&graph[0])), uintptr(len(graph)), options, uintptr(unsafe.Pointer(handle)))
	})
}

// NewSessionFromFile creates a session from a file, which the library reads. External data is beside it. The caller closes
// the session.
func (l *Library) NewSessionFromFile(path string, opts Options) (*Session, error) {
	p := cString(path)
	return l.newSession(opts, func(options uintptr, handle *uintptr) error {
		return l.call(createSession, l.env, uintptr(unsafe.Pointer(&p[0])), options, uintptr(unsafe.Pointer(handle)))
	})
}

func (l *Library) newSession(opts Options, create func(options uintptr, handle *uintptr) error) (_ *Session, err error) {
	s := &Session{library: l}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	options, err := l.sessionOptions(opts)
	defer l.release(releaseSessionOptions, options)
	if err != nil {
		return nil, err
	}
	if err := s.addWeights(options, opts); err != nil {
		return nil, err
	}
	if err := create(options, &s.handle); err != nil {
		return nil, err
	}
	if s.Inputs, err = s.listNames(sessionGetInputCount, sessionGetInputName); err != nil {
		return nil, err
	}
	s.Outputs, err = s.listNames(sessionGetOutputCount, sessionGetOutputName)
	return s, err
}

// sessionOptions creates the library's options. The caller releases them, also after an error.
func (l *Library) sessionOptions(opts Options) (options uintptr, err error) {
	if err := l.call(createSessionOptions, uintptr(unsafe.Pointer(&options))); err != nil {
		return 0, err
	}
	err = errors.Join(
		l.call(setSessionGraphOptimization, options, uintptr(opts.Optimize)),
		l.call(setIntraOpNumThreads, options, uintptr(max(1, opts.Threads))),
		l.call(setInterOpNumThreads, options, 1),
	)
	if !opts.Prepack {
		err = errors.Join(err, l.addConfig(options, "session.disable_prepacking", "1"))
	}
	if !opts.Arena {
		err = errors.Join(err, l.call(disableCPUMemArena, options))
	}
	return options, err
}

// addConfig sets one entry of the options.
func (l *Library) addConfig(options uintptr, key, value string) error {
	k, v := cString(key), cString(value)
	return l.call(addSessionConfigEntry, options, uintptr(unsafe.Pointer(&k[0])), uintptr(unsafe.Pointer(&v[0])))
}

// addWeights passes the weights to the options. AddInitializer makes the session use their memory in place. The optimizer
// sees only values of AddExternalInitializers, which copies them while the session is created. Without the optimizer, the
// library requires that the file of the external data exists, but does not read it.
func (s *Session) addWeights(options uintptr, opts Options) error {
	if len(opts.Weights) == 0 {
		return nil
	}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	texts := make([]string, 0, len(opts.Weights))
	for name, w := range opts.Weights {
		value, err := s.library.newValue(w)
		if err != nil {
			return fmt.Errorf("weight %q: %w", name, err)
		}
		s.weights = append(s.weights, value)
		texts = append(texts, name)
	}
	names := cStrings(&pinner, texts)
	for i, value := range s.weights {
		if err := s.library.call(addInitializer, options, names[i], value); err != nil {
			return err
		}
	}
	if opts.Optimize == OptimizeNone {
		return s.library.addConfig(options, "session.model_external_initializers_file_folder_path", opts.WeightsFolder)
	}
	return s.library.call(addExternalInitializers, options, uintptr(unsafe.Pointer(&names[0])), uintptr(unsafe.Pointer(&s.weights[0])), uintptr(len(names)))
}

// listNames returns the names of all inputs or outputs.
func (s *Session) listNames(count, name function) ([]string, error) {
	var n uintptr
	if err := s.library.call(count, s.handle, uintptr(unsafe.Pointer(&n))); err != nil {
		return nil, err
	}
	names := make([]string, n)
	for i := range names {
		var p uintptr
		err := s.library.call(name, s.handle, uintptr(i), s.library.allocator, uintptr(unsafe.Pointer(&p)))
		if err != nil {
			return nil, err
		}
		if names[i], err = s.library.takeText(p); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// Metadata returns a text of the model's metadata, or "" if there is none with that key.
func (s *Session) Metadata(key string) (string, error) {
	var metadata, value uintptr
	if err := s.library.call(sessionGetModelMetadata, s.handle, uintptr(unsafe.Pointer(&metadata))); err != nil {
		return "", err
	}
	defer s.library.release(releaseModelMetadata, metadata)
	k := cString(key)
	err := s.library.call(modelMetadataLookupCustomMap, metadata, s.library.allocator, uintptr(unsafe.Pointer(&k[0])), uintptr(unsafe.Pointer(&value)))
	if err != nil {
		return "", err
	}
	return s.library.takeText(value)
}

// Run computes all outputs. It borrows the inputs, one for each name of Inputs, and returns copies that the caller owns.
func (s *Session) Run(inputs map[string]Tensor) (_ map[string]Tensor, err error) {
	l := s.library
	var pinner runtime.Pinner
	defer pinner.Unpin()
	values := make([]uintptr, 0, len(s.Inputs))
	defer func() { l.releaseValues(values) }()
	for _, name := range s.Inputs {
		in, ok := inputs[name]
		if !ok {
			return nil, fmt.Errorf("input %q is missing (the model has %q)", name, s.Inputs)
		}
		if len(in.Data) > 0 {
			pinner.Pin(&in.Data[0])
		}
		value, err := l.newValue(in)
		if err != nil {
			return nil, fmt.Errorf("input %q: %w", name, err)
		}
		values = append(values, value)
	}
	if len(inputs) > len(values) || len(values) == 0 {
		return nil, fmt.Errorf("%d inputs for a model that has %q", len(inputs), s.Inputs)
	}
	inNames, outNames := cStrings(&pinner, s.Inputs), cStrings(&pinner, s.Outputs)
	results := make([]uintptr, len(outNames))
	defer func() { l.releaseValues(results) }()
	err = l.call(run, s.handle, 0,
		uintptr(unsafe.Pointer(&inNames[0])), uintptr(unsafe.Pointer(&values[0])), uintptr(len(values)),
		uintptr(unsafe.Pointer(&outNames[0])), uintptr(len(results)), uintptr(unsafe.Pointer(&results[0])))
	if err != nil {
		return nil, err
	}
	outputs := make(map[string]Tensor, len(results))
	for i, value := range results {
		if outputs[s.Outputs[i]], err = l.copyValue(value); err != nil {
			return nil, fmt.Errorf("output %q: %w", s.Outputs[i], err)
		}
	}
	return outputs, nil
}

// Close frees the session. The memory of the weights can be unmapped afterwards. A second Close has no effect.
func (s *Session) Close() error {
	s.library.release(releaseSession, s.handle)
	s.library.releaseValues(s.weights)
	s.handle, s.weights = 0, nil
	return nil
}
