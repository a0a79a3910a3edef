package engine

import "github.com/sharedtensor/sharedtensor/cache"

// ResultRef is one reference to a result, of a task, an object or an answer on its way. Of a cached result it keeps the
// entry too: the budget of the cache does not drop what somebody has, to make it a second time for the next who asks.
type ResultRef struct {
	*Result
	entry *cache.Ref[*Result] // nil for a result that was not cached
}

// again is another reference, beside one that its owner has not given back.
func (g ResultRef) again() ResultRef {
	if g.entry != nil {
		if entry, err := g.entry.Clone(); err == nil {
			return ResultRef{g.Result, entry}
		}
	}
	return ResultRef{Result: g.retain()}
}

// Release gives the reference back.
func (g ResultRef) Release() {
	if g.entry != nil {
		_ = g.entry.Close() // a second Close is nil, and there is no other error
		return
	}
	g.Result.Release()
}

// Discard takes the result out of the cache.
func (g ResultRef) Discard() {
	if g.entry != nil {
		g.entry.Discard()
	}
}

// key is the key under which the result can be found in the cache; empty where it cannot.
func (g ResultRef) key() string {
	if g.entry == nil || !g.entry.Findable() {
		return ""
	}
	return g.entry.Key().String()
}
