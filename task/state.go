package task

import "fmt"

// State is where a task stands.
//
//	Pending ──> Running ──> Succeeded
//	   │           ├──────> Failed
//	   └───────────┴──────> Cancelled
type State uint8

// The states. The zero State is not one.
const (
	// Pending is a task that waits for a worker.
	Pending State = iota + 1
	// Running is a task whose function runs.
	Running
	// Succeeded is a task whose function returned a result. Its name outside is "completed".
	Succeeded
	// Failed is a task whose function returned an error, panicked or ended its goroutine.
	Failed
	// Cancelled is a task that was cancelled before it started or while it ran.
	Cancelled
)

var stateNames = [...]string{Pending: "pending", Running: "running", Succeeded: "completed", Failed: "failed", Cancelled: "cancelled"}

// String is the name by which the state is known outside: pending, running, completed, failed or cancelled.
func (s State) String() string {
	if s < Pending || s > Cancelled {
		return fmt.Sprintf("state %d", uint8(s))
	}
	return stateNames[s]
}

// ParseState reads what [State.String] writes.
func ParseState(name string) (State, error) {
	for s := Pending; s <= Cancelled; s++ {
		if stateNames[s] == name {
			return s, nil
		}
	}
	return 0, fmt.Errorf("task state %q: use pending, running, completed, failed or cancelled", name)
}

// Terminal reports whether a task stays in this state.
func (s State) Terminal() bool { return s >= Succeeded && s <= Cancelled }

// CanBecome reports whether a task in state s may go to state next.
func (s State) CanBecome(next State) bool {
	switch s {
	case Pending:
		return next == Running || next == Cancelled
	case Running:
		return next.Terminal()
	}
	return false
}
