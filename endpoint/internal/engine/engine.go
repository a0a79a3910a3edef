// Package engine runs the endpoints of a server: arguments, runs, cached results, tasks and managed objects.
package engine

import (
	"log/slog"
	"time"

	"github.com/sharedtensor/sharedtensor/cache"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire"
)

// Engine runs the endpoints of a server and owns its cached results, tasks and managed objects.
type Engine struct {
	log        *slog.Logger
	devices    transfer.Devices
	frame      wire.Limits
	Names      transfer.MemoryNames    // names of the memory that the server has shared
	Results    *cache.Cache[*Result]   // cached results
	Tasks      *task.Manager[*Outcome] // background runs
	Objects    objects                 // managed objects
	serialized turns
	Memory     resultMemory // memory of results held for clients
}

// Config is the configuration of an engine.
type Config struct {
	Server  string           // id of the server
	Log     *slog.Logger     // for warnings
	Devices transfer.Devices // borrowed
	Limits  status.Limits    // of the server
	Results CacheBounds      // limits of cached results
	Tasks   TaskBounds       // limits of tasks
}

// CacheBounds are the limits of the result cache. 0 selects the default of package cache for Entries, and no limit for
// Bytes and TTL. Negative Bytes are no limit either.
type CacheBounds struct {
	Entries int           // maximum number of results
	Bytes   int64         // total of memory, encodings and keys
	TTL     time.Duration // time since the run
}

// TaskBounds are the limits of tasks. 0 selects the default of package task, and no limit for Bytes. Negative Bytes are no
// limit either.
type TaskBounds struct {
	// Workers is the number of tasks that run at once. Capacity is the number of tasks in total. Retain is the number
	// of finished tasks that are kept, TTL the time for which they are kept, and Bytes the total size of their results.
	Workers, Capacity, Retain int
	TTL                       time.Duration
	Bytes                     int64
}

// New returns an engine without results, tasks or objects.
func New(c Config) *Engine {
	e := &Engine{log: c.Log, devices: c.Devices, frame: c.Limits.Wire.WithDefaults(), Objects: objects{server: c.Server}}
	e.Memory.one, e.Memory.all = c.Limits.ObjectBytes, c.Limits.ObjectBytesTotal
	e.Objects.memory = &e.Memory
	e.Results = cache.New(cache.Options[*Result]{
		Entries: c.Results.Entries, Bytes: max(c.Results.Bytes, 0), TTL: c.Results.TTL,
		Cost: resultCost, OnEvict: func(_ cache.Key, r *Result) { r.Release() },
		Work: func() cache.Work { return new(task.Work) },
	})
	e.Tasks = task.New(task.Options[*Outcome]{
		Workers: c.Tasks.Workers, Capacity: c.Tasks.Capacity, Retain: c.Tasks.Retain, TTL: c.Tasks.TTL, Bytes: max(c.Tasks.Bytes, 0), Cost: (*Outcome).bytes,
		Release: func(o *Outcome) { o.drop(&e.Objects) }, // fetching a result adds a reference
	})
	return e
}

// NewRunner returns an engine that only runs functions. It keeps no results and runs no tasks.
func NewRunner(c Config) *Engine {
	return &Engine{log: c.Log, devices: c.Devices, frame: c.Limits.Wire.WithDefaults(), Objects: objects{server: c.Server}}
}

// Trim evicts unused cached results until at least bytes are freed, and reports whether there were any.
func (e *Engine) Trim(bytes int64) bool { return e.Results.Trim(bytes) > 0 }
