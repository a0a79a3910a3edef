package inference

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// service handles the requests of both transports.
type service struct {
	env     *gateway.Env
	name    string // name of the server in its metadata
	shm     bool   // clients can register shared memory
	device  driver.Device
	memory  argumentMemory
	models  catalog
	regions regions
	pending *admission.Pool
}

// response is the response to a request. The caller closes the outputs after sending it.
type response struct {
	model, version, id string
	parameters         map[string]any
	outputs            outputs
}

// infer handles a request for a model that is not decoupled.
func (s *service) infer(ctx context.Context, r *request) (*response, error) {
	clock := timing{begin: time.Now()}
	m, err := s.models.find(ctx, r.model)
	if err != nil {
		return nil, err
	}
	if m.stream {
		return nil, notDecoupled(m)
	}
	out, err := s.run(ctx, m, r, &clock)
	m.stats.end(&clock, err)
	return out, err
}

func (s *service) run(ctx context.Context, m *model, r *request, clock *timing) (out *response, err error) {
	ctx, end, err := s.prepare(ctx, m, r)
	if err != nil {
		return nil, err
	}
	defer end()
	a, err := s.argument(ctx, m, r)
	defer func() {
		if a != nil {
			err = errors.Join(err, a.close())
		}
	}()
	if err != nil {
		return nil, err
	}
	called := time.Now()
	clock.input = called.Sub(clock.begin)
	var result any
	if m.batcher != nil {
		result, err = s.inBatch(ctx, m, r, &a, clock)
	} else {
		result, err = m.call(ctx, a.value)
		clock.infer = time.Since(called)
	}
	answered := time.Now()
	if err != nil {
		return nil, cause(ctx, err)
	}
	list, err := s.finish(m, r, result)
	clock.output = time.Since(answered)
	return &response{model: m.name, version: r.version, id: r.id, outputs: list}, err
}

// inBatch calls the function of a model together with other requests. It sets *a to nil if the batch owns the argument.
func (s *service) inBatch(ctx context.Context, m *model, r *request, a **argument, clock *timing) (any, error) {
	one, err := m.batcher.join(ctx, m, r, *a)
	if err != nil {
		return nil, err
	}
	*a = nil
	result, err := m.batcher.call(one)
	if err == nil {
		clock.queue, clock.infer, clock.rows = one.spent.queue, one.spent.infer, one.rows
		clock.input += one.spent.input
	}
	return result, err
}

// prepare sets the version and the deadline of a request. The caller calls end when the request has ended.
func (s *service) prepare(ctx context.Context, m *model, r *request) (_ context.Context, end func(), err error) {
	if err := r.checkSequence(m); err != nil {
		return ctx, nil, err
	}
	timeout, err := r.timeout()
	if err != nil {
		return ctx, nil, err
	}
	asked := r.version
	if r.version, err = s.models.choose(ctx, m, asked); err != nil {
		return ctx, nil, err
	}
	if asked != "" {
		r.setVersion(m)
	}
	if err := m.checkWanted(r.outputs); err != nil {
		return ctx, nil, err
	}
	release, err := s.hold(ctx, r)
	if err != nil {
		return ctx, nil, err
	}
	bound, unbindModel := s.models.bind(ctx, m)
	unbind := func() { unbindModel(); release() }
	if timeout == 0 {
		return bound, unbind, nil
	}
	limited, cancel := context.WithTimeout(bound, timeout)
	return limited, func() { cancel(); unbind() }, nil
}

// hold acquires the regions of the outputs of a request before its function runs. Another region may have the name when the
// function has ended.
func (s *service) hold(ctx context.Context, r *request) (release func(), err error) {
	var held []*region
	release = func() {
		for _, one := range held {
			s.regions.release(one)
		}
	}
	for _, w := range r.outputs {
		if w.region == nil {
			continue
		}
		one, err := s.regions.use(regionOf(ctx, w.region.name), w.region.offset, w.region.bytes)
		if err != nil {
			release()
			return nil, err
		}
		held, w.region.held = append(held, one), one
	}
	return release, nil
}

// finish converts a result to outputs. It takes ownership of the result.
func (s *service) finish(m *model, r *request, result any) (outputs, error) {
	list, err := m.outputsOf(result, r.outputs, s.device)
	if err != nil {
		return nil, err
	}
	list.setBatchOfOne(m, r.inputs)
	if err := s.deliver(list); err != nil {
		list.close()
		return nil, err
	}
	return list, nil
}

// call calls the function. The caller owns the tensors of the result.
func (m *model) call(ctx context.Context, argument any) (any, error) {
	if len(m.outputs) == 1 && m.outputs[0].kind == tensorPort && m.outputs[0].path == nil {
		return endpoint.Call[*tensor.Tensor](ctx, m.caller, m.name, argument)
	}
	return endpoint.Call[any](ctx, m.caller, m.name, argument)
}

// results calls a function that returns a sequence of results.
func (m *model) results(ctx context.Context, argument any) iter.Seq2[any, error] {
	return endpoint.Stream[any](ctx, m.caller, m.name, argument)
}

// cause returns the reason why a request's context ended. It distinguishes an owner that disconnected from a client
// that left.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); why != nil && errors.Is(why, endpoint.ErrUnavailable) {
		return why
	}
	return err
}
