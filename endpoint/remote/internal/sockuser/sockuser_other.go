//go:build !linux

package sockuser

import (
	"errors"
	"fmt"
	"net"
)

// errNoUsers means that this system is not supported.
var errNoUsers = fmt.Errorf("this system does not report the user of a connection: set --token-file: %w", errors.ErrUnsupported)

func ofUnix(*net.UnixConn) (uint32, error) { return 0, errNoUsers }

// OfTCP fails with errors.ErrUnsupported.
func OfTCP(net.Addr, net.Addr) (uint32, error) { return 0, errNoUsers }

// OfListener fails with errors.ErrUnsupported.
func OfListener(net.Addr) (uint32, error) { return 0, errNoUsers }
