//go:build !linux

package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"
)

var errLinuxOnly = fmt.Errorf("keeper: %w: it needs Linux", errors.ErrUnsupported)

// Config configures a keeper process.
type Config struct {
	// Socket, Idle, Orphan and Logger are as on Linux.
	Socket       string
	Idle, Orphan time.Duration
	Logger       *slog.Logger
}

// Serve returns [errors.ErrUnsupported].
func Serve(context.Context, Config) error { return errLinuxOnly }

// Options configure a [Process].
type Options struct {
	// Socket, Command, ConnectOnly and Logger are as on Linux.
	Socket      string
	Command     []string
	ConnectOnly bool
	Logger      *slog.Logger
}

// Process is not supported on this system.
type Process struct{}

// Connect returns [errors.ErrUnsupported].
func Connect(Options) (*Process, error) { return nil, errLinuxOnly }

// PID returns 0.
func (*Process) PID() int { return 0 }

// LostPID returns 0.
func (*Process) LostPID() int { return 0 }

// Put returns [errors.ErrUnsupported].
func (*Process) Put(string, *os.File) error { return errLinuxOnly }

// PutNew returns [errors.ErrUnsupported].
func (*Process) PutNew(string, *os.File) error { return errLinuxOnly }

// Forget does nothing.
func (*Process) Forget() {}

// Remove returns [errors.ErrUnsupported].
func (*Process) Remove(...string) error { return errLinuxOnly }

// Names returns [errors.ErrUnsupported].
func (*Process) Names() ([]string, error) { return nil, errLinuxOnly }

// Stored returns [errors.ErrUnsupported].
func (*Process) Stored() (map[string]*os.File, error) { return nil, errLinuxOnly }

// Close does nothing.
func (*Process) Close() error { return nil }

// Systemd is not supported on this system.
type Systemd = Process

// NewSystemd returns [errors.ErrUnsupported].
func NewSystemd() (*Systemd, error) { return nil, errLinuxOnly }

// Directory is not supported on this system.
type Directory = Process

// OpenDirectory returns [errors.ErrUnsupported].
func OpenDirectory(string) (*Directory, error) { return nil, errLinuxOnly }
