package bins_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rl"
)

// faultTable is testdata/faults.json, which the tests of the Python clients read too.
type faultTable struct {
	Window     int        `json:"window_seconds"`
	Operations []faultRow `json:"operations"`
	Samples    []struct {
		Name    string            `json:"name"`
		Headers map[string]string `json:"headers"`
		Body    string            `json:"body"`
		Decoded bool              `json:"decoded"` // only clients that decode values find the damage
	} `json:"samples"`
}

type faultRow struct {
	Operation string   `json:"operation"`
	Fault     string   `json:"fault"`
	Outcome   []string `json:"outcome"`
	Items     int      `json:"items"`
	Delivered int      `json:"delivered"`
}

func readFaultTable(t *testing.T) (table faultTable) {
	t.Helper()
	text, err := os.ReadFile("testdata/faults.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &table))
	require.NotEmpty(t, table.Operations)
	return table
}

// faultScene is a server, a client over a proxy, and a client without faults.
type faultScene struct {
	*testing.T
	ctx              context.Context
	dir, address     string
	server           *child
	proxy            *faultProxy
	straight, faulty *nats.Conn
	window           time.Duration
	delivered        []string
}

func newFaultScene(t *testing.T, window time.Duration) *faultScene {
	t.Helper()
	s := &faultScene{T: t, ctx: longContext(t), dir: t.TempDir(), address: remotetest.FreeAddress(t), window: window}
	s.server = startServer(t, s.dir, s.address)
	var err error
	s.straight, err = natslink.Connect("nats://" + s.address)
	require.NoError(t, err)
	t.Cleanup(s.straight.Close)
	s.proxy = startFaultProxy(t, s.address)
	s.faulty, err = natslink.Connect(s.proxy.address)
	require.NoError(t, err)
	t.Cleanup(s.faulty.Close)
	return s
}

// inject makes a fault occur at the next message on subjects with a prefix.
func (s *faultScene) inject(kind, prefix string) {
	if kind == "none" {
		return
	}
	p := s.proxy
	var once sync.Once
	later := func(d time.Duration, f func()) {
		done := make(chan struct{})
		s.Cleanup(func() { <-done })
		time.AfterFunc(d, func() { defer close(done); f() })
	}
	cut := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, conn := range p.conns {
			_ = conn.Close()
		}
		p.conns, p.mute = nil, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trap = func(subject, answer string) {
		if !strings.HasPrefix(subject, prefix) {
			return
		}
		once.Do(func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			switch kind {
			case "answer-lost":
				p.deaf = answer
			case "answers-lost":
				p.mute = true
				later(s.window*3/2, func() { p.silence(false) })
			case "cut":
				p.mute = true
				later(100*time.Millisecond, cut)
			case "restart":
				p.mute = true
				later(100*time.Millisecond, func() {
					s.server.kill()
					s.server = startServer(s.T, s.dir, s.address)
					cut()
				})
			}
		})
	}
}

// faultOperations prepare operations and return the subject of their message, the operation, and the number of items
// afterwards.
var faultOperations = map[string]func(s *faultScene) (prefix string, run func() error, items func() int){
	"append": func(s *faultScene) (string, func() error, func() int) {
		return s.write(func(store *bins.Store) error { _, err := store.Append(s.ctx, "a", text("1")); return err })
	},
	"put-if-last": func(s *faultScene) (string, func() error, func() int) {
		return s.write(func(store *bins.Store) error { _, err := store.Put(s.ctx, "a", text("1"), bins.IfLast(0)); return err })
	},
	"take": func(s *faultScene) (string, func() error, func() int) {
		_, _, items := s.write(nil)
		s.fill("1", "2")
		return "bin-take.", func() error { return s.take(open(s.T, s.faulty, bins.Options{}), 0) }, items
	},
	"take-meanwhile": func(s *faultScene) (string, func() error, func() int) {
		_, _, items := s.write(nil)
		s.fill("1", "2", "3", "4", "5", "6")
		return "", func() error {
			var takers sync.WaitGroup
			errs := make([]error, 4)
			for i := range errs {
				store := open(s.T, s.straight, bins.Options{Inline: 1000})
				takers.Go(func() {
					for errs[i] == nil {
						errs[i] = s.take(store, 1)
					}
				})
			}
			takers.Wait()
			for _, err := range errs {
				if !errors.Is(err, bins.ErrNotFound) {
					return err
				}
			}
			return nil
		}, items
	},
	"take-slowly": func(s *faultScene) (string, func() error, func() int) {
		_, _, items := s.write(nil)
		s.fill("1")
		slow, quick := open(s.T, s.faulty, bins.Options{}), open(s.T, s.straight, bins.Options{})
		bins.SetClaimWindow(slow, 0)
		reads := 0
		s.proxy.trap = func(subject, _ string) {
			if !strings.HasPrefix(subject, "$JS.API.DIRECT.GET.BINS_test") {
				return
			}
			if reads++; reads == 2 { // it has read the items and loaded their bodies
				s.must(s.take(quick, 0))
				s.must(quick.Drain(s.ctx))                                                               // a claim expires only after its items are removed
				s.must(bins.StreamOf(quick).Purge(s.ctx, jetstream.WithPurgeSubject("bin-take.test.a"))) // as after five minutes
			}
		}
		return "", func() error {
			if err := s.take(slow, 0); !errors.Is(err, bins.ErrNotFound) {
				return errors.Join(errors.New("it took the items of another"), err)
			}
			return nil
		}, items
	},
	"add": func(s *faultScene) (string, func() error, func() int) {
		device := remotetest.OpenHost(s.T)
		trainer, err := rl.NewTrainer(s.ctx, rl.Options{Conn: s.straight, Device: device, Run: "r", Name: "trainer"})
		s.must(err)
		s.Cleanup(func() { _ = trainer.Close() })
		shorten(s.ctx, s.T, s.straight, "QUEUE_rl_r", s.window)
		worker, err := rl.NewWorker(s.ctx, rl.Options{Conn: s.faulty, Device: device, Run: "r", Name: "worker"})
		s.must(err)
		s.Cleanup(func() { _ = worker.Close() })
		return "queue.", func() error { return worker.Add(s.ctx, text("1")) }, func() int {
			n, err := trainer.Waiting(s.ctx)
			s.must(err)
			return n
		}
	},
}

func (s *faultScene) must(err error) { s.Helper(); require.NoError(s.T, err) }

// write prepares a bin with a short duplicate window.
func (s *faultScene) write(run func(*bins.Store) error) (string, func() error, func() int) {
	open(s.T, s.straight, bins.Options{})
	shorten(s.ctx, s.T, s.straight, "BINS_test", s.window)
	through := open(s.T, s.faulty, bins.Options{})
	return "bin.", func() error { return run(through) }, func() int {
		n, err := open(s.T, s.straight, bins.Options{}).Count(s.ctx, "a")
		s.must(err)
		return n
	}
}

// fill appends items with large bodies.
func (s *faultScene) fill(names ...string) {
	store := open(s.T, s.straight, bins.Options{Inline: 1000})
	for _, name := range names {
		_, err := store.Append(s.ctx, "a", value(name, 5000))
		s.must(err)
	}
}

var taking sync.Mutex // guards faultScene.delivered

func (s *faultScene) take(store *bins.Store, most int) error {
	items, err := store.Take(s.ctx, "a", bins.TakeOptions{Max: most})
	taking.Lock()
	defer taking.Unlock()
	s.delivered = append(s.delivered, namesOf(items)...)
	return err
}

// The clients of bins and runs survive each fault of the table.
func TestFaultTable(t *testing.T) {
	t.Parallel()
	table := readFaultTable(t)
	for i, row := range table.Operations {
		t.Run(row.Operation+"/"+row.Fault, func(t *testing.T) {
			t.Parallel()
			prepare := faultOperations[row.Operation]
			require.NotNil(t, prepare, "row %d", i)
			window := time.Minute
			if row.Fault == "answers-lost" {
				window = time.Duration(table.Window) * time.Second
			}
			s := newFaultScene(t, window)
			prefix, run, items := prepare(s)
			s.inject(row.Fault, prefix)
			err := run()
			outcome := "ok"
			if errors.Is(err, bins.ErrOutcomeUnknown) {
				outcome = "unknown"
			} else {
				require.NoError(t, err)
			}
			require.Contains(t, row.Outcome, outcome)
			require.Equal(t, row.Items, items())
			require.Len(t, s.delivered, row.Delivered)
			slices.Sort(s.delivered)
			require.Len(t, slices.Compact(s.delivered), row.Delivered, "an item was delivered twice")
		})
	}
}

// Samples that cannot be read do not stop a trainer: the samples around them are delivered once.
func TestFaultTableSamples(t *testing.T) {
	t.Parallel()
	table := readFaultTable(t)
	s := newFaultScene(t, time.Minute)
	device := remotetest.OpenHost(t)
	trainer, err := rl.NewTrainer(s.ctx, rl.Options{Conn: s.straight, Device: device, Run: "r", Name: "trainer", Staleness: -1})
	require.NoError(t, err)
	defer trainer.Close()
	worker, err := rl.NewWorker(s.ctx, rl.Options{Conn: s.straight, Device: device, Run: "r", Name: "worker"})
	require.NoError(t, err)
	defer worker.Close()
	js, err := jetstream.New(s.straight)
	require.NoError(t, err)
	var want []string
	add := func(body string) {
		require.NoError(t, worker.Add(s.ctx, text(body)))
		want = append(want, body)
	}
	add("first")
	for _, sample := range table.Samples {
		msg := nats.NewMsg("queue.rl_r.v-1.worker")
		msg.Header.Set("Bin-Op", "append")
		msg.Header.Set("Bin-Size", strconv.Itoa(len(sample.Body)))
		for name, value := range sample.Headers {
			msg.Header.Del(name)
			if value != "" {
				msg.Header.Set(name, value)
			}
		}
		msg.Data = []byte(sample.Body)
		_, err := js.PublishMsg(s.ctx, msg)
		require.NoError(t, err)
		if sample.Decoded {
			want = append(want, sample.Body)
		}
	}
	add("last")
	var got []string
	for len(got) < len(want) {
		samples, err := trainer.Pull(s.ctx, 16)
		require.NoError(t, err)
		for _, sample := range samples {
			got = append(got, string(sample.Body))
			require.NoError(t, sample.Ack(s.ctx))
		}
	}
	require.Equal(t, want, got)
	require.Eventually(t, func() bool {
		n, err := trainer.Waiting(s.ctx)
		return err == nil && n == 0
	}, time.Minute, 20*time.Millisecond, "damaged samples are removed")
}
