//go:build !linux

package ring

import (
	"errors"
	"os"
)

// ErrRefused means that the memory is not that of a ring.
var ErrRefused = errors.New("not the memory of a ring")

// Memory is the memory of two rings. It is implemented on Linux only.
type Memory struct{}

// Bytes returns the memory of two rings of each bytes.
func Bytes(each int) int { return pageBytes + 2*each }

// Fit returns the size of a ring of at least n bytes, within MinBytes and MaxBytes.
func Fit(n int) int { return min(max(n, MinBytes), MaxBytes) }

// New fails with [errors.ErrUnsupported].
func New(int) (*Memory, *os.File, error) { return nil, nil, errors.ErrUnsupported }

// Open fails with [errors.ErrUnsupported].
func Open(int) (*Memory, error) { return nil, errors.ErrUnsupported }

// Close does nothing.
func (m *Memory) Close() error { return nil }

// Producer returns a producer that cannot be used.
func (m *Memory) Producer(Which) *Producer { return &Producer{} }

// Consumer returns a consumer that cannot be used.
func (m *Memory) Consumer(Which) *Consumer { return &Consumer{} }
