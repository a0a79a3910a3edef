// Package cache keeps the results of expensive calls under keys: each is built once however many ask for it at the same
// time, stays until the budget, its age or somebody's word drops it, and is closed when the last user has let go.
//
// A user gets a value as a [Ref], which pins it: the value is valid until the Ref is closed, whatever happens to the
// cache meanwhile. A value leaves in two steps. First it is dropped: it can no longer be found. Then, when nobody has
// it pinned any more, it goes to [Options.OnEvict], exactly once.
//
// A build belongs to all its waiters ([Cache.Get]). A waiter that leaves takes nothing away from the others; when the
// last one leaves, the build's context is cancelled. Whoever asks after an invalidation never gets what was begun
// before it.
//
// Failures are never kept: an error, a panic or a [runtime.Goexit] in a build goes to the waiters of that build,
// and the next Get builds again. A nil value is a value like any other.
//
// What surprises: a build runs on a goroutine of its own with the values, but not the cancellation, of the context of
// the caller that started it; its deadline is the latest of its waiters. A build that ignores its context after
// everybody left goes on beside the next build of the same key; what it returns is closed, not kept.
package cache
