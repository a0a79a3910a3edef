package cuda

import (
	"fmt"
	"math"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Process is a process that uses CUDA, this one or another, for checkpoints by tools such as CRIU. Its state changes in
// this order: Lock, Checkpoint, (the process is saved and restored), Restore, Unlock. A locked process waits in its CUDA
// calls. A checkpointed one holds no memory of a device; the driver keeps the bytes in host memory. Memory that is shared
// with other processes is not supported by drivers so far. It needs CUDA 12.8 and the rights to trace the process.
type Process struct {
	// PID is the process number.
	PID int
}

// ProcessState is the state of a [Process].
type ProcessState int32

// The states.
const (
	ProcessRunning      = ProcessState(cu.PROCESS_STATE_RUNNING)
	ProcessLocked       = ProcessState(cu.PROCESS_STATE_LOCKED)
	ProcessCheckpointed = ProcessState(cu.PROCESS_STATE_CHECKPOINTED)
	ProcessFailed       = ProcessState(cu.PROCESS_STATE_FAILED)
)

// String returns the state in one word.
func (s ProcessState) String() string {
	switch s {
	case ProcessRunning:
		return "running"
	case ProcessLocked:
		return "locked"
	case ProcessCheckpointed:
		return "checkpointed"
	case ProcessFailed:
		return "failed"
	}
	return fmt.Sprintf("state %d", int32(s))
}

// call initialises the driver and calls fn.
func (p Process) call(op, name string, fn func(pid int32) cu.Result) error {
	err := func() error {
		if p.PID <= 0 || p.PID > math.MaxInt32 {
			return invalid("process number %d", p.PID)
		}
		if _, err := count(); err != nil {
			return err
		}
		return check(name, fn(int32(p.PID)))
	}()
	if err != nil {
		return &driver.OpError{Op: op, Device: fmt.Sprintf("process %d", p.PID), Err: err}
	}
	return nil
}

// State returns the state.
func (p Process) State() (ProcessState, error) {
	var s cu.ProcessState
	err := p.call("process state", "cuCheckpointProcessGetState", func(pid int32) cu.Result { return cu.CheckpointProcessGetState(pid, &s) })
	return ProcessState(s), err
}

// Lock waits until no CUDA call of the process is in progress, and makes later calls wait. timeout limits the wait,
// rounded up to milliseconds; 0 means no limit. A running process becomes locked.
func (p Process) Lock(timeout time.Duration) error {
	ms := (timeout + time.Millisecond - 1) / time.Millisecond
	if timeout < 0 || ms > math.MaxUint32 {
		return &driver.OpError{Op: "lock", Device: fmt.Sprintf("process %d", p.PID), Err: invalid("a time limit of %s", timeout)}
	}
	args := cu.CheckpointLockArgs{TimeoutMs: uint32(ms)}
	return p.call("lock", "cuCheckpointProcessLock", func(pid int32) cu.Result { return cu.CheckpointProcessLock(pid, &args) })
}

// Checkpoint moves the memory of the process to the host and releases its devices. A locked process becomes
// checkpointed.
func (p Process) Checkpoint() error {
	return p.call("checkpoint", "cuCheckpointProcessCheckpoint", func(pid int32) cu.Result {
		return cu.CheckpointProcessCheckpoint(pid, new(cu.CheckpointCheckpointArgs))
	})
}

// Restore moves the memory back. moved maps the UUIDs of the devices that were used to those that replace them, which
// are of the same kind (CUDA 13.0); nil means the same devices. A checkpointed process becomes locked. It must be called
// on the thread [Process.RestoreThread] if the process was restored by another program.
func (p Process) Restore(moved map[driver.UUID]driver.UUID) error {
	var pairs []cu.CheckpointGpuPair
	for from, to := range moved {
		pairs = append(pairs, cu.CheckpointGpuPair{OldUuid: cu.UUID{Bytes: from}, NewUuid: cu.UUID{Bytes: to}})
	}
	args := &cu.CheckpointRestoreArgs{GpuPairsCount: uint32(len(pairs))}
	if len(pairs) > 0 {
		args.GpuPairs = &pairs[0]
	}
	return p.call("restore", "cuCheckpointProcessRestore", func(pid int32) cu.Result { return cu.CheckpointProcessRestore(pid, args) })
}

// Unlock makes the CUDA calls of the process continue. A locked process runs again.
func (p Process) Unlock() error {
	return p.call("unlock", "cuCheckpointProcessUnlock", func(pid int32) cu.Result {
		return cu.CheckpointProcessUnlock(pid, new(cu.CheckpointUnlockArgs))
	})
}

// RestoreThread returns the number of the thread that the driver uses to restore the process.
func (p Process) RestoreThread() (int, error) {
	var tid int32
	err := p.call("restore thread", "cuCheckpointProcessGetRestoreThreadId",
		func(pid int32) cu.Result { return cu.CheckpointProcessGetRestoreThreadId(pid, &tid) })
	return int(tid), err
}
