//go:build !linux

package ring

import (
	"errors"
	"os"
)

// ErrRefused is memory that was passed and cannot be what it should be.
var ErrRefused = errors.New("not the memory of a ring")

// Memory is the memory of two rings, which is written for Linux.
type Memory struct{}

// Bytes is how much memory rings take of so many bytes each.
func Bytes(each int) int { return pageBytes + 2*each }

// Fit is the size of a ring of at least n bytes, within what there may be.
func Fit(n int) int { return min(max(n, MinBytes), MaxBytes) }

// New fails with [errors.ErrUnsupported].
func New(int) (*Memory, *os.File, error) { return nil, nil, errors.ErrUnsupported }

// Open fails with [errors.ErrUnsupported].
func Open(int) (*Memory, error) { return nil, errors.ErrUnsupported }

// Close does nothing.
func (m *Memory) Close() error { return nil }

// Producer is of no use.
func (m *Memory) Producer(Which) *Producer { return &Producer{} }

// Consumer is of no use.
func (m *Memory) Consumer(Which) *Consumer { return &Consumer{} }
