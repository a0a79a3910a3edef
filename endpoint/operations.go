package endpoint

import (
	"context"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// What operations get and give.
type (
	request = session.Request
	reply   = session.Reply
)

// operations are all that clients can ask for.
func (s *Server) operations() map[message.Op]*session.Operation {
	models := &modelOperations{versions: &s.versions, devices: s.devices, limits: &s.opts.Limits}
	calls := &callOperations{engine: s.engine, endpoints: &s.endpoints, intercept: s.intercept, server: s.id, limits: &s.opts.Limits}
	tasks := &taskOperations{manager: s.engine.Tasks, calls: calls}
	objects := &objectOperations{engine: s.engine, sessions: s.sessions, server: s.id, limits: &s.opts.Limits, log: s.log}
	offers := &offerOperations{permit: s.opts.Offers, log: s.log}
	return map[message.Op]*session.Operation{
		message.OpPing:       {Call: ping},
		message.OpServerInfo: {Call: func(context.Context, request) (reply, error) { return reply{Body: describeServer(s)}, nil }},

		message.OpAcquire:  {Call: models.acquire},
		message.OpRelease:  {Call: models.release},
		message.OpPublish:  {Call: models.publish, Long: true, Files: true},
		message.OpWithdraw: {Call: models.withdraw, Long: true},
		message.OpList:     {Call: models.list},
		message.OpInfo:     {Call: models.info},
		message.OpWatch:    {Call: models.watch},
		message.OpUnwatch:  {Call: unwatch},
		message.OpDigests:  {Call: models.digested, Long: true},

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
	}
}

func ping(_ context.Context, r request) (reply, error) {
	var in message.Ping
	if err := r.Decode(&in); err != nil {
		return reply{}, err
	}
	return reply{Body: message.Pong(in)}, nil
}
