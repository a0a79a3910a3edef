package task

import "fmt"

// State is the state of a task.
//
//	Pending ──> Running ──> Succeeded
//	   │           ├──────> Failed
//	   └───────────┴──────> Cancelled
type State uint8

// The states. The zero State is invalid.
const (
	// Pending means that the task waits for a worker.
	Pending State = iota + 1
	// Running means that the task's function runs.
	Running
	// Succeeded means that the function returned a result. Its external name is "completed".
	Succeeded
	// Failed means that the function returned an error, panicked or ended its goroutine.
	Failed
	// Cancelled means that the task was cancelled before it started or while it ran.
	Cancelled
)

var stateNames = [...]string{Pending: "pending", Running: "running", Succeeded: "completed", Failed: "failed", Cancelled: "cancelled"}

// String returns the external name of the state: pending, running, completed, failed or cancelled.
func (s State) String() string {
	if s < Pending || s > Cancelled {
		return fmt.Sprintf("state %d", uint8(s))
	}
	return stateNames[s]
}

// ParseState parses the result of [State.String].
func ParseState(name string) (State, error) {
	for s := Pending; s <= Cancelled; s++ {
		if stateNames[s] == name {
			return s, nil
		}
	}
	return 0, fmt.Errorf("task state %q: use pending, running, completed, failed or cancelled", name)
}

// Terminal reports whether the state is final.
func (s State) Terminal() bool { return s >= Succeeded && s <= Cancelled }

// CanBecome reports whether a task in state s may change to state next.
func (s State) CanBecome(next State) bool {
	switch s {
	case Pending:
		return next == Running || next == Cancelled
	case Running:
		return next.Terminal()
	}
	return false
}
