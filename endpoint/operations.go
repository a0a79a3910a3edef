package endpoint

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// operation is what a server does on request.
type operation struct {
	// call does it. The request's descriptors are closed after it unless it takes them.
	call func(ctx context.Context, r request) (reply, error)
	// long operations may wait or compute, and get a goroutine of their own. The others are answered by the session's
	// reader, in the order in which they came.
	long bool
	// files operations take descriptors: those of their handles.
	files bool
}

// request is one request of a client.
type request struct {
	session *session
	id      uint64
	body    message.RawMessage
	files   *wire.Files

	reservation engine.Reservation // what its body and its descriptors count; that of arguments counts until these are done with
	args        *engine.Arguments  // room for those of a call; may be nil
	callee      *engine.Definition // of a call whose endpoint was found already; nil for others
	call        message.CallParts

	metadata Metadata // for interceptors
}

// decode reads the request's body into a message. An empty body leaves it as it is.
func (r request) decode(into any) error {
	if len(r.body) == 0 {
		return nil
	}
	return message.Unmarshal(r.body, into)
}

// sender is [wire.Conn.Send] or [wire.Conn.SendLater].
type sender func(kind wire.Kind, id uint64, body []byte, files ...*os.File) error

// reply is what a request is answered with.
type reply struct {
	body     any                  // the message, where there is no result
	result   engine.ResultRef     // of a call; nothing for others
	keptFor  *session             // for which the result's memory is counted until the reply is closed; nil for none
	returned message.Returned     // the message, where there is a result
	files    []*os.File           // borrowed until the reply has been sent
	slabs    *transfer.SlabExport // in which the result is sent; nil for most
	// storages are shared, in the place of the files, with a client of this process. Borrowed until the reply has been
	// sent.
	storages []*tensor.Storage
	// head is the message up to shared, which follows it and is in memory once for all that are answered with it; nil
	// where there is body or result. Borrowed until the reply has been sent.
	head, shared []byte
	after        func() // runs when the reply has been sent; may be nil
	undo         func() // takes back what the reply hands out, where nobody got it; may be nil
}

// appendTo encodes the message.
func (r *reply) appendTo(b []byte) ([]byte, error) {
	switch {
	case r.result.Result != nil:
		return message.AppendReturned(slices.Grow(b, r.size()), &r.returned)
	case r.head != nil:
		return append(b, r.head...), nil
	}
	body, err := message.MarshalPayload(r.body)
	return append(b, body...), err
}

// size is how many bytes the message has at least, as far as that is known before it is encoded. What is shared does
// not count.
func (r *reply) size() int {
	if r.result.Result != nil {
		return len(r.returned.Value) + engine.HandleBytes*len(r.returned.Handles)
	}
	return len(r.head)
}

// lost takes back what the reply hands out: nobody got it. The caller closes it too.
func (r *reply) lost() {
	if r.slabs != nil {
		r.slabs.Unsent()
	}
	if r.undo != nil {
		r.undo()
	}
}

// memory are the storages that the reply is about.
func (r *reply) memory() []*tensor.Storage {
	if r.result.Result != nil {
		return r.result.Payload.Storages
	}
	return r.storages
}

// close gives back what a reply has when it is of no use any more, sent or not.
func (r *reply) close() {
	if r.slabs != nil {
		r.slabs.Close()
	}
	r.release()
}

// release gives the result back.
func (r *reply) release() {
	if r.result.Result == nil {
		return
	}
	if r.keptFor != nil {
		r.keptFor.server.engine.Memory.Give(r.keptFor.id, r.result.Result)
	}
	r.result.Release()
	r.result = engine.ResultRef{}
}

// operations are all that a server can do.
var operations map[message.Op]*operation

func init() { // not in the declaration: the operations lead back to the sessions that look them up
	operations = map[message.Op]*operation{
		message.OpPing:     {call: doPing},
		message.OpAcquire:  {call: doAcquire},
		message.OpRelease:  {call: doRelease},
		message.OpPublish:  {call: doPublish, long: true, files: true},
		message.OpWithdraw: {call: doWithdraw, long: true},
		message.OpList:     {call: doList},
		message.OpInfo:     {call: doInfo},
		message.OpWatch:    {call: doWatch},
		message.OpUnwatch:  {call: doUnwatch},
		message.OpDigests:  {call: doDigests, long: true},

		message.OpCall:               {call: doCall, long: true, files: true},
		message.OpEndpoints:          {call: doEndpoints},
		message.OpInvalidateCall:     {call: doInvalidateCall, long: true, files: true},
		message.OpInvalidateEndpoint: {call: doInvalidateEndpoint, long: true},
		message.OpObjectInfo:         {call: doObjectInfo},
		message.OpObjectRelease:      {call: doObjectRelease},
		message.OpObjectWatch:        {call: doObjectWatch},
		message.OpObjectRefer:        {call: doObjectRefer},
		message.OpObjects:            {call: doObjects, long: true},
		message.OpObjectDestroy:      {call: doObjectDestroy, long: true},

		message.OpSubmit:     {call: doSubmit, long: true, files: true},
		message.OpTask:       {call: doTask},
		message.OpTaskWait:   {call: doTaskWait, long: true},
		message.OpTaskResult: {call: doTaskResult},
		message.OpTaskCancel: {call: doTaskCancel},
		message.OpTasks:      {call: doTasks},
		message.OpTaskWatch:  {call: doTaskWatch},

		message.OpStream:     {call: doStream, long: true, files: true},
		message.OpStreamMore: {call: doStreamMore},

		message.OpServerInfo:  {call: doServerInfo},
		message.OpReturnSlabs: {call: doReturnSlabs},

		message.OpOffer:  {call: doOffer},
		message.OpAnswer: {call: doAnswer, long: true, files: true},
	}
}

func doPing(_ context.Context, r request) (reply, error) {
	var in message.Ping
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	return reply{body: message.Pong(in)}, nil
}

// doAcquire takes a lease and hands out the memory. Before the client knows of the version, it is on the list of those
// who are told when a newer one comes.
func doAcquire(_ context.Context, r request) (reply, error) {
	var in message.Acquire
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	ses := r.session
	// Who asks for a certain version may have to hear that it is not the newest.
	sub, err := ses.events.Add(r.id, &namesSource{server: ses.server, names: []string{in.Name}, current: in.Version != 0})
	if err != nil {
		return reply{}, err
	}
	lease, err := ses.server.catalog.Acquire(in.Name, in.Version, ses.holder())
	if err != nil {
		ses.events.Remove(r.id)
		return reply{}, ses.server.loads.absent(in.Name, status.Absent(err))
	}
	ses.holds(lease.ID, r.id)
	out := ses.server.exports.of(lease.StateDict())
	return reply{
		head: message.AppendAcquiredHead(nil, lease.ID, lease.Name, lease.Version), shared: out.Tail,
		files: out.Files, storages: out.Storages,
		after: func() { ses.events.Begin(sub) },
		undo: func() {
			if err := ses.server.catalog.Release(lease.ID, ses.id); err == nil {
				ses.events.Remove(ses.forgetLease(lease.ID))
			}
		},
	}, nil
}

func doRelease(_ context.Context, r request) (reply, error) {
	var in message.Release
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	ses := r.session
	var done message.Released
	var failure error
	for _, lease := range in.Leases {
		if err := ses.server.catalog.Release(lease, ses.id); err != nil {
			failure = err
			continue
		}
		ses.events.Remove(ses.forgetLease(lease))
		done.Count++
	}
	if failure != nil {
		return reply{}, failure
	}
	return reply{body: done}, nil
}

func doPublish(ctx context.Context, r request) (reply, error) {
	var in message.Publish
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	s := r.session.server
	if err := checkName(in.Name); err != nil {
		return reply{}, err
	}
	c, err := newCharge(r.session.id, &in, r.files)
	if err == nil {
		err = s.quotas.take(c, &s.opts.Limits)
	}
	if err != nil {
		return reply{}, err
	}
	sd, err := transfer.Importer{Devices: s.devices}.StateDict(&in.Manifest, in.Handles, r.files)
	if err != nil {
		s.quotas.giveBack(c)
		return reply{}, err
	}
	origin := catalog.Origin{Source: in.Source, Publisher: r.session.holder()}
	version, err := s.versions.publish(ctx, publication{name: in.Name, sd: sd, origin: origin, charge: &c, digests: in.Digests})
	if err != nil {
		return reply{}, status.Absent(err)
	}
	return reply{body: message.Published{Version: version}}, nil
}

func doWithdraw(_ context.Context, r request) (reply, error) {
	var in message.Withdraw
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	if err := r.session.server.withdraw(in.Name); err != nil {
		return reply{}, status.Absent(err)
	}
	return reply{body: message.Withdrawn{}}, nil
}

func doList(_ context.Context, r request) (reply, error) {
	var in message.List
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	return reply{body: listModels(r.session.server, in)}, nil
}

func doInfo(_ context.Context, r request) (reply, error) {
	var in message.Info
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	s := r.session.server
	info, err := s.catalog.Info(in.Name)
	if err != nil {
		return reply{}, s.loads.absent(in.Name, status.Absent(err))
	}
	model, loading := fitInfo(s, info), s.loads.get(in.Name)
	if !in.Manifest {
		return reply{body: message.InfoResult{Model: model, Loading: loading}}, nil
	}
	manifest, err := r.session.manifest(in.Name, in.Version)
	if err != nil {
		return reply{}, err
	}
	if loading != nil { // stands behind the manifest, which cannot be shared then
		return reply{body: struct {
			Model    message.ModelInfo  `cbor:"1,keyasint"`
			Manifest message.RawMessage `cbor:"2,keyasint"`
			Loading  *message.Loading   `cbor:"3,keyasint"`
		}{model, manifest, loading}}, nil
	}
	head, err := message.MarshalInfoHead(&model)
	return reply{head: head, shared: manifest}, err
}

// manifest is the encoded manifest of a version, which is held for a moment by the session itself.
func (ses *session) manifest(name string, version uint64) ([]byte, error) {
	models := ses.server.catalog
	lease, err := models.Acquire(name, version, ses.holder())
	if err != nil {
		return nil, status.Absent(err)
	}
	defer func() { _ = models.Release(lease.ID, ses.id) }()
	return ses.server.exports.of(lease.StateDict()).Manifest, nil
}

// maxWatchNames is how many names one watch may have.
const maxWatchNames = 1024

func doWatch(_ context.Context, r request) (reply, error) {
	var in message.Watch
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	if len(in.Names) > maxWatchNames {
		return reply{}, fmt.Errorf("%w: a watch has at most %d names, watch all instead", status.ErrLimit, maxWatchNames)
	}
	for _, name := range in.Names {
		if err := checkName(name); err != nil {
			return reply{}, err
		}
	}
	if len(in.Names) == 0 {
		in.Names = nil
	}
	sub, err := r.session.events.Add(r.id, &namesSource{server: r.session.server, names: in.Names, current: true})
	if err != nil {
		return reply{}, err
	}
	return reply{
		body: message.Watching{}, after: func() { r.session.events.Begin(sub) }, undo: func() { r.session.events.Remove(r.id) },
	}, nil
}

func doUnwatch(_ context.Context, r request) (reply, error) {
	var in message.Unwatch
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	if w := r.session.offered(); w != nil && w.Withdraw(in.Watch) {
		return reply{body: message.Unwatched{}}, nil
	}
	if !r.session.events.Remove(in.Watch) {
		return reply{}, fmt.Errorf("%w: no watch has the id %d", status.ErrNotFound, in.Watch)
	}
	return reply{body: message.Unwatched{}}, nil
}

// perform runs the operation for a request.
func (op *operation) perform(ctx context.Context, r request) (_ reply, err error) {
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
