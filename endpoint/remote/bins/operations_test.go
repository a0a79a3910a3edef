package bins_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
)

// These tests run the operations of bins and queues with faults. Afterwards an acknowledged item is stored once, a
// taken item is delivered or put back, and nothing is stored in part.

func TestOperationsKilled(t *testing.T)       { t.Parallel(); playAll(t, killed, operations(t)) }
func TestOperationsCancelled(t *testing.T)    { t.Parallel(); playAll(t, cancelled, operations(t)) }
func TestOperationsLoseRequests(t *testing.T) { t.Parallel(); playAll(t, lostRequest, operations(t)) }
func TestOperationsLoseAnswers(t *testing.T)  { t.Parallel(); playAll(t, lostAnswer, operations(t)) }

func operations(t *testing.T) []operation {
	return append(runOperations(t), []operation{
		{name: "append", prepare: opWrite((*bins.Store).Append, 10)},
		{name: "append-large", prepare: opWrite((*bins.Store).Append, 3000)},
		{name: "put-large", prepare: opWrite((*bins.Store).Put, 3000)},
		{name: "take", prepare: opTake(0)},
		{name: "take-some", prepare: opTake(2)},
		{name: "delete", prepare: opDelete},
		{name: "sweep", prepare: opSweep},
		{name: "push", prepare: opPush},
		{name: "pull", prepare: opPull},
		{name: "ack", prepare: opAck},
		{name: "purge", prepare: opPurge},
	}...)
}

// value returns a value of size bytes that begins with a name.
func value(name string, size int) bins.Value {
	return bins.Value{Body: append([]byte(name+"\n"), make([]byte, size)...)}
}

// store opens the namespace of a scene. Bodies over 1,000 bytes are objects.
func (s *scene) store(conn *nats.Conn) *bins.Store {
	s.Helper()
	store, err := bins.Open(s.ctx, conn, bins.Options{Namespace: "ns-" + s.name, Inline: 1000, MaxBytes: 1 << 20, Memory: true})
	require.NoError(s, err)
	return store
}

func (s *scene) queue(conn *nats.Conn) *bins.Queue {
	s.Helper()
	q, err := bins.OpenQueue(s.ctx, conn, bins.QueueOptions{
		Options: bins.Options{Namespace: "q-" + s.name, Inline: 1000, MaxBytes: 1 << 20, Memory: true}, Redeliver: 2 * time.Second, Deliveries: 100,
	})
	require.NoError(s, err)
	return q
}

// requireItems requires that the bin contains exactly these items, each complete.
func (s *scene) requireItems(store *bins.Store, names ...string) {
	s.Helper()
	items, err := store.Peek(s.ctx, "a")
	if len(names) == 0 {
		require.ErrorIs(s, err, bins.ErrNotFound)
		return
	}
	require.NoError(s, err)
	require.Equal(s, names, namesOf(items))
}

func namesOf(items []bins.Item) (names []string) {
	for _, item := range items {
		names = append(names, name(item.Body))
	}
	return names
}

// requireTidy finishes interrupted removals and requires that the object store contains exactly this number of bodies.
func (s *scene) requireTidy(store *bins.Store, bodies int) {
	s.Helper()
	require.NoError(s, store.Drain(s.ctx))
	for objectMessages(s.ctx, s.T, s.straight, "BINS_ns-"+s.name) != 2*bodies { // a description and a piece for each body
		_, err := store.Sweep(s.ctx, 0) // writes of a killed process may still arrive
		require.NoError(s, err)
	}
}

func opWrite(write func(*bins.Store, context.Context, string, bins.Value, ...bins.WriteOption) (uint64, error), size int) func(*scene) (func(context.Context) error, func(error)) {
	return func(s *scene) (func(context.Context) error, func(error)) {
		straight, store := s.store(s.straight), s.store(s.conn)
		v, id := value("1", size), bins.WithID(s.name)
		run := func(ctx context.Context) error {
			_, err := write(store, ctx, "a", v, id)
			return err
		}
		return run, func(err error) {
			s.requireOutcome(err)
			if err == nil {
				s.requireItems(straight, "1")
			}
			_, err = write(straight, s.ctx, "a", v, id) // as a writer does after an unknown outcome
			require.NoError(s, err)
			s.requireItems(straight, "1")
			if err := store.Drain(s.ctx); s.kind != killed {
				require.NoError(s, err)
			}
			require.NoError(s, straight.Drain(s.ctx))
			s.requireItems(straight, "1")
			bodies := 0
			if size > 1000 {
				bodies = 1
			}
			s.requireTidy(straight, bodies)
			s.requireItems(straight, "1")
		}
	}
}

func opTake(most int) func(*scene) (func(context.Context) error, func(error)) {
	return func(s *scene) (func(context.Context) error, func(error)) {
		straight, store := s.store(s.straight), s.store(s.conn)
		all := []string{"1", "2", "3"}
		for i, name := range all {
			_, err := straight.Append(s.ctx, "a", value(name, 10+3000*(i%2)))
			require.NoError(s, err)
		}
		taken := all
		if most > 0 {
			taken = all[:most]
		}
		var items []bins.Item
		run := func(ctx context.Context) (err error) {
			items, err = store.Take(ctx, "a", bins.TakeOptions{Max: most})
			return err
		}
		return run, func(err error) {
			s.requireOutcome(err)
			if err == nil {
				require.Equal(s, taken, namesOf(items))
			}
			rest, restErr := straight.Take(s.ctx, "a", bins.TakeOptions{})
			require.True(s, restErr == nil || errors.Is(restErr, bins.ErrNotFound), "%v", restErr)
			left := namesOf(rest)
			switch {
			case err == nil:
				require.Equal(s, all[len(taken):], append([]string{}, left...), "delivered once")
			case s.kind == cancelled:
				require.Equal(s, all, left, "put back: %v", err)
			default: // killed before or after its claim
				require.Contains(s, [][]string{all, append([]string(nil), all[len(taken):]...)}, left)
			}
			s.requireItems(straight)
			if s.kind != killed {
				require.NoError(s, store.Drain(s.ctx))
			}
			s.requireTidy(straight, 0)
		}
	}
}

func opDelete(s *scene) (func(context.Context) error, func(error)) {
	straight, store := s.store(s.straight), s.store(s.conn)
	for _, name := range []string{"1", "2"} {
		_, err := straight.Append(s.ctx, "a", value(name, 3000))
		require.NoError(s, err)
	}
	return func(ctx context.Context) error { return store.Delete(ctx, "a") }, func(err error) {
		s.requireOutcome(err)
		// One look, because the server may still process the last message of a killed process.
		items, left := straight.Peek(s.ctx, "a")
		switch {
		case err == nil || errors.Is(left, bins.ErrNotFound):
			require.ErrorIs(s, left, bins.ErrNotFound)
		default:
			require.NoError(s, left)
			require.Equal(s, []string{"1", "2"}, namesOf(items))
		}
		require.NoError(s, straight.Delete(s.ctx, "a"))
		if s.kind != killed {
			require.NoError(s, store.Drain(s.ctx))
		}
		s.requireTidy(straight, 0)
	}
}

func opSweep(s *scene) (func(context.Context) error, func(error)) {
	straight, store := s.store(s.straight), s.store(s.conn)
	for _, name := range []string{"1", "2"} {
		_, err := straight.Put(s.ctx, "a", value(name, 3000))
		require.NoError(s, err)
	}
	run := func(ctx context.Context) error {
		_, err := store.Sweep(ctx, 0)
		return err
	}
	return run, func(err error) {
		s.requireOutcome(err)
		s.requireItems(straight, "2")
		s.requireTidy(straight, 1)
		s.requireItems(straight, "2")
	}
}

// requirePulled pulls and acknowledges all items and requires that exactly these are delivered, once each.
func (s *scene) requirePulled(q *bins.Queue, names ...string) {
	s.Helper()
	want := map[string]int{}
	for _, name := range names {
		want[name] = 1
	}
	require.Equal(s, want, s.pullAll(q))
}

// pullAll pulls and acknowledges all items and counts their deliveries.
func (s *scene) pullAll(q *bins.Queue) map[string]int {
	s.Helper()
	seen := map[string]int{}
	for {
		n, err := q.Len(s.ctx)
		require.NoError(s, err)
		if n == 0 {
			break
		}
		short, cancel := context.WithTimeout(s.ctx, 5*time.Second)
		deliveries, err := q.Pull(short, 10)
		cancel()
		require.True(s, err == nil || errors.Is(err, context.DeadlineExceeded), "%v", err)
		for _, d := range deliveries {
			require.NoError(s, d.Ack(s.ctx))
			seen[name(d.Body)]++
		}
	}
	return seen
}

// requireQueueTidy requires that a queue without items has no bodies and records.
func (s *scene) requireQueueTidy(q *bins.Queue) {
	s.Helper()
	require.NoError(s, q.Drain(s.ctx))
	for objectMessages(s.ctx, s.T, s.straight, "QUEUE_q-"+s.name) != 0 {
		_, err := q.Sweep(s.ctx, 0)
		require.NoError(s, err)
	}
}

func opPush(s *scene) (func(context.Context) error, func(error)) {
	straight, q := s.queue(s.straight), s.queue(s.conn)
	v, id := value("1", 3000), bins.WithID(s.name)
	run := func(ctx context.Context) error {
		_, err := q.Push(ctx, "t", v, id)
		return err
	}
	return run, func(err error) {
		s.requireOutcome(err)
		if n, lenErr := straight.Len(s.ctx); err == nil {
			require.NoError(s, lenErr)
			require.Equal(s, 1, n)
		}
		_, err = straight.Push(s.ctx, "t", v, id)
		require.NoError(s, err)
		require.NoError(s, straight.Drain(s.ctx))
		s.requirePulled(straight, "1")
		s.requireQueueTidy(straight)
	}
}

func opPull(s *scene) (func(context.Context) error, func(error)) {
	straight, q := s.queue(s.straight), s.queue(s.conn)
	all := []string{"1", "2", "3"}
	for i, name := range all {
		_, err := straight.Push(s.ctx, "t", value(name, 10+3000*(i%2)))
		require.NoError(s, err)
	}
	var deliveries []*bins.Delivery
	run := func(ctx context.Context) (err error) {
		deliveries, err = q.Pull(ctx, 10)
		return err
	}
	return run, func(err error) {
		s.proxy.disarm()
		s.requireOutcome(err)
		got := map[string]bool{}
		for _, d := range deliveries {
			if s.kind == killed && s.hit {
				break
			}
			require.NoError(s, d.Ack(s.ctx))
			got[name(d.Body)] = true
		}
		var left []string
		for _, name := range all {
			if !got[name] {
				left = append(left, name)
			}
		}
		s.requirePulled(straight, left...)
		if s.kind != killed {
			require.NoError(s, q.Drain(s.ctx))
		}
		s.requireQueueTidy(straight)
	}
}

func opAck(s *scene) (func(context.Context) error, func(error)) {
	straight, q := s.queue(s.straight), s.queue(s.conn)
	_, err := straight.Push(s.ctx, "t", value("1", 3000))
	require.NoError(s, err)
	deliveries, err := q.Pull(s.ctx, 1)
	require.NoError(s, err)
	return deliveries[0].Ack, func(err error) {
		s.requireOutcome(err)
		n, lenErr := straight.Len(s.ctx)
		require.NoError(s, lenErr)
		if err == nil {
			require.Zero(s, n)
		}
		seen := s.pullAll(straight) // the acknowledgement of a killed process may still arrive
		require.LessOrEqual(s, seen["1"], n)
		if s.kind != killed {
			require.NoError(s, q.Drain(s.ctx))
		}
		s.requireQueueTidy(straight)
	}
}

func opPurge(s *scene) (func(context.Context) error, func(error)) {
	straight, q := s.queue(s.straight), s.queue(s.conn)
	for _, topic := range []string{"old.a", "old.b", "new.a"} {
		_, err := straight.Push(s.ctx, topic, value(topic, 3000))
		require.NoError(s, err)
	}
	return func(ctx context.Context) error { return q.Purge(ctx, "old.>") }, func(err error) {
		s.requireOutcome(err)
		n, lenErr := straight.Len(s.ctx)
		require.NoError(s, lenErr)
		if err == nil {
			require.Equal(s, 1, n)
		}
		require.NoError(s, straight.Purge(s.ctx, "old.>"))
		s.requirePulled(straight, "new.a")
		if s.kind != killed {
			require.NoError(s, q.Drain(s.ctx))
		}
		s.requireQueueTidy(straight)
	}
}
