package cuda

// Closing reports whether Close has begun.
func (r *resource) Closing() bool {
	r.life.mu.Lock()
	defer r.life.mu.Unlock()
	return r.life.closing
}
