package endpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// outcome is the result of a task. It has a reference to the result, until the task gives it up: because it is dropped, because the managed
// object that the result is is gone, or because the one call that wanted it has got it.
type outcome struct {
	definition *definition
	task       string // its id
	cached     bool
	passing    bool    // the one call that wants it discards it when it has it
	object     *object // that the result is, if that is known; guarded by objects.mu

	mu   sync.Mutex
	kept grip // nothing when it was given up
}

// fetch returns another reference to the result.
func (o *outcome) fetch() (grip, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kept.result == nil {
		return grip{}, task.ErrDiscarded
	}
	return o.kept.again(), nil
}

// keeps reports whether the outcome has its reference.
func (o *outcome) keeps() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept.result != nil
}

// bytes is what the result costs the tasks that are kept.
func (o *outcome) bytes() int64 {
	if o.passing {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept.payload.Bytes()
}

// drop gives the reference up.
func (o *outcome) drop(all *objects) {
	o.mu.Lock()
	kept := o.kept
	o.kept = grip{}
	o.mu.Unlock()
	all.dropOutcome(o)
	kept.release()
}

// handover carries the result of a task to the call that waits for it, whatever becomes of the task meanwhile: a manager that is full
// drops what has finished.
type handover struct {
	mu   sync.Mutex
	left bool // nobody waits any more
	made *outcome
	kept grip
}

// put hands an outcome over; the handover gets a reference of its own.
func (h *handover) put(o *outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.left {
		h.made, h.kept = o, o.kept.again()
	}
}

// take returns the outcome and a reference to its result, nothing if none came, and ends the handover. The caller releases the
// result.
func (h *handover) take() (*outcome, grip) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left = true
	return h.made, h.kept
}

// submit starts a call as a task of the session, whose result goes to then if that is not nil. It takes the arguments.
func (r request) submit(ctx context.Context, d *definition, a *arguments, then func(*outcome)) (*task.Task[*outcome], error) {
	s := r.session.server
	spec := task.Spec{Name: d.name, Owner: r.session.id}
	if !r.session.own {
		spec.Limit = s.opts.Limits.Tasks
	}
	t, err := s.tasks.Submit(ctx, spec, func(ctx context.Context) (*outcome, error) {
		res, cached, err := s.obtain(ctx, d, a)
		if err != nil {
			return nil, err
		}
		id, _ := task.ID(ctx)
		o := &outcome{definition: d, task: id, cached: cached, passing: then != nil && !d.options.managed, kept: res}
		if then != nil {
			then(o)
		}
		return o, nil
	})
	if err != nil {
		a.drop()
		if errors.Is(err, task.ErrShutdown) { // to whoever asks it is an owner that is going
			err = status.WithClass(status.ErrUnavailable, err)
		}
		return nil, err
	}
	go func() {
		<-t.Done()
		a.drop()                           // cancelled before it ran
		if then == nil && t.Err() != nil { // else the call that waits for it fails
			d.failures.Add(1)
		}
	}()
	return t, nil
}

// callTask runs a call of a task endpoint: it waits for the task, and cancels it if the caller does not wait any more. What the caller has got
// no task keeps: nobody else knows of it.
func (r request) callTask(ctx context.Context, d *definition, a *arguments) (reply, error) {
	var h handover
	t, err := r.submit(ctx, d, a, h.put)
	if err != nil {
		return reply{}, err
	}
	err = t.Wait(ctx)
	made, res := h.take()
	if err != nil {
		if ctx.Err() != nil && !t.Cancel(context.Cause(ctx)) {
			t.Discard() // it has ended meanwhile
		}
		if made != nil {
			res.release()
		}
		return reply{}, err
	}
	out, err := r.deliver(d, res, made.cached, made)
	if out.returned.Object == nil { // an object gives up what tasks keep of it when it goes
		t.Discard()
	}
	return out, err
}

// taskResult is the reply that carries a task's result: each fetch has a reference of its own.
func (r request) taskResult(t *task.Task[*outcome]) (reply, error) {
	o, err := t.Result()
	var res grip
	if err == nil {
		res, err = o.fetch()
	}
	if errors.Is(err, task.ErrDiscarded) {
		if _, gone := r.session.server.tasks.Get(t.ID()); gone != nil { // its time ran out since it was looked for
			return reply{}, gone
		}
		return reply{}, &status.StaleError{
			ObjectID: t.Status().Note, ServerID: r.session.server.id, Reason: status.StaleObjectMissing,
			Detail: "it was the result of task " + t.ID(),
		}
	}
	if err != nil {
		return reply{}, err
	}
	return r.deliver(o.definition, res, o.cached, o)
}

// noteObject keeps with a task which object its result is.
func (s *Server) noteObject(of *outcome, obj *object) {
	if of == nil {
		return
	}
	if t, err := s.tasks.Get(of.task); err == nil {
		t.SetNote(obj.id)
	}
}

func doSubmit(ctx context.Context, r request) (reply, error) {
	return r.counted(ctx, request.submitEndpoint)
}

// submitEndpoint starts a call as a task.
func (r request) submitEndpoint(ctx context.Context, d *definition, a *arguments) (reply, error) {
	if d.stream != nil {
		a.drop()
		return reply{}, fmt.Errorf("%w: endpoint %q streams its results and cannot be a task", status.ErrInvalid, d.name)
	}
	t, err := r.submit(ctx, d, a, nil)
	if err != nil {
		return reply{}, err
	}
	return reply{body: encodeTask(t.Status()), undo: func() {
		if !t.Cancel(errUnheard) {
			t.Discard() // it has ended already
		}
	}}, nil
}

// errUnheard is why a task is cancelled whose submitter did not wait for the answer: nobody knows its id.
var errUnheard = fmt.Errorf("its submitter did not wait to hear of it: %w", context.Canceled)

// task finds the task that a request is about.
func (r request) task() (*task.Task[*outcome], uint64, error) {
	var in message.Task
	if err := r.decode(&in); err != nil {
		return nil, 0, err
	}
	t, err := r.session.server.tasks.Get(in.ID)
	return t, in.After, err
}

func doTask(_ context.Context, r request) (reply, error) {
	t, _, err := r.task()
	if err != nil {
		return reply{}, err
	}
	return reply{body: encodeTask(t.Status())}, nil
}

// doTaskWait answers when the task has ended, or has changed since the client looked last.
func doTaskWait(ctx context.Context, r request) (reply, error) {
	t, after, err := r.task()
	if err != nil {
		return reply{}, err
	}
	if after > 0 {
		status, err := t.Watch(ctx, after)
		if err != nil {
			return reply{}, err
		}
		return reply{body: encodeTask(status)}, nil
	}
	err = t.Wait(ctx)
	select {
	case <-t.Done(): // however it ended
		return reply{body: encodeTask(t.Status())}, nil
	default:
		return reply{}, err
	}
}

func doTaskResult(_ context.Context, r request) (reply, error) {
	t, _, err := r.task()
	if err != nil {
		return reply{}, err
	}
	return r.taskResult(t)
}

func doTaskCancel(_ context.Context, r request) (reply, error) {
	t, _, err := r.task()
	if err != nil {
		return reply{}, err
	}
	return reply{body: message.TaskCancelled{Cancelled: t.Cancel(nil)}}, nil
}

func doTasks(_ context.Context, r request) (reply, error) {
	var in message.Tasks
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	filter := task.Filter{Name: in.Endpoint}
	for _, name := range in.States {
		state, err := task.ParseState(name)
		if err != nil {
			return reply{}, fmt.Errorf("%w: %w", status.ErrInvalid, err)
		}
		filter.States = append(filter.States, state)
	}
	if in.Mine {
		filter.Owner = r.session.id
	}
	var out message.TasksListed
	for _, status := range r.session.server.tasks.List(filter) {
		info := encodeTask(status)
		if info.Error != nil {
			info.Error = brief(info.Error)
		}
		out.Tasks = append(out.Tasks, info)
	}
	return reply{body: out}, nil
}

// listedError is how many bytes the error of a task has in a list, and its cause: one that says a lot must not keep the others from being
// listed.
const listedError = 512

// brief is an error as it stands in a list of tasks.
func brief(e *message.Error) *message.Error {
	if len(e.Message)+len(e.Data) <= 2*listedError {
		return e
	}
	details := e.Details()
	if c := details.Cause; c != nil {
		details.Cause = &message.Error{Code: c.Code, Type: c.Type, Message: message.CutText(c.Message, listedError)}
	}
	details.Detail = message.CutText(details.Detail, listedError)
	out := &message.Error{Code: e.Code, Type: e.Type, Message: message.CutText(e.Message, listedError)}
	if data, err := message.Marshal(details); err == nil && len(data) <= 4*listedError {
		out.Data = data
	}
	return out
}

// encodeTask is a task as it crosses.
func encodeTask(s task.Status) message.TaskInfo {
	out := message.TaskInfo{
		ID: s.ID, Endpoint: s.Name, State: s.State.String(), Seq: s.Seq, Session: s.Owner,
		CreatedAt: nanos(s.CreatedAt), StartedAt: nanos(s.StartedAt), FinishedAt: nanos(s.FinishedAt),
		Done: s.Progress.Done, Total: s.Progress.Total, Message: s.Progress.Message, Object: s.Note,
	}
	if s.Err != nil {
		out.Error = tellable(s.Err)
	}
	return out
}

// nanos is a time as it crosses; the zero time is 0.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
