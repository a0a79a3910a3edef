package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// offerOperations are the operations of clients that offer endpoints.
type offerOperations struct {
	permit    func(Peer, []string) error // nil refuses all offers, unless there is a policy
	authority *authority
	log       *slog.Logger
}

// offer adds endpoints whose functions the client runs.
func (o *offerOperations) offer(_ context.Context, r *session.Request) (session.Reply, error) {
	in, err := o.permitted(r)
	if err != nil {
		return nil, err
	}
	ses, id := r.Session, r.ID
	for _, e := range in.Endpoints {
		if err := clientOf(ses).mayChange(changeOffer, "name", e.Name); err != nil {
			return nil, err
		}
	}
	w := clientOf(ses).newWorker()
	calls, err := w.Offer(id, in)
	if err != nil {
		return nil, err
	}
	for _, e := range in.Endpoints { // again: a new policy that came before Offer has not seen it
		if o.authority.policy.Load() == nil {
			break
		}
		if err := clientOf(ses).may(access.Offer, e.Name); err != nil {
			w.Withdraw(id)
			return nil, err
		}
	}
	return &answer{
		body: message.Offering{Calls: uint64(calls)},
		after: func() {
			for _, e := range in.Endpoints {
				o.log.Info("offered", "endpoint", e.Name, "session", ses.ID, "pid", ses.Peer().PID)
				clientOf(ses).audit(changeOffer, "name", e.Name)
			}
			w.Begin(id)
		},
		undo: func() { w.Withdraw(id) },
	}, nil
}

// permitted returns the offer of a request if the server accepts offers from this client.
func (o *offerOperations) permitted(r *session.Request) (*message.Offer, error) {
	ses := r.Session
	switch {
	case o.permit == nil && o.authority.policy.Load() == nil:
		return nil, fmt.Errorf("%w: this owner does not accept offers of endpoints; start it with --offers (ServerOptions.Offers)", errors.ErrUnsupported)
	case ses.InProcess():
		return nil, fmt.Errorf("%w: a client of the owner's own process registers its functions in the owner's registry", errors.ErrUnsupported)
	case ses.InFlight.Leaving():
		return nil, fmt.Errorf("%w: the owner is shutting down", status.ErrUnavailable)
	default:
		in := new(message.Offer)
		if err := r.Decode(in); err != nil {
			return nil, err
		}
		names := make([]string, len(in.Endpoints))
		for i, e := range in.Endpoints {
			names[i] = e.Name
			if err := clientOf(ses).may(access.Offer, e.Name); err != nil {
				return nil, err
			}
		}
		if o.permit == nil {
			return in, nil
		}
		if err := o.permit(peerOf(ses), names); err != nil {
			return nil, status.WithClass(status.ErrPermission, fmt.Errorf("the owner refused the offer: %w", err))
		}
		return in, nil
	}
}

// answerCall processes a worker's answer to a call.
func answerCall(ctx context.Context, r *session.Request) (session.Reply, error) {
	in, err := message.ParseAnswer(r.Body)
	if err != nil {
		return nil, err
	}
	w := clientOf(r.Session).worker()
	if w == nil {
		return nil, fmt.Errorf("%w: this client offers no endpoints", status.ErrNotFound)
	}
	if err := w.Answer(ctx, &in, r.Files); err != nil {
		return nil, err
	}
	return &answer{body: message.Answered{}}, nil
}
