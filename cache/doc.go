// Package cache keeps the results of expensive calls under keys. Each result is built once for all concurrent callers,
// stays until it is evicted, expires or is invalidated, and is closed when its last user has released it.
//
// A user gets a value as a [Ref], which pins it: the value is valid until the Ref is closed, whether or not the cache
// still has it. A value leaves in two steps. First it is dropped and can no longer be found. When it is no longer
// pinned, [Options.OnEvict] receives it, exactly once.
//
// A build belongs to all its waiters ([Cache.Get]). A waiter that leaves does not affect the others. When the last one
// leaves, the build's context is cancelled. After an invalidation, callers never get results of builds that began
// before it.
//
// Failures are not cached: an error, a panic or a [runtime.Goexit] in a build goes to its waiters, and the next Get
// builds again. A nil value is a valid value.
//
// Surprises: a build runs on a separate goroutine with the values of the context of the caller that started it, but not
// its cancellation. Its deadline is the latest of its waiters. A build that ignores its cancelled context continues
// beside the next build of the same key; its result is closed and not kept.
package cache
