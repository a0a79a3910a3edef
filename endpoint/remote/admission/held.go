package admission

import "io"

// Held is a value together with the charge of its memory. Close closes the value and then its charge, so that the memory is charged
// for as long as it is held.
type Held[T io.Closer] struct {
	// Value is valid until Close.
	Value T

	charge *Charge
}

// Hold returns a value with its charge. It takes both.
func Hold[T io.Closer](value T, charge *Charge) *Held[T] { return &Held[T]{value, charge} }

// Release releases the charge of a value that its user has closed.
func (h *Held[T]) Release() { h.charge.Close() }

// Close closes the value, even if that fails, and releases its charge.
func (h *Held[T]) Close() error {
	defer h.charge.Close()
	return h.Value.Close()
}
