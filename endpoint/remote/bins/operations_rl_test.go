package bins_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rl"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestRunOperationsLoseRequests(t *testing.T) {
	t.Parallel()
	playAll(t, lostRequest, runOperations(t))
}
func TestRunOperationsLoseAnswers(t *testing.T) {
	t.Parallel()
	playAll(t, lostAnswer, runOperations(t))
}

// runOperations returns the operations of a training run.
func runOperations(t *testing.T) []operation {
	dev, err := host.Open()
	require.NoError(t, err)
	t.Cleanup(func() { _ = dev.Close() })
	d := runDevice{dev}
	return []operation{
		{name: "publish", prepare: d.publish},
		{name: "add", prepare: d.add},
		{name: "latest", prepare: d.latest},
		{name: "join", prepare: d.join},
	}
}

// runDevice holds the parameters of the runs.
type runDevice struct{ dev *host.Device }

func (d runDevice) options(s *scene, name string, conn *nats.Conn) rl.Options {
	return rl.Options{Run: s.name, Name: name, Conn: conn, Device: d.dev, Memory: true, Queue: 1 << 20, Presence: 3 * time.Second}
}

func (d runDevice) trainer(s *scene, conn *nats.Conn) *rl.Trainer {
	return d.newTrainer(s, d.options(s, "trainer", conn))
}

func (d runDevice) newTrainer(s *scene, opts rl.Options) *rl.Trainer {
	trainer, err := rl.NewTrainer(s.ctx, opts)
	require.NoError(s, err)
	return trainer
}

func (d runDevice) worker(s *scene, conn *nats.Conn) *rl.Worker {
	worker, err := rl.NewWorker(s.ctx, d.options(s, "worker", conn))
	require.NoError(s, err)
	return worker
}

// weights returns parameters whose elements are all value.
func (d runDevice) weights(s *scene, value float32) *module.StateDict {
	w, err := tensor.FromSlice(d.dev, tensor.Shape{2}, []float32{value, value})
	require.NoError(s, err)
	sd := module.NewStateDict()
	require.NoError(s, sd.Set("w", w))
	return sd
}

// requireLatest requires that the newest parameters are readable and have the value of their version.
func (d runDevice) requireLatest(s *scene, w *rl.Worker, version int64) {
	s.Helper()
	p, err := w.Await(s.ctx, version-1)
	require.NoError(s, err)
	defer p.Close()
	require.Equal(s, version, p.Version())
	w0, _ := p.StateDict().Get("w")
	value, err := tensor.At[float32](w0, 1)
	require.NoError(s, err)
	require.Equal(s, float32(version), value)
}

// publish tests Publish: successfully published parameters are the newest. After a fault, the same trainer or a
// successor with the same name can publish again.
func (d runDevice) publish(s *scene) (func(context.Context) error, func(error)) {
	trainer := d.trainer(s, s.conn)
	first := d.weights(s, 0)
	defer first.Close()
	_, err := trainer.Publish(s.ctx, first)
	require.NoError(s, err)
	second := d.weights(s, 1)
	run := func(ctx context.Context) error {
		_, err := trainer.Publish(ctx, second)
		return err
	}
	return run, func(err error) {
		defer second.Close()
		s.proxy.disarm()
		s.requireOutcome(err)
		w := d.worker(s, s.straight)
		defer w.Close()
		if err == nil {
			d.requireLatest(s, w, 1)
		}
		if s.kind == killed && s.hit {
			trainer = d.trainer(s, s.straight)
			defer trainer.Close()
		}
		next := trainer.Version() + 1
		for next < 3 {
			sd := d.weights(s, float32(next))
			version, err := trainer.Publish(s.ctx, sd)
			require.NoError(s, err, "not superseded by itself")
			if version != next { // the version with the unknown outcome was published, so the numbers differ by one
				next = version
			} else {
				d.requireLatest(s, w, version)
			}
			require.NoError(s, sd.Close())
			next++
		}
		if s.kind != killed || !s.hit {
			require.NoError(s, trainer.Close())
		}
	}
}

// add tests Add: data is delivered once.
func (d runDevice) add(s *scene) (func(context.Context) error, func(error)) {
	trainer, worker := d.trainer(s, s.straight), d.worker(s, s.conn)
	run := func(ctx context.Context) error { return worker.Add(ctx, value("1", 300<<10)) }
	return run, func(err error) {
		defer trainer.Close()
		s.proxy.disarm()
		s.requireOutcome(err)
		n, lenErr := trainer.Waiting(s.ctx)
		require.NoError(s, lenErr)
		if err == nil {
			require.Equal(s, 1, n)
		}
		for n > 0 {
			samples, err := trainer.Pull(s.ctx, 10)
			require.NoError(s, err)
			require.Len(s, samples, 1)
			require.Equal(s, "1", name(samples[0].Body))
			require.NoError(s, samples[0].Ack(s.ctx))
			n, err = trainer.Waiting(s.ctx)
			require.NoError(s, err)
			require.Zero(s, n)
		}
		if s.kind != killed || !s.hit {
			require.NoError(s, worker.Close())
		}
	}
}

// latest tests Latest: a worker that could not read the parameters can read them later.
func (d runDevice) latest(s *scene) (func(context.Context) error, func(error)) {
	trainer := d.trainer(s, s.straight)
	sd := d.weights(s, 0)
	defer sd.Close()
	_, err := trainer.Publish(s.ctx, sd)
	require.NoError(s, err)
	worker := d.worker(s, s.conn)
	run := func(ctx context.Context) error {
		p, err := worker.Latest(ctx)
		if err == nil {
			err = p.Close()
		}
		return err
	}
	return run, func(err error) {
		defer trainer.Close()
		s.proxy.disarm()
		s.requireOutcome(err)
		if s.kind == killed && s.hit {
			worker = d.worker(s, s.straight)
		}
		d.requireLatest(s, worker, 0)
		require.NoError(s, worker.Close())
	}
}

// join tests joining a run: a member that joined is listed, a killed member soon disappears, and its name can be
// reused.
func (d runDevice) join(s *scene) (func(context.Context) error, func(error)) {
	trainer := d.trainer(s, s.straight)
	var worker *rl.Worker
	run := func(ctx context.Context) (err error) {
		worker, err = rl.NewWorker(ctx, d.options(s, "worker", s.conn))
		return err
	}
	listed := func() bool {
		members, err := trainer.Members(s.ctx)
		require.NoError(s, err)
		return slices.ContainsFunc(members, func(m rl.Member) bool { return m.Name == "worker" })
	}
	return run, func(err error) {
		defer trainer.Close()
		s.proxy.disarm()
		s.requireOutcome(err)
		if err == nil && (s.kind != killed || !s.hit) {
			require.True(s, listed())
			require.NoError(s, worker.Close())
			require.False(s, listed())
		}
		require.Eventually(s, func() bool { return !listed() }, 30*time.Second, 100*time.Millisecond)
		again := d.worker(s, s.straight)
		require.True(s, listed())
		require.NoError(s, again.Close())
	}
}

// name returns the first line of a body.
func name(body []byte) string {
	for i, b := range body {
		if b == '\n' {
			return string(body[:i])
		}
	}
	return ""
}
