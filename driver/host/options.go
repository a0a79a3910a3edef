package host

// Option configures a device. Options are passed to [Open].
type Option func(*options)

type options struct {
	lazy bool
}

// Lazy allocates pages on first touch. Alloc then costs a few microseconds for any size, but the kernel kills the
// process that touches memory which the system does not have. It is meant for sparse memory. The size is still checked
// against the system's memory.
func Lazy() Option { return func(o *options) { o.lazy = true } }
