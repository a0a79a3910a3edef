package inference

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// streamedAtOnce limits the requests of a stream that run at once. Further requests wait in the transport.
const streamedAtOnce = 8

// inferStream is a call of ModelStreamInfer. Its requests run concurrently. Responses are sent in the order of the
// requests, except that decoupled models send each response when it is available. The responses of a request behind
// one to a decoupled model follow its last one.
type inferStream struct {
	s    grpcService
	call grpc.BidiStreamingServer[pb.ModelInferRequest, pb.ModelStreamInferResponse]

	sending sync.Mutex
	broken  error // error of the transport
}

// ModelStreamInfer implements the service.
func (s grpcService) ModelStreamInfer(call grpc.BidiStreamingServer[pb.ModelInferRequest, pb.ModelStreamInferResponse]) error {
	st := &inferStream{s: s, call: call}
	ctx, cancel := context.WithCancel(call.Context())
	defer cancel()
	slots := admission.NewSlots(streamedAtOnce, -1)
	var running sync.WaitGroup
	defer running.Wait()
	before := make(chan struct{}) // closed when the previous request has been answered
	close(before)
	for i := 0; ; i++ {
		in := s.requestMessage(ctx)
		if err := call.RecvMsg(in); err != nil {
			if errors.Is(err, io.EOF) {
				return nil // all answers are sent before the call ends
			}
			cancel()
			return err
		}
		if slots.Enter(ctx) != nil {
			in.Free()
			return ctx.Err()
		}
		answered, turn := make(chan struct{}), before
		before = answered
		contain.In(&running, func() {
			defer slots.Leave()
			defer close(answered)
			defer in.Free()                               // the message is charged until it is answered
			id := in.Head.(*pb.ModelInferRequest).GetId() //nolint:forcetypeassert // made by requestMessage
			err := contain.Call(func() error { st.answer(ctx, in, turn, i == 0); return nil })
			select { // the next request is answered after this one
			case <-turn:
			case <-ctx.Done():
				return
			}
			if err != nil {
				st.fail(id, err)
			}
		}, nil)
	}
}

// answer answers one request. turn is closed when the previous request has been answered. first reports that there is
// none.
func (st *inferStream) answer(ctx context.Context, in *bulk.Parts, turn <-chan struct{}, first bool) {
	var err error
	if !first { // the call counted the first
		err = st.s.env.Admission.Request(rights.Sender(ctx))
	}
	if err == nil {
		err = in.Name.Err()
	}
	var r *request
	if err == nil {
		r, err = requestOf(in.Head.(*pb.ModelInferRequest), in.List())
	}
	if err == nil {
		err = st.s.checkClient(ctx, r)
	}
	var m *model
	if err == nil {
		m, err = st.s.models.find(ctx, r.model)
	}
	if err == nil && m.stream {
		if err = st.decoupled(ctx, m, r); err != nil {
			st.fail(r.id, err)
		}
		return
	}
	var out *response
	if err == nil {
		out, err = st.s.infer(ctx, r)
	}
	select {
	case <-turn:
	case <-ctx.Done():
		if out != nil {
			out.outputs.close()
		}
		return
	}
	if err != nil {
		st.fail(in.Head.(*pb.ModelInferRequest).GetId(), err)
		return
	}
	st.respond(out)
}

// decoupled sends each result of a function as a separate response.
func (st *inferStream) decoupled(ctx context.Context, m *model, r *request) (err error) {
	s := st.s.service
	clock := timing{begin: time.Now()}
	defer func() { m.stats.end(&clock, err) }()
	ctx, end, err := s.prepare(ctx, m, r)
	if err != nil {
		return err
	}
	defer end()
	a, err := s.argument(ctx, m, r)
	defer func() { err = errors.Join(err, a.close()) }()
	if err != nil {
		return err
	}
	clock.input = time.Since(clock.begin)
	for result, err := range m.results(ctx, a.value) {
		if err != nil {
			return cause(ctx, err)
		}
		list, err := s.finish(m, r, result)
		if err != nil {
			return err
		}
		st.respond(&response{model: m.name, version: r.version, id: r.id, outputs: list, parameters: map[string]any{paramFinal: false}})
	}
	clock.infer = time.Since(clock.begin) - clock.input
	if wantsFinal, _ := r.parameters[paramEmptyFinal].(bool); wantsFinal {
		st.respond(&response{model: m.name, version: r.version, id: r.id, parameters: map[string]any{paramFinal: true}})
	}
	return nil
}

// respond sends a response and closes it.
func (st *inferStream) respond(out *response) {
	defer out.outputs.close()
	message, err := out.message(st.s.service)
	if err != nil {
		st.fail(out.id, err)
		return
	}
	message.Outer = streamedMessage
	st.send(message)
	message.Free() // frees the data if the codec was not reached
}

// fail sends the error of a request. The stream continues.
func (st *inferStream) fail(id string, err error) {
	st.send(&pb.ModelStreamInferResponse{ErrorMessage: err.Error(), InferResponse: &pb.ModelInferResponse{Id: id}})
}

func (st *inferStream) send(message any) {
	st.sending.Lock()
	defer st.sending.Unlock()
	if st.broken == nil {
		st.broken = st.call.SendMsg(message)
	}
}
