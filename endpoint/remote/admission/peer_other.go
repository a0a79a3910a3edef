//go:build !linux

package admission

import (
	"errors"
	"fmt"
	"net"
)

// errNoUsers means that this system is not supported.
var errNoUsers = fmt.Errorf("this system does not report the user of a connection: set --token-file: %w", errors.ErrUnsupported)

func ofUnix(*net.UnixConn) (uint32, error) { return 0, errNoUsers }

func ofTCP(net.Addr, net.Addr) (uint32, error) { return 0, errNoUsers }

// ListenerUser fails with errors.ErrUnsupported.
func ListenerUser(net.Addr) (uint32, error) { return 0, errNoUsers }
