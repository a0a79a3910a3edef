//go:build !linux

package systemd

import "net"

// ActivatedListener returns nil: this system has no systemd.
func ActivatedListener() (*net.UnixListener, error) { return nil, nil }
