package endpoint

import (
	"context"
	"fmt"
	"io"

	"github.com/sharedtensor/sharedtensor/wire"
)

// localStream is a stream within the process. The function waits in yield until its item is taken.
type localStream struct {
	server *Server
	items  chan *result
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the stream has ended, and err is set
	err    error
}

// stream implements asker.
func (s *Server) stream(ctx context.Context, name string, in any) (items, error) {
	l, err := s.newLocal(name, in)
	if err != nil {
		return nil, err
	}
	st := &localStream{server: s, items: make(chan *result), done: make(chan struct{})}
	l.yield = st.put
	ctx, st.cancel = context.WithCancelCause(ctx)
	go func() {
		defer close(st.done)
		st.err = s.direct(ctx, request{local: l}, wire.OpStream, func(reply) error { return nil })
	}()
	return st, nil
}

// put hands an item to whoever reads the stream. It takes the caller's reference.
func (st *localStream) put(ctx context.Context, item *result) error {
	select {
	case st.items <- item:
		return nil
	case <-ctx.Done():
		item.release()
		return context.Cause(ctx)
	}
}

// next implements items.
func (st *localStream) next(ctx context.Context, out any) error {
	select {
	case item := <-st.items:
		defer item.release()
		return st.server.decodeLocal(item, out)
	case <-st.done:
		if st.err == nil {
			return io.EOF
		}
		return st.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// close implements items.
func (st *localStream) close() {
	st.cancel(fmt.Errorf("the reader has left: %w", context.Canceled))
	<-st.done
}
