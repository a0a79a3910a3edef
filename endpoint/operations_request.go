package endpoint

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Parameters and results of operations.
type (
	request = session.Request
	reply   = session.Reply
)

func ping(_ context.Context, r request) (reply, error) {
	var in message.Ping
	if err := r.Decode(&in); err != nil {
		return reply{}, err
	}
	return reply{Body: message.Pong(in)}, nil
}

// unwatch ends a watch or an offer of an earlier request.
func unwatch(_ context.Context, r request) (reply, error) {
	var in message.Unwatch
	if err := r.Decode(&in); err != nil {
		return reply{}, err
	}
	if w := r.Session.Offered(); w != nil && w.Withdraw(in.Watch) {
		return reply{Body: message.Unwatched{}}, nil
	}
	if !r.Session.Events.Remove(in.Watch) {
		return reply{}, fmt.Errorf("%w: no watch has the id %d", status.ErrNotFound, in.Watch)
	}
	return reply{Body: message.Unwatched{}}, nil
}
