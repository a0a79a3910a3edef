package server

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/offering"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// operations returns all operations that clients can request.
func (s *Server) operations() map[message.Op]session.Operation {
	models := &modelOperations{s.Models}
	calls := &callOperations{engine: s.Engine, endpoints: &s.Endpoints, intercept: s.Intercept, server: s.ID, objects: s.Limits.Objects, tasks: s.Limits.Tasks}
	tasks := &taskOperations{manager: s.Engine.Tasks, calls: calls}
	objects := &objectOperations{engine: s.Engine, sessions: s, server: s.ID, limit: s.Limits.Objects, frame: s.Limits.Wire, log: s.Log}
	offers := &offerOperations{permit: s.PermitOffer, authority: &s.authority, log: s.Log}
	return map[message.Op]session.Operation{
		message.OpPing:       {Prepare: inOrder(ping)},
		message.OpUnwatch:    {Prepare: inOrder(unwatch), Releases: true},
		message.OpServerInfo: {Prepare: inOrder(s.info)},

		message.OpAcquire:  {Prepare: unlessLeaving(models.acquire)},
		message.OpRelease:  {Prepare: inOrder(models.release)},
		message.OpPublish:  {Prepare: async(models.publish), Files: true},
		message.OpWithdraw: {Prepare: async(models.withdraw)},
		message.OpRollback: {Prepare: async(models.rollback)},
		message.OpList:     {Prepare: unlessLeaving(inOrder(models.list))},
		message.OpInfo:     {Prepare: unlessLeaving(inOrder(models.info))},
		message.OpWatch:    {Prepare: unlessLeaving(inOrder(models.watch))},
		message.OpDigests:  {Prepare: async(models.digests)},

		message.OpCall:               {Prepare: calls.prepareCall, Files: true},
		message.OpStream:             {Prepare: calls.prepare((*call).stream), Files: true},
		message.OpStreamMore:         {Prepare: inOrder(streamMore)},
		message.OpSubmit:             {Prepare: calls.prepare((*call).submit), Files: true},
		message.OpInvalidateCall:     {Prepare: calls.prepare((*call).invalidate), Files: true},
		message.OpInvalidateEndpoint: {Prepare: async(calls.invalidateEndpoint)},
		message.OpEndpoints:          {Prepare: inOrder(calls.list)},
		message.OpReturnSlabs:        {Prepare: inOrder(returnSlabs)},

		message.OpObjectInfo:    {Prepare: inOrder(objects.info)},
		message.OpObjectRelease: {Prepare: inOrder(objects.release), Releases: true},
		message.OpObjectWatch:   {Prepare: inOrder(objects.watch)},
		message.OpObjectRefer:   {Prepare: inOrder(objects.refer)},
		message.OpObjects:       {Prepare: async(objects.list)},
		message.OpObjectDestroy: {Prepare: async(objects.destroy)},

		message.OpTask:       {Prepare: inOrder(tasks.info)},
		message.OpTaskWait:   {Prepare: async(tasks.wait), Late: true},
		message.OpTaskResult: {Prepare: inOrder(tasks.result)},
		message.OpTaskCancel: {Prepare: inOrder(tasks.cancel), Releases: true},
		message.OpTasks:      {Prepare: inOrder(tasks.list)},
		message.OpTaskWatch:  {Prepare: inOrder(tasks.watch)},

		message.OpOffer:  {Prepare: inOrder(offers.offer)},
		message.OpAnswer: {Prepare: async(answerCall), Files: true},
	}
}

func ping(_ context.Context, r *session.Request) (session.Reply, error) {
	var in message.Ping
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	return &answer{body: message.Pong(in)}, nil
}

// unwatch ends a watch or an offer of an earlier request.
func unwatch(_ context.Context, r *session.Request) (session.Reply, error) {
	var in message.Unwatch
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	c := clientOf(r.Session)
	if w := c.worker(); w != nil && w.Withdraw(in.Watch) {
		c.audit(changeOfferEnds, "request", in.Watch)
		return &answer{body: message.Unwatched{}}, nil
	}
	if !r.Session.Events.Remove(in.Watch) {
		return nil, fmt.Errorf("%w: no watch has the id %d", status.ErrNotFound, in.Watch)
	}
	return &answer{body: message.Unwatched{}}, nil
}

// Endpoints holds the server's own endpoints and those offered by clients.
type Endpoints struct {
	Registry *engine.Registry // nil for none
	Offers   *offering.Table  // offered by clients
}

// find returns the endpoint with the given name, registered or offered.
func (e *Endpoints) find(name string) (*engine.Definition, error) {
	d, err := e.Registry.Find(name)
	if err == nil {
		return d, nil
	}
	if d := e.Offers.Lookup(name); d != nil {
		return d, nil
	}
	return nil, err
}

// lookup is find for a name within a message. It returns nil if there is no such endpoint.
func (e *Endpoints) lookup(name []byte) *engine.Definition {
	if d := e.Registry.Lookup(name); d != nil {
		return d
	}
	return e.Offers.Lookup(string(name))
}

// List returns the server's own endpoints, then offered ones, each sorted by name.
func (e *Endpoints) List() []*engine.Definition {
	return append(e.Registry.List(), e.Offers.List()...)
}
