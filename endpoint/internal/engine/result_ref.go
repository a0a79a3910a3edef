package engine

import "github.com/sharedtensor/sharedtensor/cache"

// ResultRef is one reference to a result, held by a task, an object or a send in progress. For a cached result it also
// pins the cache entry: evicting a result that is still held would free no memory and cost the next caller a run.
type ResultRef struct {
	*Result
	entry *cache.Ref[*Result] // nil if the result is not cached
}

// clone returns another reference. g must not have been released.
func (g ResultRef) clone() ResultRef {
	if g.entry != nil {
		if entry, err := g.entry.Clone(); err == nil {
			return ResultRef{g.Result, entry}
		}
	}
	return ResultRef{Result: g.retain()}
}

// Release releases the reference.
func (g ResultRef) Release() {
	if g.entry != nil {
		_ = g.entry.Close() // a second Close returns nil, and there are no other errors
		return
	}
	g.Result.Release()
}

// Discard removes the result from the cache.
func (g ResultRef) Discard() {
	if g.entry != nil {
		g.entry.Discard()
	}
}

// key returns the cache key of the result, or "" if the cache does not hold it.
func (g ResultRef) key() string {
	if g.entry == nil || !g.entry.Findable() {
		return ""
	}
	return g.entry.Key().String()
}
