package compute

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/heap"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// ServerOptions says what a server computes. A zero field stands for its default.
type ServerOptions struct {
	// Function is what requests without a model_id run.
	Function Function
	// Functions are what requests with a model_id run.
	Functions map[string]Function
	// Lookup finds a function that is in neither, such as an endpoint of an owner; nil where there are no others. What
	// it finds is neither set up nor torn down. Its error is ErrNotFound where there is none of that name.
	Lookup func(ctx context.Context, model string) (Function, error)
	// Check says whether what the functions need is there, such as an owner; nil where they need nothing.
	Check func(ctx context.Context) error
	// Device is where arguments are put, unless their function is a Placer; nil for ordinary memory of the process.
	// Borrowed.
	Device driver.Device
	// Workers is how many functions run at a time; 10. Queue is how many requests may wait beside them; 100.
	Workers, Queue int
	// MessageBytes bounds a tensor in one message; 100 MiB. StreamBytes bounds one of ComputeStream; 2 GiB.
	// PendingBytes bounds all arguments that come in chunks at a time; 8 GiB.
	MessageBytes, StreamBytes, PendingBytes int64
	// Stall is how long a client may send nothing in the middle of its argument; two minutes.
	Stall time.Duration
	// Name and Version are what GetServiceInfo says; "ComputeService" and "1.0.0".
	Name, Version string
	// Logger gets what operators should know; nil for slog.Default().
	Logger *slog.Logger
}

func (o ServerOptions) withDefaults() ServerOptions {
	def(&o.Workers, 10)
	def(&o.Queue, 100)
	def(&o.MessageBytes, 100<<20)
	def(&o.StreamBytes, 2<<30)
	def(&o.PendingBytes, 8<<30)
	def(&o.Stall, 2*time.Minute)
	def(&o.Name, "ComputeService")
	def(&o.Version, "1.0.0")
	if o.Device == nil {
		o.Device = new(heap.Device)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// def sets what is zero.
func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Server is the service. Its methods are safe for concurrent use.
//
//	setting up ──> ready ──> draining ──> closed
//	     └───────> failed ──────┘
type Server struct {
	opts    ServerOptions
	started time.Time
	workers chan struct{} // has a place for each function that runs
	all     recorder

	mu       sync.Mutex
	failed   error // of Setup
	closing  bool
	waiting  int   // requests that have no worker yet
	pending  int64 // of PendingBytes
	inFlight sync.WaitGroup
	models   map[string]*recorder
}

// NewServer sets the functions up and returns a server. Where a Setup fails there is a server all the same, which is
// not healthy and computes nothing: it can tell why. The error is ErrInvalid for options that make no sense.
func NewServer(ctx context.Context, opts ServerOptions) (*Server, error) {
	if opts.Function == nil && len(opts.Functions) == 0 && opts.Lookup == nil {
		return nil, fmt.Errorf("%w: a server needs a Function, Functions or a Lookup", ErrInvalid)
	}
	opts = opts.withDefaults()
	s := &Server{opts: opts, started: time.Now(), workers: make(chan struct{}, opts.Workers), models: make(map[string]*recorder)}
	for name, f := range s.functions() {
		if f, ok := f.(Setupper); ok {
			if err := f.Setup(ctx); err != nil {
				s.failed = fmt.Errorf("%w: setting up %q: %w", ErrNotReady, name, err)
				opts.Logger.Error("a function could not be set up", "model", name, "error", err)
			}
		}
	}
	return s, nil
}

// functions are those that the server has itself.
func (s *Server) functions() map[string]Function {
	all := maps.Clone(s.opts.Functions)
	if all == nil {
		all = make(map[string]Function)
	}
	if s.opts.Function != nil {
		all[""] = s.opts.Function
	}
	return all
}

// find returns the function of a request: the only one where it names none.
func (s *Server) find(ctx context.Context, model string) (Function, error) {
	if model == "" && s.opts.Function != nil {
		return s.opts.Function, nil
	}
	if f, ok := s.opts.Functions[model]; ok {
		return f, nil
	}
	if model == "" && len(s.opts.Functions) == 1 && s.opts.Lookup == nil {
		for _, f := range s.opts.Functions {
			return f, nil
		}
	}
	if s.opts.Lookup != nil && model != "" {
		return s.opts.Lookup(ctx, model)
	}
	if s.opts.Function != nil && len(s.opts.Functions) == 0 {
		return s.opts.Function, nil // a client that routes to one of several servers
	}
	return nil, fmt.Errorf("%w: %q; there are %q", ErrNotFound, model, slices.Sorted(maps.Keys(s.opts.Functions)))
}

// Check returns nil where Compute would work, and else why not.
func (s *Server) Check(ctx context.Context) error {
	s.mu.Lock()
	err := s.failed
	if s.closing {
		err = fmt.Errorf("%w: shutting down", ErrNotReady)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if s.opts.Check != nil {
		if err := s.opts.Check(ctx); err != nil {
			return err
		}
	}
	for name, f := range s.functions() {
		if f, ok := f.(Checker); ok {
			if err := f.Check(ctx); err != nil {
				return fmt.Errorf("function %q: %w", name, err)
			}
		}
	}
	return nil
}

// enter admits a request, or says why not. leave ends it.
func (s *Server) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return fmt.Errorf("%w: shutting down", ErrNotReady)
	case s.failed != nil:
		return s.failed
	}
	s.inFlight.Add(1)
	return nil
}

func (s *Server) leave() { s.inFlight.Done() }

// turn waits for a worker. The caller calls done.
func (s *Server) turn(ctx context.Context) (done func(), err error) {
	done = func() { <-s.workers }
	select {
	case s.workers <- struct{}{}:
		return done, nil
	default:
	}
	s.mu.Lock()
	if s.waiting >= s.opts.Queue {
		s.mu.Unlock()
		return nil, fmt.Errorf("%w: %d run and %d wait", ErrOverloaded, s.opts.Workers, s.opts.Queue)
	}
	s.waiting++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
	}()
	select {
	case s.workers <- struct{}{}:
		return done, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// call runs a function; its panic is an error.
func (s *Server) call(ctx context.Context, f Function, model string, in *tensor.Tensor) (out *tensor.Tensor, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.opts.Logger.Error("a function panicked", "model", model, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", ErrPanic, p)
		}
	}()
	out, err = f.Compute(ctx, in)
	if err == nil && out == nil {
		err = errors.New("the function returned no tensor")
	}
	return out, err
}

// recorders are where a request is counted: for its function, and for all. Models that the server does not have are
// counted for all only.
func (s *Server) recorders(model string, known bool) []*recorder {
	if !known {
		return []*recorder{&s.all}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.models[model]
	if r == nil && len(s.models) < maxModels {
		r = &recorder{}
		s.models[model] = r
	}
	if r == nil {
		return []*recorder{&s.all}
	}
	return []*recorder{&s.all, r}
}

// maxModels is how many functions have statistics of their own.
const maxModels = 1000

// Statistics returns the figures of a function, or with "" those of all together.
func (s *Server) Statistics(model string) Statistics {
	if model == "" {
		return s.all.statistics()
	}
	s.mu.Lock()
	r := s.models[model]
	s.mu.Unlock()
	if r == nil {
		return Statistics{}
	}
	return r.statistics()
}

// Models are the functions that were called, sorted.
func (s *Server) Models() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.models))
}

// Shutdown refuses new requests, waits for those in flight as long as ctx allows, and tears the functions down. The
// error is the cause of ctx where it did not suffice: then functions are torn down though requests run. A second
// Shutdown is nil.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	again := s.closing
	s.closing = true
	s.mu.Unlock()
	if again {
		return nil
	}
	drained := make(chan struct{})
	go func() { // ends with the last request
		s.inFlight.Wait()
		close(drained)
	}()
	var errs []error
	select {
	case <-drained:
	case <-ctx.Done():
		errs = append(errs, fmt.Errorf("requests were still running: %w", context.Cause(ctx)))
	}
	for name, f := range s.functions() {
		if f, ok := f.(Teardowner); ok {
			if err := f.Teardown(ctx); err != nil {
				errs = append(errs, fmt.Errorf("tearing down %q: %w", name, err))
			}
		}
	}
	return errors.Join(errs...)
}
