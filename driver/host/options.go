package host

// Option changes how a device works. Options are given to [Open].
type Option func(*options)

type options struct {
	lazy bool
}

// Lazy leaves the pages of an allocation to its first touch. Alloc costs the same few microseconds for every size, and
// promises less: memory that the system does not have then is found out by the process that touches it, which the
// kernel kills. It is meant for sparse memory. The size is checked against the system's memory all the same.
func Lazy() Option { return func(o *options) { o.lazy = true } }
