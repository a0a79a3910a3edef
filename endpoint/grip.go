package endpoint

import (
	"github.com/sharedtensor/sharedtensor/cache"
)

// grip is one reference to a result, as those have it who keep one or send it. Of a cached result it keeps the entry too: the budget of the
// cache does not drop what somebody has, to make it a second time for the next who asks.
type grip struct {
	*result
	entry *cache.Ref[*result] // nil for a result that was not cached
}

// again is another reference, beside one that its owner has not given back.
func (g grip) again() grip {
	if g.entry != nil {
		if entry, err := g.entry.Clone(); err == nil {
			return grip{g.result, entry}
		}
	}
	return grip{result: g.retain()}
}

// release gives the reference back.
func (g grip) release() {
	if g.entry != nil {
		g.entry.Close()
		return
	}
	g.result.release()
}

// discard lets nobody find the result in the cache any more.
func (g grip) discard() {
	if g.entry != nil {
		g.entry.Discard()
	}
}

// key is the key under which the result can be found in the cache; empty where it cannot.
func (g grip) key() string {
	if g.entry == nil || !g.entry.Findable() {
		return ""
	}
	return g.entry.Key().String()
}
