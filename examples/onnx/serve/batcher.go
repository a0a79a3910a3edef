//go:build linux

package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/onnx/ort"
)

// errBusy means that the worker has Limits.Queue requests.
var errBusy = errors.New("the queue is full")

// Limits bounds what clients can make a worker hold. Zero fields have defaults.
type Limits struct {
	// Body is the maximum size of a request in bytes. The default is 16 MiB.
	Body int64
	// Queue is the number of requests in a worker, including those whose body arrives. The default is 64.
	Queue int
	// Rows is the maximum number of rows of one run. The default is 8.
	Rows int64
	// Wait is how long a request waits for others to join its run. The default is 2 ms.
	Wait time.Duration
	// Timeout is the maximum time of a request. The default is 30 s.
	Timeout time.Duration
}

func (l Limits) withDefaults() Limits {
	if l.Body <= 0 {
		l.Body = 16 << 20
	}
	if l.Queue <= 0 {
		l.Queue = 64
	}
	if l.Rows <= 0 {
		l.Rows = 8
	}
	if l.Wait <= 0 {
		l.Wait = 2 * time.Millisecond
	}
	if l.Timeout <= 0 {
		l.Timeout = 30 * time.Second
	}
	return l
}

// job is one request in the queue.
type job struct {
	ctx    context.Context
	inputs map[string]ort.Tensor
	rows   int64
	key    string
	done   chan result // has room for one result
}

// result is the answer to a job.
type result struct {
	outputs map[string]ort.Tensor
	version uint64
	batch   int // number of requests of the run
	err     error
}

// batcher combines requests. One goroutine runs the model; more processor time is used by more processes.
type batcher struct {
	models source
	batch  Batch
	limits Limits
	queue  chan *job
}

func newBatcher(models source, batch Batch, limits Limits) *batcher {
	return &batcher{models: models, batch: batch, limits: limits, queue: make(chan *job, limits.Queue)}
}

// infer returns the outputs for the inputs, which it borrows until it returns and the job's run has ended.
func (b *batcher) infer(ctx context.Context, inputs map[string]ort.Tensor) result {
	rows, key, err := b.batch.rows(inputs)
	if err != nil {
		return result{err: err}
	}
	if rows > b.limits.Rows {
		return result{err: fmt.Errorf("%w: %d rows, the limit is %d", errInput, rows, b.limits.Rows)}
	}
	j := &job{ctx: ctx, inputs: inputs, rows: rows, key: key, done: make(chan result, 1)}
	select {
	case b.queue <- j: // waits if requests whose clients have left fill the queue
	case <-ctx.Done():
		return result{err: context.Cause(ctx)}
	}
	select {
	case r := <-j.done:
		return r
	case <-ctx.Done():
		return result{err: context.Cause(ctx)}
	}
}

// run executes jobs until ctx ends.
func (b *batcher) run(ctx context.Context) {
	var next *job // the first job of the next run
	for {
		if next == nil {
			select {
			case next = <-b.queue:
			case <-ctx.Done():
				return
			}
		}
		var jobs []*job
		jobs, next = b.collect(next)
		b.execute(jobs)
	}
}

// collect returns jobs for one run. next is a job that does not fit, or nil.
func (b *batcher) collect(first *job) (jobs []*job, next *job) {
	jobs = []*job{first}
	if len(b.batch) == 0 {
		return jobs, nil
	}
	rows := first.rows
	timer := time.NewTimer(b.limits.Wait)
	defer timer.Stop()
	for rows < b.limits.Rows {
		select {
		case j := <-b.queue:
			if j.key != first.key || rows+j.rows > b.limits.Rows {
				return jobs, j
			}
			jobs = append(jobs, j)
			rows += j.rows
		case <-timer.C:
			return jobs, nil
		}
	}
	return jobs, nil
}

// execute runs jobs together. If that fails, it runs each one alone, so that a bad request fails no other.
func (b *batcher) execute(jobs []*job) {
	var live []*job
	for _, j := range jobs {
		if j.ctx.Err() == nil {
			live = append(live, j)
		}
	}
	if len(live) == 0 {
		return
	}
	err := b.models.use(func(m *Model) error { return b.executeOn(m, live) })
	if err == nil {
		return
	}
	if len(live) > 1 {
		for _, j := range live {
			b.execute([]*job{j})
		}
		return
	}
	live[0].done <- result{err: err}
}

// executeOn runs jobs on one model and answers them, unless it returns an error.
func (b *batcher) executeOn(m *Model, jobs []*job) error {
	inputs := make([]map[string]ort.Tensor, len(jobs))
	rows := make([]int64, len(jobs))
	for i, j := range jobs {
		inputs[i], rows[i] = j.inputs, j.rows
	}
	outputs, err := m.Run(b.batch.join(inputs))
	if err != nil {
		return fmt.Errorf("%w: %w", errInput, err)
	}
	parts, err := b.batch.split(outputs, rows)
	if err != nil {
		return err
	}
	for i, j := range jobs {
		j.done <- result{outputs: parts[i], version: m.Version, batch: len(jobs)}
	}
	return nil
}
