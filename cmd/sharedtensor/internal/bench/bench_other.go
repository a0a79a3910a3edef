//go:build !linux

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
)

var errSystem = fmt.Errorf("benchmarks share memory between processes, which needs Linux: %w", errors.ErrUnsupported)

// bench has no benchmarks on this system.
type bench struct {
	Options
	ctx     context.Context
	results []Result
}

// Work fails with errors.ErrUnsupported.
func Work(context.Context, io.Reader, io.Writer, string) error { return errSystem }

func (b *bench) open() error     { return errSystem }
func (b *bench) close()          {}
func (b *bench) ping() error     { return errSystem }
func (b *bench) attach() error   { return errSystem }
func (b *bench) bytes() error    { return errSystem }
func (b *bench) load() error     { return errSystem }
func (b *bench) clients() error  { return errSystem }
func (b *bench) shutdown() error { return errSystem }
func (b *bench) kill() error     { return errSystem }
