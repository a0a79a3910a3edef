// Package rl carries what reinforcement learning moves between one trainer and many workers: parameters one way, data
// the other way.
//
//	trainer, err := rl.NewTrainer(ctx, rl.Options{Run: "cartpole", Conn: conn, Device: dev, Owner: owner})
//	version, err := trainer.Publish(ctx, parameters)
//	samples, err := trainer.Pull(ctx, 32)
//
//	worker, err := rl.NewWorker(ctx, rl.Options{Run: "cartpole", Conn: conn, Device: dev, Owner: owner})
//	p, err := worker.Await(ctx, -1) // the first parameters
//	err = worker.Add(ctx, bins.Value{Body: trajectory})
//
// Versions count from 0. A worker whose owner is the trainer's maps the parameters in place, whatever their size;
// another one fetches their bytes and checks them. Data carries the version of the parameters that the worker last
// fetched; the trainer gets what is not older than its staleness window allows. Trainer, workers and server may end and
// come back at any time: parameters and data stay, a trainer that comes back goes on with the next version, and a
// second trainer of the same run is refused when it publishes.
//
// Parameters lie in the bin "<run>.parameters" of the namespace "rl", their bytes in objects that are never
// overwritten; data lies in a queue that delivers at least once.
package rl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// Defaults of [Options].
const (
	DefaultKeep     = 3
	DefaultQueue    = 1 << 30
	DefaultPresence = 15 * time.Second
)

// Options are those of a trainer and its workers; they agree on Run.
type Options struct {
	// Run names the training run: 1 to 32 letters, digits, '-' and '_'.
	Run string
	// Conn is the connection to NATS, as natslink.Connect makes it. Borrowed.
	Conn *nats.Conn
	// Device takes parameters that come as bytes. Borrowed; parameters must be closed before it.
	Device driver.Device
	// Owner is an owner of tensors on this host. A trainer publishes parameters to it, under the name "rl/<run>"; a
	// worker with the same owner maps them from there. Nil means that bytes go through NATS. Borrowed.
	Owner *endpoint.Client
	// LocalOnly keeps a trainer from storing the bytes: then only workers with its owner can have the parameters.
	LocalOnly bool
	// Name names this member of the run among the others; empty stands for the host's name and the process id. It is 1
	// to 64 letters, digits, '-' and '_'.
	Name string
	// Staleness is how many versions older than the newest data may be for a trainer to get it; negative means any.
	Staleness int64
	// Keep is how many versions' bytes a trainer keeps for workers that are slow to fetch them. Zero stands for
	// DefaultKeep.
	Keep int
	// Queue bounds the bytes of data that wait for the trainer; workers wait while it is full. It takes effect when the
	// run begins. Zero stands for DefaultQueue.
	Queue int64
	// Presence is after how long a member that was killed is gone from Members. At least 3 seconds; zero stands for
	// DefaultPresence.
	Presence time.Duration
	// Memory keeps parameters and data in the server's memory, for runs that need not survive a restart of it.
	Memory bool
	// Replicas is how many servers keep parameters and data; zero stands for 1.
	Replicas int
	// Logger gets what operators should know. Nil stands for slog.Default().
	Logger *slog.Logger
}

var (
	// ErrSuperseded means that another trainer has published for the run since this one began.
	ErrSuperseded = errors.New("another trainer publishes for this run")
	// ErrNoParameters means that no trainer has published yet.
	ErrNoParameters = errors.New("no parameters are published yet")
	// ErrUnreachable means that parameters lie in the memory of an owner that this worker has no connection to, and
	// nowhere else.
	ErrUnreachable = errors.New("the parameters cannot be reached from here")
)

const tokenLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

func (o Options) prepare() (Options, error) {
	if o.Run == "" || len(o.Run) > 32 || strings.Trim(o.Run, tokenLetters) != "" {
		return o, fmt.Errorf("rl: %q does not name a run: 1 to 32 letters, digits, '-' and '_' do", o.Run)
	}
	if o.Name == "" {
		host, _ := os.Hostname()
		o.Name = fmt.Sprintf("%.40s-%d", strings.Map(toToken, host), os.Getpid())
	}
	if len(o.Name) > 64 || strings.Trim(o.Name, tokenLetters) != "" {
		return o, fmt.Errorf("rl: %q does not name a member: 1 to 64 letters, digits, '-' and '_' do", o.Name)
	}
	if o.Conn == nil || o.Device == nil {
		return o, errors.New("rl: a run needs a connection and a device")
	}
	if o.LocalOnly && o.Owner == nil {
		return o, errors.New("rl: parameters that stay on this host need an owner")
	}
	if o.Keep <= 0 {
		o.Keep = DefaultKeep
	}
	if o.Queue == 0 {
		o.Queue = DefaultQueue
	}
	if o.Presence == 0 {
		o.Presence = DefaultPresence
	}
	o.Presence = max(o.Presence, 3*time.Second)
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o, nil
}

func toToken(r rune) rune {
	if strings.ContainsRune(tokenLetters, r) {
		return r
	}
	return '-'
}

// run is what trainers and workers of a run have in common.
type run struct {
	opts    Options
	store   *bins.Store
	queue   *bins.Queue
	objects jetstream.ObjectStore
	members jetstream.KeyValue
	js      jetstream.JetStream
	log     *slog.Logger
}

func openRun(ctx context.Context, opts Options) (*run, error) {
	opts, err := opts.prepare()
	if err != nil {
		return nil, err
	}
	r := &run{opts: opts, log: opts.Logger}
	if r.js, err = jetstream.New(opts.Conn); err != nil {
		return nil, fmt.Errorf("open the run %q: %w", opts.Run, err)
	}
	common := bins.Options{Namespace: "rl", Memory: opts.Memory, Replicas: opts.Replicas, Logger: opts.Logger}
	if r.store, err = bins.Open(ctx, opts.Conn, common); err != nil {
		return nil, err
	}
	common.Namespace, common.MaxBytes = "rl_"+opts.Run, opts.Queue
	if r.queue, err = bins.OpenQueue(ctx, opts.Conn, bins.QueueOptions{Options: common}); err != nil {
		return nil, err
	}
	if r.objects, err = openParameters(ctx, r.js, opts); err != nil {
		return nil, fmt.Errorf("open the parameters of the run %q: %w", opts.Run, err)
	}
	err = natslink.Ask(ctx, func(ctx context.Context) error {
		r.members, err = openMembers(ctx, r.js, opts)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open the members of the run %q: %w", opts.Run, err)
	}
	return r, nil
}

// pointer names the newest parameters: the whole message that a worker needs.
type pointer struct {
	Version int64  `json:"version"`
	Trainer string `json:"trainer"`
	// Object holds the bytes, as a safetensors file; empty where they stay in the owner's memory.
	Object string `json:"object,omitempty"`
	Bytes  int64  `json:"bytes,omitempty"`
	// Server, Model and ModelVersion name them in the owner's memory; empty where they went to NATS alone.
	Server       string `json:"server,omitempty"`
	Model        string `json:"model,omitempty"`
	ModelVersion uint64 `json:"model_version,omitempty"`
}

const pointerType = "application/vnd.sharedtensor.parameters+json"

// readPointer returns the newest pointer and its sequence number, or ErrNoParameters.
func (r *run) readPointer(ctx context.Context) (p pointer, sequence uint64, err error) {
	items, err := r.store.Peek(ctx, r.bin())
	if errors.Is(err, bins.ErrNotFound) {
		return p, 0, fmt.Errorf("run %q: %w", r.opts.Run, ErrNoParameters)
	}
	if err != nil {
		return p, 0, err
	}
	item := items[len(items)-1]
	if err := json.Unmarshal(item.Body, &p); err != nil || item.Type != pointerType || p.Version < 0 {
		return p, 0, fmt.Errorf("run %q: the bin %q holds no parameters: %w", r.opts.Run, r.bin(), bins.ErrCorrupt)
	}
	return p, item.Sequence, nil
}

func (r *run) bin() string { return r.opts.Run + ".parameters" }

func (r *run) model() string { return "rl/" + r.opts.Run }
