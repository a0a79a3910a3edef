//go:build !linux

package systemd

import "net"

// ActivatedListener is nil here: there is no systemd.
func ActivatedListener() (*net.UnixListener, error) { return nil, nil }
