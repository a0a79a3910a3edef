//go:build !linux

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
)

var errSystem = fmt.Errorf("benchmarks share memory between processes, which needs Linux: %w", errors.ErrUnsupported)

// Work fails with errors.ErrUnsupported.
func Work(io.Reader, io.Writer) error { return errSystem }

// Ping fails with errors.ErrUnsupported.
func Ping(context.Context, Options) ([]Result, error) { return nil, errSystem }

// Attach fails with errors.ErrUnsupported.
func Attach(context.Context, Options) ([]Result, error) { return nil, errSystem }

// Bytes fails with errors.ErrUnsupported.
func Bytes(context.Context, Options) ([]Result, error) { return nil, errSystem }

// Load fails with errors.ErrUnsupported.
func Load(context.Context, Options) ([]Result, error) { return nil, errSystem }

// Clients fails with errors.ErrUnsupported.
func Clients(context.Context, Options) ([]Result, error) { return nil, errSystem }

// Shutdown fails with errors.ErrUnsupported.
func Shutdown(context.Context, Options) ([]Result, error) { return nil, errSystem }

// Kill fails with errors.ErrUnsupported.
func Kill(context.Context, Options) ([]Result, error) { return nil, errSystem }
