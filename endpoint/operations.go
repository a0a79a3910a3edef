package endpoint

import (
	"context"
	"maps"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// operations returns all operations that clients can request.
func (s *Server) operations() map[message.Op]*session.Operation {
	calls := &callOperations{engine: s.engine, endpoints: &s.endpoints, intercept: s.intercept, server: s.id, limits: &s.opts.Limits}
	tasks := &taskOperations{manager: s.engine.Tasks, calls: calls}
	objects := &objectOperations{engine: s.engine, sessions: s.sessions, server: s.id, limits: &s.opts.Limits, log: s.log}
	offers := &offerOperations{permit: s.opts.Offers, log: s.log}
	all := s.models.Operations()
	maps.Copy(all, map[message.Op]*session.Operation{
		message.OpPing:       {Call: ping},
		message.OpUnwatch:    {Call: unwatch},
		message.OpServerInfo: {Call: func(context.Context, request) (reply, error) { return reply{Body: describeServer(s)}, nil }},

		message.OpCall:               {Call: calls.call, Long: true, Files: true},
		message.OpEndpoints:          {Call: calls.list},
		message.OpInvalidateCall:     {Call: calls.invalidateCall, Long: true, Files: true},
		message.OpInvalidateEndpoint: {Call: calls.invalidateEndpoint, Long: true},
		message.OpReturnSlabs:        {Call: returnSlabs},
		message.OpStream:             {Call: calls.stream, Long: true, Files: true},
		message.OpStreamMore:         {Call: streamMore},

		message.OpObjectInfo:    {Call: objects.info},
		message.OpObjectRelease: {Call: objects.release},
		message.OpObjectWatch:   {Call: objects.watch},
		message.OpObjectRefer:   {Call: objects.refer},
		message.OpObjects:       {Call: objects.list, Long: true},
		message.OpObjectDestroy: {Call: objects.destroy, Long: true},

		message.OpSubmit:     {Call: calls.submit, Long: true, Files: true},
		message.OpTask:       {Call: tasks.info},
		message.OpTaskWait:   {Call: tasks.wait, Long: true},
		message.OpTaskResult: {Call: tasks.result},
		message.OpTaskCancel: {Call: tasks.cancel},
		message.OpTasks:      {Call: tasks.list},
		message.OpTaskWatch:  {Call: tasks.watch},

		message.OpOffer:  {Call: offers.offer},
		message.OpAnswer: {Call: answerCall, Long: true, Files: true},
	})
	return all
}
