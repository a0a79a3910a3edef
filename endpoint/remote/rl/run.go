// Package rl moves parameters and data between one trainer and many workers in reinforcement learning: parameters to
// the workers, data to the trainer.
//
//	trainer, err := rl.NewTrainer(ctx, rl.Options{Run: "cartpole", Conn: conn, Device: dev, Owner: owner})
//	version, err := trainer.Publish(ctx, parameters)
//	samples, err := trainer.Pull(ctx, 32)
//
//	worker, err := rl.NewWorker(ctx, rl.Options{Run: "cartpole", Conn: conn, Device: dev, Owner: owner})
//	p, err := worker.Await(ctx, -1) // the first parameters
//	err = worker.Add(ctx, bins.Value{Body: trajectory})
//
// Versions count from 0. A worker with the same owner as the trainer maps the parameters in place, regardless of their
// size. Other workers fetch the bytes and verify them. Data carries the version of the parameters that the worker last
// fetched, and the trainer receives only data within its staleness window. Trainer, workers and servers may end and
// restart at any time: parameters and data stay. A restarted trainer continues with the next version. If two trainers
// use the same run, the superseded one fails when it publishes.
//
// The bin "<run>.parameters" of the namespace "rl" points to the parameters. Their bytes are in objects that are never
// overwritten. Data is in a queue that delivers at least once.
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

// Options configures a trainer or a worker. Members of a run use the same Run.
type Options struct {
	// Run is the name of the training run: 1 to 32 letters, digits, '-' and '_'.
	Run string
	// Conn is the connection to NATS, from natslink.Connect. Borrowed.
	Conn *nats.Conn
	// Device holds parameters that arrive as bytes. Borrowed; close the parameters before the device.
	Device driver.Device
	// Owner is an owner of tensors on this host. A trainer publishes parameters to it under the name "rl/<run>", and a
	// worker with the same owner maps them. Nil means that the bytes are sent through NATS. Borrowed.
	Owner *endpoint.Client
	// LocalOnly makes a trainer not store the bytes. Only workers with the same owner can then get the parameters.
	LocalOnly bool
	// Name identifies this member within the run: 1 to 64 letters, digits, '-' and '_'. Empty means the host's name and
	// the process id.
	Name string
	// Staleness is the maximum age of data in versions. The trainer drops older data. Negative means no limit.
	Staleness int64
	// Keep is the number of versions whose bytes a trainer keeps for slow workers. Zero means DefaultKeep.
	Keep int
	// Queue limits the bytes of data that wait for the trainer. Workers wait while it is full. It applies when the run
	// is created. Zero means DefaultQueue.
	Queue int64
	// Presence is the time after which a killed member is removed from Members. The minimum is 3 seconds. Zero means
	// DefaultPresence.
	Presence time.Duration
	// Memory keeps parameters and data in the server's memory. A restart of the server loses them.
	Memory bool
	// Replicas is the number of servers that store parameters and data. Zero means 1.
	Replicas int
	// Logger receives messages for operators. Nil means slog.Default().
	Logger *slog.Logger
}

var (
	// ErrSuperseded means that another trainer has published for the run since this one began.
	ErrSuperseded = errors.New("superseded by another trainer of this run")
	// ErrNoParameters means that no trainer has published yet.
	ErrNoParameters = errors.New("no parameters are published yet")
	// ErrUnreachable means that the parameters are only in the memory of an owner to which this worker has no
	// connection.
	ErrUnreachable = errors.New("the parameters are not reachable from this worker")
)

const tokenLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

func (o Options) prepare() (Options, error) {
	if o.Run == "" || len(o.Run) > 32 || strings.Trim(o.Run, tokenLetters) != "" {
		return o, fmt.Errorf("rl: invalid run name %q: use 1 to 32 letters, digits, '-' and '_'", o.Run)
	}
	if o.Name == "" {
		host, _ := os.Hostname()
		o.Name = fmt.Sprintf("%.40s-%d", strings.Map(toToken, host), os.Getpid())
	}
	if len(o.Name) > 64 || strings.Trim(o.Name, tokenLetters) != "" {
		return o, fmt.Errorf("rl: invalid member name %q: use 1 to 64 letters, digits, '-' and '_'", o.Name)
	}
	if o.LocalOnly && o.Owner == nil {
		return o, errors.New("rl: LocalOnly needs an Owner")
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

// run is the common part of a trainer and a worker.
type run struct {
	opts    Options
	store   *bins.Store
	queue   *bins.Queue
	objects *natslink.Objects
	members jetstream.KeyValue
	// presences reads the bucket of members.
	presences *natslink.Batches
	js        jetstream.JetStream
	log       *slog.Logger
}

// openRun opens the streams of a run and creates missing ones. A worker only adds data.
func openRun(ctx context.Context, opts Options, worker bool) (*run, error) {
	opts, err := opts.prepare()
	if err != nil {
		return nil, err
	}
	if opts.Conn == nil || opts.Device == nil {
		return nil, errors.New("rl: Conn and Device must be set")
	}
	return openStreams(ctx, opts, worker)
}

// Create creates the streams of a run that are missing. A gateway does so for runs of its policy, whose members may not
// create streams. Device is not used.
func Create(ctx context.Context, opts Options) error {
	opts, err := opts.prepare()
	if err != nil {
		return err
	}
	_, err = openStreams(ctx, opts, true) // the consumer of the queue belongs to its trainer
	return err
}

func openStreams(ctx context.Context, opts Options, addOnly bool) (_ *run, err error) {
	r := &run{opts: opts, log: opts.Logger, presences: natslink.NewBatches(opts.Conn, "KV_RL_"+opts.Run)}
	if r.js, err = natslink.JetStream(opts.Conn); err != nil {
		return nil, fmt.Errorf("open the run %q: %w", opts.Run, err)
	}
	common := bins.Options{Namespace: "rl", Memory: opts.Memory, Replicas: opts.Replicas, Logger: opts.Logger}
	if r.store, err = bins.Open(ctx, opts.Conn, common); err != nil {
		return nil, err
	}
	common.Namespace, common.MaxBytes = "rl_"+opts.Run, opts.Queue
	if r.queue, err = bins.OpenQueue(ctx, opts.Conn, bins.QueueOptions{Options: common, AddOnly: addOnly}); err != nil {
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

// pointer is the message that identifies the newest parameters. It holds all that a worker needs to fetch them.
type pointer struct {
	Version int64  `json:"version"`
	Trainer string `json:"trainer"`
	// ID is unique to each call of Publish.
	ID string `json:"id,omitempty"`
	// Object is the name of the safetensors file with the bytes. It is empty if the bytes are only in the owner's
	// memory.
	Object string `json:"object,omitempty"`
	Bytes  int64  `json:"bytes,omitempty"`
	place
}

// place identifies parameters in an owner's memory. It is empty if they are only in NATS.
type place struct {
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
		return p, 0, fmt.Errorf("run %q: the bin %q does not contain parameters: %w", r.opts.Run, r.bin(), bins.ErrCorrupt)
	}
	return p, item.Sequence, nil
}

func (r *run) bin() string { return r.opts.Run + ".parameters" }

func (r *run) model() string { return "rl/" + r.opts.Run }
