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

// Arguments are those of one call, as they came and as the function gets them. They are used by one run at most:
// whoever claims them closes them.
type Arguments struct {
	raw         message.RawMessage
	Storages    []*tensor.Storage // owned
	names       []string          // of the storages, which keys are made of
	Value       any               // a pointer to the endpoint's In
	made        []interface{ Close() error }
	claimed     atomic.Bool
	memory      atomic.Uint32 // heldForAnswer and so on
	Reservation Reservation   // of the request that they came with, once they are decoded
	unlock      func()        // gives back the turn that was taken for their run; nil for none
}

// To unmap memory takes longer than anything else in a call that gets a tensor. The caller need not wait for it: the
// memory of a call's arguments goes when the run is done with them and the call is answered, whichever comes last.
// Arguments that are of no call to be answered go at once.
const (
	heldForAnswer = iota + 1 // neither has come
	heldDone                 // the run is done with them
	heldAnswered             // the call is answered
)

// NewArguments imports and decodes the arguments of a call of a session into a. It borrows the files that it does not
// take.
func (e *Engine) NewArguments(a *Arguments, d *Definition, in *message.CallParts, files *wire.Files, session uint64, kept *transfer.Kept) error {
	storages, names, err := e.importArguments(in.Handles, files, d, session, kept)
	if err != nil {
		return fmt.Errorf("endpoint %q: argument: %w", d.Name, err)
	}
	a.names = names
	return e.decodeArguments(a, d, in.Args, storages)
}

// ArgumentsOf decodes arguments whose memory is mapped. It takes the storages.
func (e *Engine) ArgumentsOf(d *Definition, raw message.RawMessage, storages []*tensor.Storage) (*Arguments, error) {
	a := &Arguments{names: make([]string, len(storages))}
	return a, e.decodeArguments(a, d, raw, storages)
}

// decodeArguments decodes the arguments of a call into a; none at all are a struct or map without fields. It takes the
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

// DecodePassedOn decodes arguments that go on to a worker as they are, for those who want to see them: as values of no
// certain type. What is made is closed with the arguments.
func (a *Arguments) DecodePassedOn(raw message.RawMessage) (any, error) {
	var in any
	made, err := codec.DecodePayload(raw, a.Storages, &in, false)
	if err == nil {
		a.made = append(a.made, made...)
	}
	return in, err
}

// keyed reports whether values of t may be maps of names.
func keyed(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer && !codec.IsTensor(t) {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct || t.Kind() == reflect.Map || t.Kind() == reflect.Interface
}

// Claim is true for the first caller.
func (a *Arguments) Claim() bool { return a.claimed.CompareAndSwap(false, true) }

// close releases the memory; the caller whose Claim was true calls it once.
func (a *Arguments) close() {
	a.Reservation.Release() // before the answer: a client that has it may rely on that
	if a.unlock != nil {
		a.unlock()
	}
	if !a.memory.CompareAndSwap(heldForAnswer, heldDone) {
		a.free()
	}
}

// Drop closes arguments that nobody has claimed.
func (a *Arguments) Drop() {
	if a.Claim() {
		a.close()
	}
}

// Hold keeps the memory until the call is answered.
func (a *Arguments) Hold() { a.memory.Store(heldForAnswer) }

// Answered notes that the call is answered.
func (a *Arguments) Answered() {
	if !a.memory.CompareAndSwap(heldForAnswer, heldAnswered) {
		a.free()
	}
}

func (a *Arguments) free() {
	codec.CloseAll(a.made)
	transfer.CloseStorages(a.Storages)
}
