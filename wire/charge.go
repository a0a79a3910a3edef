package wire

import "sync/atomic"

// Resource is a kind of amount that [Limits.Charge] counts.
type Resource uint8

const (
	// ResourceFiles counts received descriptors.
	ResourceFiles Resource = iota
	// ResourceBodies counts the bytes of received bodies. Small bodies are not counted.
	ResourceBodies
	// ResourceRings counts the bytes of the rings that the connection offers.
	ResourceRings
)

// charge counts amount of a resource with the limits' Charge, if there is one. A negative amount never fails.
func (l *Limits) charge(of Resource, amount int64) error {
	if l.Charge == nil || amount == 0 {
		return nil
	}
	return l.Charge(of, amount)
}

// charge is the amount that one frame holds. Its files count until the frame was released and its Files are closed. A
// nil *charge counts nothing.
type charge struct {
	limits      *Limits
	bodies      int64
	files       int64
	fileHolders atomic.Int32
}

// newCharge takes ownership of amounts that were charged. It returns nil if nothing is counted.
func newCharge(l *Limits, bodies, files int64) *charge {
	if l.Charge == nil || bodies == 0 && files == 0 {
		return nil
	}
	c := &charge{limits: l, bodies: bodies, files: files}
	c.fileHolders.Store(2)
	return c
}

// release is [Frame.Release].
func (c *charge) release() {
	_ = c.limits.charge(ResourceBodies, -c.bodies)
	c.closeFiles()
}

// closeFiles removes one of the two holders of the files.
func (c *charge) closeFiles() {
	if c != nil && c.fileHolders.Add(-1) == 0 {
		_ = c.limits.charge(ResourceFiles, -c.files)
	}
}
