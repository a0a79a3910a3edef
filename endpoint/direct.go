package endpoint

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/wire"
)

// A server's own process reaches its endpoints without a socket: the same operations run for a session that has no connection. Values
// cross them encoded, so they are checked and cached like any others, but storages are lent, not exported and imported. Errors are
// turned into codes and back: what can be told apart here can be told apart in a client.

// local is what a request within the process carries beside its body.
type local struct {
	name   string   // the endpoint
	args   *payload // its argument; prepare takes it
	result *result  // what came of it, valid until the reply is done with
	yield  func(ctx context.Context, item *result) error
}

// localAnswer is what came of an operation.
type localAnswer struct {
	reply reply
	err   error
}

// prepareLocal is prepare for a request within the process.
func (r request) prepareLocal() (*definition, *arguments, error) {
	p := r.local.args
	defer p.close()
	d, err := r.session.server.registry.find(r.local.name)
	if err != nil {
		return nil, nil, err
	}
	storages, err := lend(r.session.server.devices, p.storages, driver.ImportOptions{Writable: d.options.writable})
	if err != nil {
		return d, nil, fmt.Errorf("endpoint %q: argument: %w", d.name, err)
	}
	r.args.names = r.session.server.nameLocal(p.storages, d, r.session.id)
	return d, r.args, r.session.server.decodeArguments(r.args, d, p.value, storages)
}

// newLocal encodes an argument for a request within the process. What a frame could not carry is refused here too.
func (s *Server) newLocal(name string, in any) (*local, error) {
	p, err := encodePayload(in)
	if err != nil {
		return nil, fmt.Errorf("argument: %w", err)
	}
	if err := s.fits(&p); err != nil {
		p.close()
		return nil, fmt.Errorf("argument: %w", err)
	}
	if err := shareable(p.storages); err != nil {
		p.close()
		return nil, fmt.Errorf("share the argument: %w", err)
	}
	if in == nil {
		p.value = nil
	}
	return &local{name: name, args: &p}, nil
}

// direct runs an operation within the process and hands what came of it to take. When ctx ends first, the operation is told so and goes on
// by itself.
func (s *Server) direct(ctx context.Context, r request, op wire.Op, take func(reply) error) error {
	if err := context.Cause(ctx); err != nil {
		r.drop()
		return err
	}
	if err := s.enter(); err != nil {
		r.drop()
		return err
	}
	s.requests.Add(1)
	r.session, r.id = s.self, s.directID.Add(1)
	if r.local != nil {
		r.args = new(arguments)
	}
	inner, cancel := context.WithCancelCause(ctx)
	unbind := context.AfterFunc(s.self.ctx, func() { cancel(context.Cause(s.self.ctx)) })
	answers, gone := make(chan localAnswer), make(chan struct{})
	defer close(gone)
	go func() {
		defer s.leave()
		defer cancel(nil)
		defer unbind()
		answer := localAnswer{err: ErrGoexit}
		defer func() {
			select {
			case answers <- answer:
			case <-gone:
				answer.drop()
			}
		}()
		answer.reply, answer.err = operations[op].perform(inner, r)
	}()
	select {
	case answer := <-answers:
		return s.takeAnswer(answer, take)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// drop gives back what a request carries that was not begun.
func (r request) drop() {
	if r.local != nil && r.local.args != nil {
		r.local.args.close()
	}
}

// takeAnswer hands a reply on, or the error as a client would see it.
func (s *Server) takeAnswer(answer localAnswer, take func(reply) error) error {
	if answer.err != nil {
		s.failures.Add(1)
		return decodeError(tellable(answer.err))
	}
	defer answer.reply.close()
	taken := false
	defer func() {
		if !taken {
			answer.reply.lost()
		}
	}()
	err := take(answer.reply)
	taken = err == nil
	return err
}

// drop gives back what came for nobody.
func (answer *localAnswer) drop() {
	if answer.err != nil {
		return
	}
	answer.reply.lost()
	answer.reply.close()
}

// releaseOwn gives a reference of this process back.
func (s *Server) releaseOwn(id string, token uint64) bool {
	_, err := s.releaseReference(id, token, s.self.id)
	return err == nil
}

// request implements asker.
func (s *Server) request(ctx context.Context, ask call, out any) error {
	var r request
	if ask.body != nil {
		body, err := wire.MarshalPayload(ask.body)
		if err != nil {
			return err
		}
		r.body = body
	}
	return s.direct(ctx, r, ask.op, func(answer reply) error { return setAnswer(answer, out) })
}

// setAnswer stores the message of a reply, which is of the type that out points to.
func setAnswer(answer reply, out any) error {
	if out != nil {
		reflect.ValueOf(out).Elem().Set(reflect.ValueOf(answer.body))
	}
	return nil
}

// ask implements asker.
func (s *Server) ask(ctx context.Context, op wire.Op, name string, in, out any) error {
	l, err := s.newLocal(name, in)
	if err != nil {
		return err
	}
	return s.direct(ctx, request{local: l}, op, func(answer reply) error { return setAnswer(answer, out) })
}

// fetch implements asker.
func (s *Server) fetch(ctx context.Context, f fetch, out any) error {
	return s.fetchValue(ctx, f, out, func(got wire.Returned) {
		if got.Object != nil {
			s.releaseOwn(got.Object.ID, got.Object.Token)
		}
	})
}

// fetchValue decodes a value into out and calls then with what came beside it.
func (s *Server) fetchValue(ctx context.Context, f fetch, out any, then func(wire.Returned)) error {
	op, r := wire.OpCall, request{local: new(local)}
	var err error
	if f.task == "" {
		r.local, err = s.newLocal(f.name, f.in)
	} else {
		op = wire.OpTaskResult
		r.body, err = wire.Marshal(wire.Task{ID: f.task})
	}
	if err != nil {
		return err
	}
	return s.direct(ctx, r, op, func(answer reply) error {
		if err := s.decodeLocal(r.local.result, out); err != nil {
			return err
		}
		then(answer.returned)
		return nil
	})
}

// decodeLocal decodes a result into out, which may be nil: its tensors are views of the result's storages.
func (s *Server) decodeLocal(res *result, out any) error {
	if out == nil {
		return nil
	}
	if err := checkTarget(out); err != nil {
		return err
	}
	storages, err := lend(s.devices, res.payload.storages, driver.ImportOptions{})
	if err != nil {
		return fmt.Errorf("result: %w", err)
	}
	defer closeStorages(storages) // what is made has references of its own
	if _, err := decodePayload(res.payload.value, storages, out, false); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	return nil
}

// hold implements asker.
func (s *Server) hold(ctx context.Context, f fetch, out any) (ref *reference, err error) {
	err = s.fetchValue(ctx, f, out, func(got wire.Returned) {
		if got.Object != nil {
			ref = s.keepReference(got.Object)
		}
	})
	return ref, err
}

// keepReference makes a reference of this process known, so that it hears of the object's end.
func (s *Server) keepReference(obj *wire.ObjectRef) *reference {
	r := newReference(s, obj)
	s.mu.Lock()
	s.ownRefs.add(r)
	s.mu.Unlock()
	switch there, held := s.objects.holds(r.id, obj.Token, s.self.id); {
	case !there: // destroyed before it was known
		s.loseReferences(r.id, "")
	case !held: // given back by id
		s.given([]wire.ObjectReleased{{ID: r.id, Released: true, Token: obj.Token}})
	}
	return r
}

// loseReferences tells this process's references to an object, or to all if id is empty, that it is gone, and why if that is known.
func (s *Server) loseReferences(id, why string) {
	s.mu.Lock()
	lost := s.ownRefs.of(id)
	if id == "" {
		lost = s.ownRefs.all()
	}
	for _, r := range lost {
		s.ownRefs.remove(r)
	}
	s.mu.Unlock()
	for _, r := range lost {
		r.stale(StaleObjectMissing, why)
	}
}

// returnReference implements keeper.
func (s *Server) returnReference(_ context.Context, r *reference, _ bool) (bool, error) {
	s.mu.Lock()
	s.ownRefs.remove(r)
	s.mu.Unlock()
	_, token := r.held()
	return s.releaseOwn(r.id, token), nil
}

// start implements keeper.
func (s *Server) start(what func()) {
	if s.enter() != nil {
		return
	}
	go func() {
		defer s.leave()
		what()
	}()
}

// logger implements keeper.
func (s *Server) logger() *slog.Logger { return s.log }

// given implements asker.
func (s *Server) given(rows []wire.ObjectReleased) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ownRefs.end(tokensOf(rows))
}

// enter begins a request of this process, which Shutdown waits for.
func (s *Server) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return fmt.Errorf("%w: %w", ErrUnavailable, ErrServerClosed)
	}
	s.directs++
	return nil
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.directs--
	s.finishIfIdleLocked()
}
