package endpoint

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/wire"
)

// ownTaskNews is what happens to the tasks of a server in its own process.
type ownTaskNews struct {
	server *Server
	from   *tasksSource
	wake   chan struct{} // has room for one
}

// taskNews implements asker.
func (s *Server) taskNews(_ context.Context, ask wire.WatchTasks) (taskNews, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	from, err := s.newTasksSource(ask, s.self.id)
	if err != nil {
		return nil, decodeError(encodeError(err))
	}
	n := &ownTaskNews{server: s, from: from, wake: make(chan struct{}, 1)}
	from.open(n.woken)
	n.woken() // what there is already
	return n, nil
}

func (n *ownTaskNews) woken() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// next implements taskNews.
func (n *ownTaskNews) next(ctx context.Context) ([]wire.TaskEvent, error) {
	for {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		ended := n.server.self.ctx.Err() != nil // before looking: what has happened until then is told
		var events []wire.TaskEvent
		for _, e := range n.from.take() {
			events = append(events, e.(wire.TaskEvent))
		}
		switch {
		case len(events) > 0:
			return events, nil
		case ended:
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, ErrServerClosed)
		}
		select {
		case <-n.wake:
		case <-n.server.self.ctx.Done():
		case <-ctx.Done():
		}
	}
}

func (n *ownTaskNews) close() { n.from.close() }
