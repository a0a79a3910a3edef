//go:build !linux

package main

import "net"

// activatedListener is nil here: there is no systemd.
func activatedListener() (*net.UnixListener, error) { return nil, nil }
