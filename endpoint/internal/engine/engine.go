// Package engine runs the endpoints of a server: arguments, runs, cached results, tasks and managed objects.
package engine

import (
	"log/slog"
	"time"

	"github.com/sharedtensor/sharedtensor/cache"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire"
)

// Engine runs the endpoints of a server and keeps what comes of it: cached results, tasks and managed objects.
type Engine struct {
	log        *slog.Logger
	devices    transfer.Devices
	frame      wire.Limits
	Names      transfer.MemoryNames    // of the memory that the server has shared
	Results    *cache.Cache[*Result]   // the cached results
	Tasks      *task.Manager[*Outcome] // the tasks
	Objects    objects                 // the managed objects
	serialized keyedMutex
	Memory     resultMemory // what clients have of results
}

// Config says what an engine works with.
type Config struct {
	Server  string           // its id
	Log     *slog.Logger     // gets what operators should know
	Devices transfer.Devices // borrowed
	Frame   wire.Limits      // bounds results
	Results CacheBounds      // of the cache
	Tasks   TaskBounds       // of the tasks
	// ResultBytes bound the memory of results that is kept for one client, and for all together.
	ResultBytes, ResultBytesTotal int64
}

// CacheBounds bound what is kept of results. 0 stands for the default of package cache, and for no bound of Bytes and
// TTL.
type CacheBounds struct {
	Entries int           // how many
	Bytes   int64         // of memory, encoding and keys together
	TTL     time.Duration // after they were made
}

// TaskBounds bound the tasks. 0 stands for the default of package task, and for no bound of Bytes.
type TaskBounds struct {
	// Workers is how many run at once, Capacity how many are known, Retain how many finished ones are kept, TTL for how
	// long, and Bytes what their results may have together.
	Workers, Capacity, Retain int
	TTL                       time.Duration
	Bytes                     int64
}

// New returns an engine without results, tasks and objects.
func New(c Config) *Engine {
	e := &Engine{log: c.Log, devices: c.Devices, frame: c.Frame, Objects: objects{server: c.Server}}
	e.Memory.one, e.Memory.all = c.ResultBytes, c.ResultBytesTotal
	e.Objects.memory = &e.Memory
	e.Results = cache.New(cache.Options[*Result]{
		Entries: c.Results.Entries, Bytes: c.Results.Bytes, TTL: c.Results.TTL,
		Cost: resultCost, OnEvict: func(_ cache.Key, r *Result) { r.Release() },
		Work: func() cache.Work { return new(task.Work) },
	})
	e.Tasks = task.New(task.Options[*Outcome]{
		Workers: c.Tasks.Workers, Capacity: c.Tasks.Capacity, Retain: c.Tasks.Retain, TTL: c.Tasks.TTL, Bytes: c.Tasks.Bytes, Cost: (*Outcome).bytes,
		Release: func(o *Outcome) { o.drop(&e.Objects) }, // who fetches one takes a reference of its own
	})
	return e
}

// NewRunner returns an engine that only runs functions: it has no cache and no tasks.
func NewRunner(c Config) *Engine {
	return &Engine{log: c.Log, devices: c.Devices, frame: c.Frame, Objects: objects{server: c.Server}}
}

// Trim drops cached results that nobody has, of so many bytes, and reports whether there were any.
func (e *Engine) Trim(bytes int64) bool { return e.Results.Trim(bytes) > 0 }
