package engine

import (
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Arguments holds the arguments of one call, encoded and decoded. At most one run uses them: the caller whose Claim
// returns true closes them.
type Arguments struct {
	raw         message.RawMessage
	Storages    []*tensor.Storage // owned
	names       []string          // of the storages, for cache keys
	Value       any               // a pointer to the endpoint's In
	made        []interface{ Close() error }
	claimed     atomic.Bool
	memory      atomic.Uint32 // heldForAnswer, heldDone or heldAnswered; 0 if not held
	Reservation Reservation   // of the request with which the arguments arrived; nil for none
	turn        *turn         // of a call of a serialized endpoint; nil for others
	endTurn     func()        // ends the turn; nil without one
}

// Caller is the session from which arguments arrive.
type Caller struct {
	// Session is its number.
	Session uint64
	// Kept is the memory of its earlier calls.
	Kept *transfer.Kept
	// Inline permits memory within the frame.
	Inline bool
}

// Reservation is the share of a request in the limits of a session.
type Reservation interface {
	// Release ends the reservation. It is called once.
	Release()
}

// Unmapping memory takes longer than the rest of a call with a tensor, so the caller does not wait for it. The memory
// is unmapped after both the run has ended and the call was answered. Arguments without a pending answer are unmapped
// at once.
const (
	heldForAnswer = iota + 1 // neither has happened
	heldDone                 // the run has ended
	heldAnswered             // the call was answered
)

// NewArguments imports and decodes the arguments of a session's call into a. It borrows the files that it does not
// take.
func (e *Engine) NewArguments(a *Arguments, d *Definition, in *message.CallParts, files *wire.Files, from Caller) error {
	storages, names, err := e.importArguments(in.Handles, files, d, from)
	if err != nil {
		return fmt.Errorf("endpoint %q: argument: %w", d.Name, err)
	}
	a.names = names
	return e.decodeArguments(a, d, in.Args, storages)
}

// ArgumentsOf decodes arguments whose memory is already mapped. It takes the storages.
func (e *Engine) ArgumentsOf(d *Definition, raw message.RawMessage, storages []*tensor.Storage) (*Arguments, error) {
	a := &Arguments{names: make([]string, len(storages))}
	return a, e.decodeArguments(a, d, raw, storages)
}

// decodeArguments decodes the arguments of a call into a. An empty raw is an empty struct or map. It takes the
// storages.
func (e *Engine) decodeArguments(a *Arguments, d *Definition, raw message.RawMessage, storages []*tensor.Storage) (err error) {
	if len(raw) == 0 {
		raw = codec.Nothing
		if keyed(d.In) {
			raw = codec.NoFields
		}
	}
	decoded := false
	defer func() {
		if !decoded {
			transfer.CloseStorages(storages)
		}
	}()
	defer e.Recovered(&err, d, "argument: ")
	value, made, err := d.Decode(raw, storages)
	if err != nil {
		return fmt.Errorf("endpoint %q: argument: %w", d.Name, err)
	}
	a.raw, a.Storages, a.Value, a.made = raw, storages, value, made
	decoded = true
	return nil
}

// DecodeForwarded decodes arguments that are forwarded to a worker, for interceptors. The values are of generic types
// and are closed with the arguments.
func (a *Arguments) DecodeForwarded(raw message.RawMessage) (any, error) {
	var in any
	made, err := codec.DecodePayload(raw, a.Storages, &in, false)
	if err == nil {
		a.made = append(a.made, made...)
	}
	return in, err
}

// keyed reports whether values of t can be maps with string keys.
func keyed(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer && !codec.IsTensor(t) {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct || t.Kind() == reflect.Map || t.Kind() == reflect.Interface
}

// Claim returns true to the first caller only.
func (a *Arguments) Claim() bool { return a.claimed.CompareAndSwap(false, true) }

// close releases the memory. It is called once, by the caller whose Claim returned true.
func (a *Arguments) close() {
	if a.Reservation != nil {
		a.Reservation.Release() // before the answer, because the client may send its next request as soon as it has the answer
	}
	if a.endTurn != nil {
		a.endTurn()
	}
	if !a.memory.CompareAndSwap(heldForAnswer, heldDone) {
		a.free()
	}
}

// Drop closes the arguments if they were not claimed.
func (a *Arguments) Drop() {
	if a.Claim() {
		a.close()
	}
}

// Hold keeps the memory mapped until Answered is called.
func (a *Arguments) Hold() { a.memory.Store(heldForAnswer) }

// Answered records that the call was answered.
func (a *Arguments) Answered() {
	if !a.memory.CompareAndSwap(heldForAnswer, heldAnswered) {
		a.free()
	}
}

func (a *Arguments) free() {
	codec.CloseAll(a.made)
	transfer.CloseStorages(a.Storages)
}
