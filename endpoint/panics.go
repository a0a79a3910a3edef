package endpoint

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task/panics"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// An owner runs code of others beside the functions of its endpoints: what their types do to encode and decode themselves, with bytes
// that a client chose, and what their errors do when they are asked what they are. None of it may end the process,
// for the process has the memory of all.

// recovered is deferred around such code. It makes a panic the error of what was done, with the endpoint's name if there is an endpoint,
// and tells the log, which also gets the stack.
func (s *Server) recovered(err *error, d *definition, part string) {
	v := recover()
	if v == nil {
		return
	}
	p := panics.New(v)
	if d == nil {
		s.log.Error("a request panicked", "value", p.Text(), "stack", string(p.Stack))
		*err = p
		return
	}
	s.log.Error("endpoint panicked", "endpoint", d.name, "value", p.Text(), "stack", string(p.Stack))
	*err = fmt.Errorf("endpoint %q: %s%w", d.name, part, p)
}

// perform runs the operation for a request.
func (op operation) perform(ctx context.Context, r request) (_ reply, err error) {
	ended := false
	defer func() {
		if !ended && r.args != nil {
			r.args.drop()
		}
	}()
	defer r.session.server.recovered(&err, r.callee, "")
	out, err := op.call(ctx, r)
	ended = true
	return out, err
}

// tellable is encodeError for any error, also for one that panics when it is asked what it is.
func tellable(err error) (out *message.Error) {
	defer func() {
		if recover() != nil {
			out = &message.Error{ // fmt survives it
				Code: message.CodeInternal, Type: message.CutText(fmt.Sprintf("%T", err), message.MaxErrorType),
				Message: message.CutText(fmt.Sprint(err), message.MaxErrorMessage),
			}
		}
	}()
	return status.EncodeError(err)
}
