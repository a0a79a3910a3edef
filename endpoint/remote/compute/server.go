package compute

import (
	"cmp"
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
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// ServerOptions configures a server. A zero field means its default.
type ServerOptions struct {
	// Function runs requests without a model_id.
	Function Function
	// Functions run requests with a model_id.
	Functions map[string]Function
	// Lookup returns a function that is in neither, such as an owner's endpoint; nil disables it. The server neither
	// sets these functions up nor tears them down. Lookup returns ErrNotFound for an unknown name.
	Lookup func(ctx context.Context, model string) (Function, error)
	// Default is the name that Lookup receives for requests without a model_id, as of clients of splitlearn-comm. Empty
	// means that these requests need Function, or a single function in Functions.
	Default string
	// Allow returns an error if the sender of a request has no right to a function; nil admits all. An empty name means
	// all functions together.
	Allow func(ctx context.Context, model string) error
	// Check reports whether the functions' dependencies, such as an owner, are available; nil if there are none.
	Check func(ctx context.Context) error
	// Device holds arguments, unless their function is a Placer; nil means ordinary process memory. Borrowed.
	Device driver.Device
	// Workers limits the functions that run at once; 10. Queue limits the requests that wait for a worker; 100.
	Workers, Queue int
	// MessageBytes limits a tensor in one message; 100 MiB. StreamBytes limits a tensor of ComputeStream; 2 GiB.
	// PendingBytes limits the received arguments of all requests together; 8 GiB. A client with an identity can use
	// half of it.
	MessageBytes, StreamBytes, PendingBytes int64
	// Stall limits the time that a client may send nothing while it sends an argument; two minutes.
	Stall time.Duration
	// MinRate is the minimum rate of a client that sends an argument, in bytes per second; 0 for none.
	MinRate int64
	// Arrivals holds arguments that are received in chunks, in memory that is allocated as it is written. If it is nil,
	// Device or the function's device holds them, and the announced size is charged at once. Borrowed.
	Arrivals driver.Device
	// NewPool creates the budget of PendingBytes; nil means admission.NewPool.
	NewPool func(admission.Limits) *admission.Pool
	// Name and Version are returned by GetServiceInfo; "ComputeService" and "1.0.0".
	Name, Version string
	// Logger receives messages for operators; nil means slog.Default().
	Logger *slog.Logger
}

func (o ServerOptions) withDefaults() ServerOptions {
	o.Workers = cmp.Or(o.Workers, 10)
	o.Queue = cmp.Or(o.Queue, 100)
	o.MessageBytes = cmp.Or(o.MessageBytes, 100<<20)
	o.StreamBytes = cmp.Or(o.StreamBytes, 2<<30)
	o.PendingBytes = cmp.Or(o.PendingBytes, 8<<30)
	o.Stall = cmp.Or(o.Stall, 2*time.Minute)
	o.Name = cmp.Or(o.Name, "ComputeService")
	o.Version = cmp.Or(o.Version, "1.0.0")
	if o.NewPool == nil {
		o.NewPool = admission.NewPool
	}
	if o.Device == nil {
		o.Device = new(heapDevice)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// Server is the service. Its methods are safe for concurrent use.
//
//	setting up ──> ready ──> draining ──> closed
//	     └───────> failed ──────┘
type Server struct {
	opts    ServerOptions
	started time.Time
	workers *admission.Slots // of running functions
	pending *admission.Pool
	all     recorder

	mu       sync.Mutex
	failed   error // by Setup
	closing  bool
	waiting  int // requests without a worker
	inFlight sync.WaitGroup
	models   map[string]*recorder
}

// NewServer sets the functions up and returns a server. If a Setup fails, NewServer still returns a server: it is
// unhealthy, computes nothing, and reports the reason. The error is ErrInvalid for invalid options.
func NewServer(ctx context.Context, opts ServerOptions) (*Server, error) {
	if opts.Function == nil && len(opts.Functions) == 0 && opts.Lookup == nil {
		return nil, fmt.Errorf("%w: a server needs a Function, Functions or a Lookup", ErrInvalid)
	}
	opts = opts.withDefaults()
	s := &Server{opts: opts, started: time.Now(), workers: admission.NewSlots(opts.Workers, opts.Queue), models: make(map[string]*recorder)}
	s.pending = opts.NewPool(admission.Limits{Bytes: opts.PendingBytes})
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

// functions returns the configured functions. It does not include Lookup.
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

// find returns the function of a request. A request without a model_id gets the only function if there is just one.
func (s *Server) find(ctx context.Context, model string) (Function, error) {
	if err := s.allow(ctx, model); err != nil {
		return nil, err
	}
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

// modelField is the field of a request with the name of its function.
const modelField = 5

// name checks the right to call the function of a request before the request is decoded.
func (s *Server) name(ctx context.Context) *bulk.Name {
	return &bulk.Name{Field: modelField, Check: func(model string) error { return s.allow(ctx, cmp.Or(model, s.opts.Default)) }}
}

func (s *Server) allow(ctx context.Context, model string) error {
	if s.opts.Allow == nil {
		return nil
	}
	return s.opts.Allow(ctx, model)
}

// Check returns nil if Compute would work, and otherwise the reason.
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

// enter admits a request, or returns why the server does not accept it. leave ends the request.
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

// turn waits for a worker. The caller releases it with done.
func (s *Server) turn(ctx context.Context) (done func(), err error) {
	err = s.workers.Enter(ctx)
	if errors.Is(err, admission.ErrLimit) {
		err = fmt.Errorf("%w: %w", ErrOverloaded, err)
	}
	return s.workers.Leave, err
}

// call runs a function. It returns a panic as an error.
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

// recorders returns the recorders that count a request: its function's and the total. Requests for unknown models are
// only counted in the total.
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

// maxModels limits the functions with separate statistics.
const maxModels = 1000

// Statistics returns the figures of one function, or the totals if model is "".
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

// Models returns the names of the functions that were called, sorted.
func (s *Server) Models() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.models))
}

// Shutdown refuses new requests, waits for running ones until ctx ends, and tears the functions down. If ctx ends
// first, the functions are torn down while requests run, and the error is the cause of ctx. A second Shutdown returns
// nil.
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
