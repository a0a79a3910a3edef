package endpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/cache"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// arguments are those of one call, as they came and as the function gets them. They are used by one run at most: whoever claims them
// closes them.
type arguments struct {
	raw      message.RawMessage
	storages []*tensor.Storage
	names    []string // of the storages, which keys are made of; see lent
	value    any      // a pointer to the endpoint's In
	made     []interface{ Close() error }
	claimed  atomic.Bool
	memory   atomic.Uint32 // heldForAnswer and so on
	load     load          // of the request that they came with, once they are decoded
	turn     func()        // gives back the turn that was taken for their run; nil for none
}

// To unmap memory takes longer than anything else in a call that gets a tensor. The caller need not wait for it: the memory of a call's
// arguments goes when the run is done with them and the call is answered, whichever comes last. Arguments that are of no
// call to be answered go at once.
const (
	heldForAnswer = iota + 1 // neither has come
	heldDone                 // the run is done with them
	heldAnswered             // the call is answered
)

// newArguments imports and decodes the arguments of a call of a session into a. It borrows the files that it does not take.
func (s *Server) newArguments(a *arguments, d *definition, in *message.CallParts, files *wire.Files, session *session) error {
	storages, names, err := s.importArguments(in.Handles, files, d, session)
	if err != nil {
		return fmt.Errorf("endpoint %q: argument: %w", d.name, err)
	}
	a.names = names
	return s.decodeArguments(a, d, in.Args, storages)
}

// decodeArguments decodes the arguments of a call into a; none at all are a struct or map without fields. It takes the storages.
func (s *Server) decodeArguments(a *arguments, d *definition, raw message.RawMessage, storages []*tensor.Storage) (err error) {
	if len(raw) == 0 {
		raw = codec.Nothing
		if keyed(d.in) {
			raw = codec.NoFields
		}
	}
	decoded := false
	defer func() {
		if !decoded {
			transfer.CloseStorages(storages)
		}
	}()
	defer s.recovered(&err, d, "argument: ")
	value, made, err := d.decode(raw, storages)
	if err != nil {
		return fmt.Errorf("endpoint %q: argument: %w", d.name, err)
	}
	a.raw, a.storages, a.value, a.made = raw, storages, value, made
	decoded = true
	return nil
}

// keyed reports whether values of t may be maps of names.
func keyed(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer && !codec.IsTensor(t) {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct || t.Kind() == reflect.Map || t.Kind() == reflect.Interface
}

// claim is true for the first who asks.
func (a *arguments) claim() bool { return a.claimed.CompareAndSwap(false, true) }

// close gives the memory back; the one who claimed them calls it once.
func (a *arguments) close() {
	a.load.lift() // before the answer: who has that may count on it
	if a.turn != nil {
		a.turn()
	}
	if !a.memory.CompareAndSwap(heldForAnswer, heldDone) {
		a.free()
	}
}

// drop closes arguments that nobody has claimed.
func (a *arguments) drop() {
	if a.claim() {
		a.close()
	}
}

// hold keeps the memory until the call is answered.
func (a *arguments) hold() { a.memory.Store(heldForAnswer) }

// answered notes that the call is answered.
func (a *arguments) answered() {
	if !a.memory.CompareAndSwap(heldForAnswer, heldAnswered) {
		a.free()
	}
}

func (a *arguments) free() {
	codec.CloseAll(a.made)
	transfer.CloseStorages(a.storages)
}

// key is the cache key of a call; false where its result must not be cached: an argument holds memory that somebody may still write, so
// that equal arguments would not mean equal bytes.
func (d *definition) key(a *arguments) (cache.Key, bool) {
	if !d.options.cached {
		return cache.Key{}, false
	}
	if t := d.options.cacheKey; t != nil {
		return cache.Key{Group: d.name, ID: t.Expand(reflect.ValueOf(a.value).Elem())}, true
	}
	h := sha256.New()
	fmt.Fprintf(h, "%d:", len(a.raw))
	h.Write(a.raw)
	for i, s := range a.storages {
		name := a.names[i]
		if known, ok := s.Memory().(driver.Identifier); ok && name == "" {
			name, _ = known.Identity()
		}
		if name == "" {
			return cache.Key{}, false
		}
		fmt.Fprintf(h, "%d:%s", len(name), name)
	}
	return cache.Key{Group: d.name, ID: "arguments:" + hex.EncodeToString(h.Sum(nil))}, true
}
