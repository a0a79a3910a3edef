package endpoint

import "context"

// An owner runs code of others beside the functions of its endpoints: what their types do to encode and decode themselves, with bytes
// that a client chose, and what their errors do when they are asked what they are. None of it may end the process,
// for the process has the memory of all.

// perform runs the operation for a request.
func (op operation) perform(ctx context.Context, r request) (_ reply, err error) {
	ended := false
	defer func() {
		if !ended && r.args != nil {
			r.args.Drop()
		}
	}()
	defer r.session.server.engine.Recovered(&err, r.callee, "")
	out, err := op.call(ctx, r)
	ended = true
	return out, err
}
